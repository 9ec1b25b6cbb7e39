package planned

import (
	"fmt"
	"sync"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/pool/plan"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// Config says what is planned.
type Config struct {
	Off   bool         // nothing is: all is passed on
	Plan  *plan.Plan   // it is followed from the first request on; nil: one is made from what the job does
	Front *front.Front // of the pool above; nil: none
}

// Above is what stands above in the chain: whoever calls a Pool holds its lock.
type Above interface {
	sync.Locker // for what is done in the background
	// Serves says whether the front may serve at all.
	Serves() bool
	// Flush has the front free what it holds of more than above bytes each, and at most to.
	Flush(above, to int64)
	// Overfull says whether what the front holds serves a small request before new memory does.
	Overfull() bool
	// Grew accounts for bytes that the front gave out, or took back, by the plan.
	Grew(bytes int64)
	LiveBytes() int64
}

// Pool serves requests from a plan, and has those that are not in it served by stitching. See the package comment.
type Pool struct {
	above Above
	front *front.Front
	below *stitch.Pool
	work  sync.WaitGroup // in the background

	service service
	waiting []waiting // freed in planned addresses, but recorded streams are not done
	stats   Stats
}

// Stats count what the plan served.
type Stats struct {
	State                   string
	Why                     string // it is not followed; "" while it is
	Bytes                   int64  // planned addresses
	Served, ServedBytes     int64  // allocations served by the plan
	Scripted, ScriptedFrees int64  // calls that the front has served by it
	Other                   int64  // of those that could have been, those served otherwise while a plan was followed
	Retries                 int64
}

// waiting is memory that other streams still use.
type waiting struct {
	area    *area
	offset  int64
	streams []uint64
	freed   []uint64 // the streams' counts of frees
}

// New returns a pool above the one that stitches.
func New(c Config, above Above, below *stitch.Pool) (*Pool, error) {
	p := &Pool{above: above, front: c.Front, below: below}
	return p, p.service.start(c)
}

// Malloc returns memory for work on a stream.
func (p *Pool) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if len(p.waiting) > 0 {
		p.reclaim(false)
	}
	s := &p.service
	followed := s.phase != off && bytes > s.least
	if followed {
		p.EndScript() // it was not what comes next
	}
	var at cuda.Ptr
	var ok bool
	if followed && s.phase >= ready {
		if at, ok = p.fromPlan(bytes, stream); !ok && s.phase == active {
			at, ok = p.fromGaps(bytes, stream)
		}
	}
	if !ok && !(followed && s.phase == active) { // there it was tried
		at, ok = p.below.MallocFree(bytes, stream)
	}
	if ok {
		return at, nil
	}
	return p.mallocUnplanned(bytes, stream, followed && s.phase == active)
}

// mallocUnplanned serves a request from stitching, when what is free at hand does not.
func (p *Pool) mallocUnplanned(bytes int64, stream uint64, planned bool) (at cuda.Ptr, err error) {
	// What may serve the request without more memory: small and large ones lie apart.
	switch {
	case bytes > plannedAbove:
		p.above.Flush(plannedAbove, front.All)
	case p.above.Overfull():
		p.above.Flush(0, plannedAbove)
	}
	if planned {
		at, err = p.below.MallocWithin(bytes, stream, max(0, p.service.mostReserved-p.below.ReservedBytes()))
		if err == nil {
			return at, nil
		}
		// A plan must not cost memory: what is free in its addresses may serve this.
		p.leave(fmt.Sprintf("%d bytes beside it would have taken more memory than without it", bytes))
	}
	if at, err = p.below.Malloc(bytes, stream); err != nil {
		return p.underPressure(bytes, stream, err)
	}
	return at, nil
}

// underPressure gives up planned addresses, so that what is free in them can be used
// in another way, and tries once more.
func (p *Pool) underPressure(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	p.stats.Retries++
	held := p.front != nil && p.front.HeldCount() > 0
	p.above.Flush(0, front.All)
	p.reclaim(true)
	if !p.leave("memory was short") && !held {
		return 0, err
	}
	p.releaseLeft(true)
	return p.below.Malloc(bytes, stream)
}

// Free takes memory back. It is reused at once for its own stream, and after
// their present work for streams that were recorded.
func (p *Pool) Free(at cuda.Ptr) error {
	a, offset := p.find(at)
	if a == nil {
		return p.below.Free(at)
	}
	if a.layout.Requested(offset) == 0 || p.isWaiting(a, offset) {
		return fmt.Errorf("pool: %#x is not a live allocation", uint64(at))
	}
	if others := a.layout.Recorded(offset); len(others) > 0 {
		w := waiting{area: a, offset: offset, streams: others}
		for _, s := range others {
			n := p.below.NoteFree(s)
			p.below.Mark(s) // asked about later: not while a graph may be captured
			w.freed = append(w.freed, n)
		}
		p.waiting = append(p.waiting, w)
		return nil
	}
	return p.freePlanned(a, offset)
}

// find is areaOf for who looks at what is there, or changes it: the front does not go on by itself.
func (p *Pool) find(at cuda.Ptr) (*area, int64) {
	if len(p.service.areas) == 0 {
		return nil, 0
	}
	a, offset := p.service.areaOf(at)
	if a != nil {
		p.EndScript()
	}
	return a, offset
}

// freePlanned makes planned addresses free.
func (p *Pool) freePlanned(a *area, offset int64) error {
	stream := a.layout.Stream(offset)
	err := a.layout.Free(offset, p.below.NoteFree(stream))
	if a.left {
		p.releaseLeft(false)
	}
	return err
}

// isWaiting says whether an allocation was freed already, and other streams still use it.
func (p *Pool) isWaiting(a *area, offset int64) bool {
	for _, w := range p.waiting {
		if w.area == a && w.offset == offset {
			return true
		}
	}
	return false
}

// reclaim frees planned addresses that recorded streams are done with.
func (p *Pool) reclaim(wait bool) {
	kept := p.waiting[:0]
	for _, w := range p.waiting {
		for len(w.streams) > 0 && p.below.Done(w.streams[0], w.freed[0], wait) {
			w.streams, w.freed = w.streams[1:], w.freed[1:]
		}
		if len(w.streams) > 0 {
			kept = append(kept, w)
		} else {
			_ = p.freePlanned(w.area, w.offset) // it is in use until now
		}
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
}

// RecordStream says that work on another stream uses a live allocation.
func (p *Pool) RecordStream(at cuda.Ptr, stream uint64) {
	if a, offset := p.find(at); a != nil {
		a.layout.Record(offset, stream)
		return
	}
	p.below.RecordStream(at, stream)
}

// Bytes is the size of a live allocation, as requested; 0 when there is none.
func (p *Pool) Bytes(at cuda.Ptr) int64 {
	a, offset := p.find(at)
	switch {
	case a == nil:
		return p.below.Bytes(at)
	case p.isWaiting(a, offset):
		return 0
	}
	return a.layout.Requested(offset)
}

// Owns says whether an address is a live allocation of this pool.
func (p *Pool) Owns(at cuda.Ptr) bool {
	if a, offset := p.find(at); a != nil {
		return a.layout.Requested(offset) > 0
	}
	return p.below.Owns(at)
}

// Containing is the allocation that an address lies in. It may look through all of them.
func (p *Pool) Containing(at cuda.Ptr) (cuda.Range, bool) {
	if a, offset := p.find(at); a != nil {
		from, bytes, ok := a.layout.Containing(offset)
		return cuda.Range{Base: a.ran.Base() + cuda.Ptr(from), Bytes: bytes}, ok
	}
	return p.below.Containing(at)
}

// EmptyCache gives free physical memory back, and returns the bytes. It waits for
// queued work. A plan is taken up again at the next iteration.
func (p *Pool) EmptyCache() (released int64) {
	p.reclaim(true)
	p.leave("the caches were emptied")
	p.releaseLeft(true)
	if s := &p.service; s.phase != off && !s.file && p.above.LiveBytes() < leftOver {
		s.again("") // the next job may be another
	}
	return p.below.EmptyCache()
}

// Trim gives back so much free physical memory as can be had without waiting.
func (p *Pool) Trim(bytes int64) (released int64) { return p.below.Trim(bytes) }

// ResetPeaks makes the present the peak.
func (p *Pool) ResetPeaks() { p.below.ResetPeaks() }

// NoteAlloc says what was allocated, by whomever, while an iteration is looked for.
func (p *Pool) NoteAlloc(at cuda.Ptr, bytes int64, stream uint64) {
	if s := &p.service; s.phase == recording && bytes > s.least {
		p.record(at, bytes, stream)
	}
}

// NoteFree says what was freed.
func (p *Pool) NoteFree(at cuda.Ptr) {
	if p.service.phase == recording {
		p.service.recorder.Free(at)
	}
}

// FrontLimits are what the front may serve by its size, and from what size on it has to note what it serves.
func (p *Pool) FrontLimits() (most, noted int64) {
	switch s := &p.service; {
	case s.phase == recording && !s.recorder.Repeats():
		return front.All, s.least
	case s.phase == off:
		return plannedAbove, front.All
	default:
		// The follower sees what is in a plan; and where layers and iterations repeat, large memory is used
		// best when the pool chooses anew what lies where.
		return s.least, front.All
	}
}

// Stats reports counters.
func (p *Pool) Stats() Stats {
	r := p.stats
	r.State, r.Why = p.service.phase.String(), p.service.why
	if a := p.service.current; a != nil {
		r.Bytes = a.ran.Bytes()
	}
	return r
}

// Stop has nothing planned any more. Allocations stay valid.
func (p *Pool) Stop() {
	p.leave("the pool is closed")
	p.service.phase = off
}

// Wait waits for what runs in the background, without the lock.
func (p *Pool) Wait() { p.work.Wait() }

// LiveBytes are the bytes of live allocations, in planned addresses and below.
func (p *Pool) LiveBytes() int64 {
	live := p.below.Stats().LiveBytes
	for _, a := range p.service.areas {
		live += a.layout.LiveBytes()
	}
	for _, w := range p.waiting {
		live -= w.area.layout.Requested(w.offset)
	}
	return live
}

// Check verifies the invariants.
func (p *Pool) Check() error {
	p.EndScript()
	if err := p.below.Check(); err != nil {
		return err
	}
	for _, a := range p.service.areas {
		if err := a.layout.Check(a.ran.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
