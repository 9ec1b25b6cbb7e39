package correlate

import "unsafe"

const (
	chunkShift = 10
	chunkMask  = 1<<chunkShift - 1
)

// log is a numbered sequence whose oldest elements are forgotten. Elements stay where they are, so
// that adding one never waits for the others to be copied. The zero value is empty.
type log[T any] struct {
	chunks [][]T // of 1<<chunkShift elements each, from that of base on
	base   int64 // the first element of the first chunk
	end    int64 // the number that the next element gets
	spare  [][]T // chunks to use again
}

// add appends an element and answers its number.
func (l *log[T]) add(x T) int64 {
	if l.end-l.base == int64(len(l.chunks))<<chunkShift {
		var c []T
		if n := len(l.spare); n > 0 {
			c, l.spare = l.spare[n-1], l.spare[:n-1]
		} else {
			c = make([]T, 1<<chunkShift)
		}
		l.chunks = append(l.chunks, c)
	}
	l.end++
	*l.at(l.end - 1) = x
	return l.end - 1
}

// at is the element of a number that is neither forgotten nor still to come.
func (l *log[T]) at(number int64) *T {
	i := number - l.base
	return &l.chunks[i>>chunkShift][i&chunkMask]
}

// forget drops elements before a number, by whole chunks.
func (l *log[T]) forget(before int64) {
	n := int((before - l.base) >> chunkShift)
	l.spare = append(l.spare, l.chunks[:n]...)
	l.chunks = append(l.chunks[:0], l.chunks[n:]...)
	l.base += int64(n) << chunkShift
}

// truncate drops the elements from a number on, which is given out again.
func (l *log[T]) truncate(end int64) {
	l.end = end
	for int64(len(l.chunks)-1)<<chunkShift >= l.end-l.base && len(l.chunks) > 0 {
		n := len(l.chunks) - 1
		l.spare, l.chunks = append(l.spare, l.chunks[n]), l.chunks[:n]
	}
}

// bytes is how much memory it takes.
func (l *log[T]) bytes() int64 {
	var x T
	return int64(len(l.chunks)+len(l.spare)) << chunkShift * int64(unsafe.Sizeof(x))
}
