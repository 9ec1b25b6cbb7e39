package process

import "github.com/penstock-gpu/penstock/internal/hook"

// Streams has a number for each of the job's streams.
type Streams struct {
	hook  Handles
	ended func(number int, seq uint64)

	numbers map[uint64]int // by handle
	handles []uint64       // by number
	indices []indexed      // by the hook's index
	indexOf []int          // by number: the hook's index, -1 if unknown
	free    []int          // numbers whose streams are gone
}

// Handles are those of the hook's streams, by its index.
type Handles interface{ Streams() []uint64 }

// indexed is a stream as the hook numbers it.
type indexed struct {
	number   int // -1 when not known yet
	handle   uint64
	reported uint64 // progress that was told of last
}

// NewStreams returns numbers for the streams of a hook, which may be nil. ended is told that a stream has finished all that
// it was given up to an operation, when its number may be given to another.
func NewStreams(hook Handles, ended func(number int, seq uint64)) Streams {
	return Streams{hook: hook, ended: ended, numbers: map[uint64]int{0: 0}, handles: []uint64{0}, indexOf: []int{0}}
}

// Number is that of the stream with a handle.
func (s *Streams) Number(handle uint64) int {
	// cudaStreamLegacy is another name of the default stream.
	if handle == 1 {
		handle = 0
	}
	n, ok := s.numbers[handle]
	if !ok {
		n = s.take(handle)
		s.numbers[handle] = n
	}
	return n
}

// take is a number for a stream: one whose stream is gone, or a new one.
func (s *Streams) take(handle uint64) (n int) {
	if k := len(s.free); k > 0 {
		n, s.free = s.free[k-1], s.free[:k-1]
		s.handles[n] = handle
		return n
	}
	s.handles = append(s.handles, handle)
	s.indexOf = append(s.indexOf, -1)
	return len(s.handles) - 1
}

// Handle is that of the stream with a number.
func (s *Streams) Handle(number int) uint64 { return s.handles[number] }

// HandleAt is that of the stream with one of the hook's indices.
func (s *Streams) HandleAt(index int) uint64 {
	if all := s.hook.Streams(); index < len(all) {
		return all[index]
	}
	return 0
}

// Index is the hook's for the stream with a number, -1 if unknown.
func (s *Streams) Index(number int) int { return s.indexOf[number] }

// Launched is the number of the stream with one of the hook's indices, of which an
// operation is about to be reported.
func (s *Streams) Launched(index int, seq uint64) int {
	for len(s.indices) <= index {
		s.indices = append(s.indices, indexed{number: -1})
	}
	x := &s.indices[index]
	handle := s.HandleAt(index)
	if x.number >= 0 && s.indexOf[x.number] == index && (handle == x.handle || handle == hook.StreamGone) {
		return x.number
	}
	if x.number >= 0 {
		s.end(index, seq)
	}
	n := 0
	if handle == hook.StreamPerThread || handle == hook.StreamGone { // several have it, and each is a stream of its own
		n = s.take(handle)
	} else if n = s.Number(handle); s.indexOf[n] >= 0 && s.indexOf[n] != index { // that one is gone, and may have work yet
		n = s.take(handle)
		s.numbers[handle] = n
	}
	*x = indexed{number: n, handle: handle}
	s.indexOf[n] = index
	return n
}

// end is told that an index is another stream's by the operation with that seq: all that the
// one before was given is done. Its number can be given to another, for which what was freed on
// it is free, too.
func (s *Streams) end(index int, seq uint64) {
	x := s.indices[index]
	s.indices[index].number = -1
	if x.number == 0 || s.indexOf[x.number] != index { // its handle came back under another index
		return
	}
	s.ended(x.number, seq-1)
	if s.numbers[x.handle] == x.number {
		delete(s.numbers, x.handle)
	}
	s.indexOf[x.number] = -1
	s.free = append(s.free, x.number)
}

// Indices is how many of the hook's indices are known.
func (s *Streams) Indices() int { return len(s.indices) }

// At is the number of the stream that had an index when that was last looked at, -1 when none is known to have had it; ok
// says that it is its own index, too.
func (s *Streams) At(index int) (number int, ok bool) {
	if index >= len(s.indices) {
		return -1, false
	}
	number = s.indices[index].number
	return number, number >= 0 && s.indexOf[number] == index
}

// Still says whether the stream that is known to have an index has it still. If it does not, read is the last
// operation that was read: the other one may launch nothing for long.
func (s *Streams) Still(index int, read uint64) bool {
	handle := s.HandleAt(index)
	if handle != s.indices[index].handle && handle != hook.StreamGone {
		s.end(index, read+1)
		return false
	}
	return true
}

// News says whether a stream's progress is other than when that was last asked, by the index that it has, and the handle.
func (s *Streams) News(index int, progress uint64) (handle uint64, news bool) {
	x := &s.indices[index]
	news, x.reported = progress != x.reported, progress
	return x.handle, news
}

// Len is how many numbers there are.
func (s *Streams) Len() int { return len(s.handles) }
