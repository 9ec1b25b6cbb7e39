package stitch

import (
	"errors"
	"fmt"
	"math"

	"github.com/penstock-gpu/penstock/cuda"
)

// Pool is an allocator of device memory. See the package comment.
type Pool struct {
	config Config
	driver Driver
	budget Budget
	fences Fences

	small, large *arena
	live         map[cuda.Ptr]*block
	waiting      []*block // freed, but recorded streams have not passed their fences
	streams      map[uint64]*streamState
	stitches     stitches
	spare        *block // unused block structures, by next
	mostCreated  int64  // bytes, by the call under way
	stats        Stats
}

// Stats counts bytes and calls.
type Stats struct {
	LiveBytes, LivePeakBytes         int64 // as requested
	ReservedBytes, ReservedPeakBytes int64 // physical memory
	Allocs, Frees, Retries           int64
	Created                          int64 // handles
	Stitches, StitchedHandles        int64 // made
	StitchReuses, StitchFrees        int64
	StitchedBytes                    int64 // address space of stitched ranges now
}

// New returns an empty pool.
func New(c Config, d Driver, b Budget, f Fences) (*Pool, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if g := d.Granularity(); g <= 0 || pageBytes%g != 0 {
		return nil, fmt.Errorf("pool: the driver's granularity of %d bytes does not divide %d", g, int64(pageBytes))
	}
	p := &Pool{config: c.withDefaults(), driver: d, budget: b, fences: f,
		live: map[cuda.Ptr]*block{}, streams: map[uint64]*streamState{}, mostCreated: math.MaxInt64}
	p.stitches.init(p)
	return p, nil
}

func (p *Pool) newBlock() *block {
	if b := p.spare; b != nil {
		p.spare = b.next
		return b
	}
	return &block{}
}

func (p *Pool) dropBlock(b *block) {
	*b = block{next: p.spare}
	p.spare = b
}

// arenaFor is the arena of requests of a size, made when first needed.
func (p *Pool) arenaFor(bytes int64) (a *arena, err error) {
	at := &p.large
	if bytes <= smallBytes {
		at = &p.small
	}
	if *at == nil {
		if err := p.driver.BindThread(); err != nil {
			return nil, err
		}
		*at, err = p.newArena(bytes <= smallBytes)
	}
	return *at, err
}

// MallocFree is Malloc for when a free block is large enough; ok is false otherwise.
func (p *Pool) MallocFree(bytes int64, stream uint64) (at cuda.Ptr, ok bool) {
	want := roundUp(bytes, blockBytes)
	a, err := p.arenaFor(want)
	if err != nil || bytes <= 0 {
		return 0, false
	}
	if len(p.waiting) > 0 {
		p.reclaim()
	}
	b := p.find(a, want, stream)
	if b == nil {
		return 0, false
	}
	return p.give(b, bytes, want), true
}

// MallocWithin is Malloc that fails with ErrTooMuchNew, without having waited, when it
// would have to create more than so much memory.
func (p *Pool) MallocWithin(bytes int64, stream uint64, mostCreated int64) (cuda.Ptr, error) {
	p.mostCreated = mostCreated
	defer func() { p.mostCreated = math.MaxInt64 }()
	return p.Malloc(bytes, stream)
}

// ErrTooMuchNew is what MallocWithin fails with.
var ErrTooMuchNew = errors.New("pool: that takes more new memory than allowed")

// Malloc returns memory for work on a stream. When there is none, the error is the
// budget's or the driver's.
func (p *Pool) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes <= 0 || bytes > p.config.ReserveBytes {
		return 0, fmt.Errorf("pool: cannot allocate %d bytes", bytes)
	}
	want := roundUp(bytes, blockBytes)
	a, err := p.arenaFor(want)
	if err != nil {
		return 0, err
	}
	if len(p.waiting) > 0 {
		p.reclaim()
	}
	b := p.find(a, want, stream)
	if b == nil {
		if b, err = p.findHarder(a, want, stream); err != nil {
			return 0, err
		}
	}
	return p.give(b, bytes, want), nil
}

// give makes an allocation of a free block, or of a stitched one, which is held already.
func (p *Pool) give(b *block, bytes, want int64) cuda.Ptr {
	if b.state == free {
		b = b.arena.take(b, b.base, b.base+cuda.Ptr(want))
	}
	b.requested = bytes
	at := b.base
	if b.stitched != nil {
		at = b.stitched.base
	}
	p.live[at] = b
	b.arena.low = min(b.arena.low, b.arena.freeSize)
	p.stats.Allocs++
	p.stats.LiveBytes += bytes
	p.stats.LivePeakBytes = max(p.stats.LivePeakBytes, p.stats.LiveBytes)
	return at
}

// find is the free block for a request, nil when there is none.
func (p *Pool) find(a *arena, want int64, stream uint64) *block {
	if l := a.free[stream]; l != nil {
		return l.fit(want)
	}
	return nil
}

// findHarder goes through the states of GMLake that follow "a single block is large
// enough": several stitched, some created, all that is idle used, out of memory. The
// block is free, or used and stitched.
func (p *Pool) findHarder(a *arena, want int64, stream uint64) (*block, error) {
	if err := p.driver.BindThread(); err != nil {
		return nil, err
	}
	p.stitches.collect(false)
	if p.adopt(a, stream, false) {
		if b := p.find(a, want, stream); b != nil {
			return b, nil
		}
	}
	stitch := !a.small && want >= p.config.MinBytes && p.config.Strategy != Never
	if stitch {
		if b := p.stitches.reuse(want, stream); b != nil {
			return b, nil
		}
		if p.config.Strategy == Eager {
			if b, err := p.stitches.make(a, want, stream); b != nil {
				return b, nil
			} else if err != nil && !p.outOfMemory(err) {
				return nil, err
			}
		}
	}
	b, err := a.grow(want, stream)
	if err == nil || errors.Is(err, ErrTooMuchNew) {
		return b, err
	}
	p.stats.Retries++
	// The memory is spent. First what other streams and queued work hold on to.
	p.waitForAll()
	p.adopt(a, stream, true)
	if b := p.find(a, want, stream); b != nil {
		return b, nil
	}
	// Then what is free by whole chunks elsewhere, or in pieces here.
	if p.releaseOthers(a) > 0 {
		if b, again := a.grow(want, stream); again == nil {
			return b, nil
		}
	}
	if p.config.Strategy != Never && !a.small {
		if b := p.stitches.reuse(want, stream); b != nil {
			return b, nil
		}
		if b, _ := p.stitches.make(a, want, stream); b != nil {
			return b, nil
		}
	}
	// Last, pieces of too few bytes each to be stitched: give them up, and ask again.
	if p.EmptyCache() > 0 {
		if b, again := a.grow(want, stream); again == nil {
			return b, nil
		}
	}
	return nil, err
}

// outOfMemory says whether an error means that memory is spent: then there are
// still things to try.
func (p *Pool) outOfMemory(err error) bool { return err != nil && !errors.Is(err, errUnexpected) }

var errUnexpected = errors.New("pool: the driver refuses a mapping")

// Owns says whether an address is a live allocation of this pool.
func (p *Pool) Owns(at cuda.Ptr) bool { return p.live[at] != nil }

// Bytes is the size of a live allocation, as requested; 0 when there is none.
func (p *Pool) Bytes(at cuda.Ptr) int64 {
	if b := p.live[at]; b != nil {
		return b.requested
	}
	return 0
}

// Containing is the live allocation that an address lies in. It looks through all of them.
func (p *Pool) Containing(at cuda.Ptr) (cuda.Range, bool) {
	for base, b := range p.live {
		if r := (cuda.Range{Base: base, Bytes: b.requested}); at >= base && at < r.End() {
			return r, true
		}
	}
	return cuda.Range{}, false
}

// RecordStream says that work on another stream uses a live allocation.
func (p *Pool) RecordStream(at cuda.Ptr, stream uint64) {
	b := p.live[at]
	if b == nil || b.stream == stream {
		return
	}
	for _, s := range b.others {
		if s == stream {
			return
		}
	}
	b.others = append(b.others, stream)
}

// Free takes memory back. It is reused at once for its own stream, and after
// their present work for streams that were recorded.
func (p *Pool) Free(at cuda.Ptr) error {
	b := p.live[at]
	if b == nil {
		return fmt.Errorf("pool: %#x is not a live allocation", uint64(at))
	}
	delete(p.live, at)
	p.stats.Frees++
	p.stats.LiveBytes -= b.requested
	if b.others == nil {
		p.release(b)
		return nil
	}
	var failed error
	for _, s := range b.others {
		f, err := p.fences.Fence(s)
		if err != nil {
			failed = fmt.Errorf("pool: fence on stream %#x: %w", s, err)
			continue
		}
		b.fences = append(b.fences, f)
	}
	if failed != nil {
		// Nothing will say when that stream is done: the memory is not used again.
		b.fences = append(b.fences, never)
	}
	b.others = nil
	p.waiting = append(p.waiting, b)
	return failed
}

// never is a fence that no stream passes.
var never any = &struct{ _ byte }{}

// reclaim frees the blocks whose fences have been passed.
func (p *Pool) reclaim() {
	kept := p.waiting[:0]
	for _, b := range p.waiting {
		for len(b.fences) > 0 && b.fences[0] != never && p.fences.Passed(b.fences[0]) {
			b.fences = b.fences[1:]
		}
		if len(b.fences) == 0 {
			p.release(b)
		} else {
			kept = append(kept, b)
		}
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
}

// release makes the memory of an allocation free.
func (p *Pool) release(b *block) {
	s := b.stitched
	if s == nil {
		p.freeBlock(b)
		return
	}
	stream := b.stream
	parts := s.parts
	s.parts = nil
	for _, b := range parts {
		b.stitched = nil
		p.freeBlock(b)
	}
	p.stitches.idle(s, stream)
}

// freeBlock makes one used block free, in the order of its stream.
func (p *Pool) freeBlock(b *block) {
	st := p.stream(b.stream)
	st.frees++
	b.state, b.freed, b.requested, b.fences = free, st.frees, 0, nil
	b.arena.settle(b)
}

// Stats reports counters.
func (p *Pool) Stats() Stats { return p.stats }

// ReservedBytes is the physical memory that the pool has.
func (p *Pool) ReservedBytes() int64 { return p.stats.ReservedBytes }

// ResetPeaks makes the present the peak.
func (p *Pool) ResetPeaks() {
	p.stats.LivePeakBytes, p.stats.ReservedPeakBytes = p.stats.LiveBytes, p.stats.ReservedBytes
}
