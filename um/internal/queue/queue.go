package queue

import (
	"iter"
	"sort"
)

// Queue is the unfinished operations. Its zero value is empty. T is a pointer to whatever
// an engine keeps of one.
type Queue[T any] struct {
	all      []entry[T] // in order; finished ones too, until there are many of them
	finished int        // of these
	on       [][]uint64 // by stream: the numbers of its unfinished ones, in order
}

type entry[T any] struct {
	seq  uint64
	done bool
	op   T
}

// Add enters an operation, whose number is above all others'.
func (q *Queue[T]) Add(stream int, seq uint64, op T) {
	for len(q.on) <= stream {
		q.on = append(q.on, nil)
	}
	q.on[stream] = append(q.on[stream], seq)
	q.all = append(q.all, entry[T]{seq: seq, op: op})
}

// Finish calls visit, in order, for each operation of a stream up to a number, which is
// no longer in the queue afterwards, and says whether there were any.
func (q *Queue[T]) Finish(stream int, seq uint64, visit func(T)) bool {
	if stream >= len(q.on) {
		return false
	}
	on := q.on[stream]
	n := 0
	for ; n < len(on) && on[n] <= seq; n++ {
		e := &q.all[q.index(on[n])]
		e.done = true
		visit(e.op)
	}
	q.on[stream] = on[n:] // the next addition that finds no room copies the rest
	q.finished += n
	q.drop()
	return n > 0
}

// drop forgets what is finished: at the front at once, elsewhere when it is most of all.
func (q *Queue[T]) drop() {
	const few = 64
	k := 0
	for k < len(q.all) && q.all[k].done {
		k++
	}
	clear(q.all[:k])
	q.all = q.all[k:]
	q.finished -= k
	if q.finished < few || q.finished < q.Len() {
		return
	}
	kept := q.all[:0]
	for _, e := range q.all {
		if !e.done {
			kept = append(kept, e)
		}
	}
	clear(q.all[len(kept):])
	q.all, q.finished = kept, 0
}

// index is where an operation of that number stands, or the first after it.
func (q *Queue[T]) index(seq uint64) int {
	return sort.Search(len(q.all), func(i int) bool { return q.all[i].seq >= seq })
}

// Len is how many there are.
func (q *Queue[T]) Len() int { return len(q.all) - q.finished }

// All is every one of them, in order.
func (q *Queue[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range q.all {
			if e := &q.all[i]; !e.done && !yield(e.op) {
				return
			}
		}
	}
}

// First is the oldest.
func (q *Queue[T]) First() (op T, ok bool) {
	if len(q.all) == 0 {
		return op, false
	}
	return q.all[0].op, true // what is finished is never kept at the front
}

// FirstOn is the oldest of a stream.
func (q *Queue[T]) FirstOn(stream int) (op T, ok bool) {
	if stream >= len(q.on) || len(q.on[stream]) == 0 {
		return op, false
	}
	return q.From(q.on[stream][0])
}

// From is the first whose number is at least seq.
func (q *Queue[T]) From(seq uint64) (op T, ok bool) {
	return q.after(q.index(seq))
}

// Where is the first for which f is true, which it is for all that follow.
func (q *Queue[T]) Where(f func(T) bool) (op T, ok bool) {
	return q.after(sort.Search(len(q.all), func(i int) bool { return f(q.all[i].op) }))
}

// after is the first unfinished one from an index on.
func (q *Queue[T]) after(i int) (op T, ok bool) {
	for ; i < len(q.all); i++ {
		if !q.all[i].done {
			return q.all[i].op, true
		}
	}
	return op, false
}
