package live

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// besides are the tensors that lie in plain memory because the arena had no range
// for them in one piece. It has a lock of its own, the last of all.
type besides struct {
	any   atomic.Bool // there are some, or memory of some is to be given back
	mu    sync.Mutex
	bytes map[cuda.Ptr]int64
	owed  int64 // of those that were freed, not given back yet
	next  time.Time
	pause time.Duration // before the next attempt
}

// How often memory that work may still use is tried to be given back.
const (
	leastPause = time.Millisecond
	mostPause  = time.Second
)

func (b *besides) add(p cuda.Ptr, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes == nil {
		b.bytes = map[cuda.Ptr]int64{}
	}
	b.bytes[p] = bytes
	b.any.Store(true)
}

// freed notes, before its memory can be given out again, that p is freed.
func (b *besides) freed(p cuda.Ptr) {
	if !b.any.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes, ok := b.bytes[p]; ok {
		delete(b.bytes, p)
		b.owed += bytes
		b.next, b.pause = time.Time{}, leastPause
	}
}

// giveBack gives the memory of those that were freed back to the budget: the pool
// would keep it, small allocations have no use for it, and the arena's tensors would
// have so much less room for good. What work may still use is tried again by later frees.
func (b *besides) giveBack(p plainPool) {
	if !b.any.Load() {
		return
	}
	b.mu.Lock()
	owed := b.owed
	if owed == 0 || time.Now().Before(b.next) {
		b.mu.Unlock()
		return
	}
	b.owed = 0 // by this thread, and nobody else meanwhile
	b.mu.Unlock()
	released := p.Trim(owed)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed += max(0, owed-released)
	if released == 0 {
		b.next, b.pause = time.Now().Add(b.pause), min(2*b.pause, mostPause)
	}
	b.any.Store(b.owed > 0 || len(b.bytes) > 0)
}

// mallocBeside serves a tensor from plain device memory, where it stays, because
// the arena has no range of that size in one piece. Others leave to make room.
func (l *Live) mallocBeside(bytes int64, stream uint64, refused error) (cuda.Ptr, error) {
	p, err := l.plain.Malloc(bytes, stream)
	if err != nil {
		return 0, refused
	}
	l.besides.add(p, bytes)
	l.Counts.Beside.Add(1)
	return p, nil
}
