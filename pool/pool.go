package pool

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/pool/plan"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// Config says how a Pool works. The zero value stitches eagerly and plans by itself.
type Config struct {
	Stitch stitch.Config
	// Planning is off when Unplanned is set: everything is stitched.
	Unplanned bool
	// Plan is followed from the first request on; nil: one is made from what the job does.
	Plan *plan.Plan
	// Front serves what it can before Malloc and Free are called; nil: nothing does.
	Front *front.Front
}

// Pool is the one pool of device memory: planned first, stitched second. It may be
// used by several threads. See the package comment.
type Pool struct {
	config Config
	work   sync.WaitGroup // in the background

	mu       sync.Mutex
	stitched *stitch.Pool
	service  service
	waiting  []waiting // freed in planned addresses, but recorded streams are not done
	ahead    ahead     // what the front may do

	live, reserved               atomic.Int64
	livePeak, reservedPeak       int64
	allocs, frees, retries       int64
	planned, plannedBytes, other int64
	scripted, scriptedFrees      int64 // calls that the front has served by the plan
}

// waiting is memory that other streams still use.
type waiting struct {
	area    *area
	offset  int64
	streams []uint64
	freed   []uint64 // the streams' counts of frees
}

// New returns an empty pool.
func New(c Config, d stitch.Driver, b stitch.Budget, f stitch.Fences) (*Pool, error) {
	s, err := stitch.New(c.Stitch, d, b, f)
	if err != nil {
		return nil, err
	}
	p := &Pool{config: c, stitched: s}
	return p, p.service.start(c)
}

// lock takes mu. It is held for less than a microsecond at a time, unless the driver is asked
// for memory: waiting actively is much shorter than being put to sleep and woken.
func (p *Pool) lock() {
	const spins, pause = 200, 32
	for range spins {
		if p.mu.TryLock() {
			return
		}
		for i := range pause { // without touching the lock, which would slow its holder down
			_ = i
		}
	}
	p.mu.Lock()
}

// Malloc returns memory for work on a stream. When there is none, the error is the
// budget's or the driver's.
func (p *Pool) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("pool: cannot allocate %d bytes", bytes)
	}
	p.lock()
	defer p.unlock()
	p.catchUp()
	if len(p.waiting) > 0 {
		p.reclaim(false)
	}
	s := &p.service
	followed := s.phase != off && bytes > s.least
	if followed {
		p.endScript() // it was not what comes next
	}
	var at cuda.Ptr
	var ok bool
	if followed && s.phase >= ready {
		if at, ok = p.fromPlan(bytes, stream); !ok && s.phase == active {
			at, ok = p.besidePlan(bytes, stream)
		}
	}
	if !ok && !(followed && s.phase == active) { // there it was tried
		at, ok = p.stitched.MallocFree(bytes, stream)
	}
	if !ok {
		var err error
		if at, err = p.mallocBeside(bytes, stream, followed && s.phase == active); err != nil {
			return 0, err
		}
		p.reserved.Store(p.stitched.Stats().ReservedBytes)
		p.reservedPeak = max(p.reservedPeak, p.reserved.Load())
	}
	if followed && s.phase == recording {
		p.record(at, bytes, stream)
	}
	p.allocs++
	p.live.Add(bytes)
	p.livePeak = max(p.livePeak, p.LiveBytes())
	if s.script.due {
		p.beginScript()
	}
	return at, nil
}

// mallocBeside serves a request from stitching, when what is free at hand does not.
func (p *Pool) mallocBeside(bytes int64, stream uint64, planned bool) (at cuda.Ptr, err error) {
	// What may serve the request without more memory: small and large ones lie apart.
	switch {
	case bytes > plannedAbove:
		p.takeBack(plannedAbove, front.All)
	case p.holdsTooMuch():
		p.takeBack(0, plannedAbove)
	}
	if planned {
		at, err = p.stitched.MallocWithin(bytes, stream, max(0, p.service.mostReserved-p.stitched.Stats().ReservedBytes))
		if err == nil {
			return at, nil
		}
		// A plan must not cost memory: what is free in its addresses may serve this.
		p.leave(fmt.Sprintf("%d bytes beside it would have taken more memory than without it", bytes))
	}
	if at, err = p.stitched.Malloc(bytes, stream); err != nil {
		return p.underPressure(bytes, stream, err)
	}
	return at, nil
}

// underPressure gives up planned addresses, so that what is free in them can be used
// in another way, and tries once more.
func (p *Pool) underPressure(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	p.retries++
	held := p.config.Front != nil && p.config.Front.HeldCount() > 0
	p.takeBack(0, front.All)
	p.reclaim(true)
	if !p.leave("memory was short") && !held {
		return 0, err
	}
	p.shed(true)
	return p.stitched.Malloc(bytes, stream)
}

// Free takes memory back. It is reused at once for its own stream, and after
// their present work for streams that were recorded.
func (p *Pool) Free(at cuda.Ptr) error {
	p.lock()
	defer p.unlock()
	p.catchUp()
	if p.service.phase == recording {
		p.service.recorder.Free(at)
	}
	return p.free(at)
}

// free makes the memory of an allocation free, which the recorder knows already.
func (p *Pool) free(at cuda.Ptr) error {
	a, offset := p.service.areaOf(at)
	if a != nil {
		p.endScript()
	}
	if a == nil {
		bytes := p.stitched.Bytes(at)
		err := p.stitched.Free(at)
		if bytes > 0 {
			p.frees++
			p.live.Add(-bytes)
		}
		return err
	}
	bytes := a.layout.Requested(offset)
	if bytes == 0 || p.isWaiting(a, offset) {
		return fmt.Errorf("pool: %#x is not a live allocation", uint64(at))
	}
	p.frees++
	p.live.Add(-bytes)
	if others := a.layout.Recorded(offset); len(others) > 0 {
		w := waiting{area: a, offset: offset, streams: others}
		for _, s := range others {
			n := p.stitched.NoteFree(s)
			p.stitched.Mark(s) // asked about later: not while a graph may be captured
			w.freed = append(w.freed, n)
		}
		p.waiting = append(p.waiting, w)
		return nil
	}
	return p.freePlanned(a, offset)
}

// freePlanned makes planned addresses free.
func (p *Pool) freePlanned(a *area, offset int64) error {
	stream := a.layout.Stream(offset)
	err := a.layout.Free(offset, p.stitched.NoteFree(stream))
	if a.left {
		p.shed(false)
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
		for len(w.streams) > 0 && p.stitched.Done(w.streams[0], w.freed[0], wait) {
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
	p.lock()
	defer p.unlock()
	if a, offset := p.service.areaOf(at); a != nil {
		p.endScript()
		a.layout.Record(offset, stream)
		return
	}
	p.stitched.RecordStream(at, stream)
}

// Owns says whether an address is a live allocation of this pool.
func (p *Pool) Owns(at cuda.Ptr) bool {
	p.lock()
	defer p.unlock()
	if a, offset := p.service.areaOf(at); a != nil {
		p.endScript()
		return a.layout.Requested(offset) > 0
	}
	return p.stitched.Owns(at)
}

// Containing is the allocation that an address lies in: a live one, or one that the
// front holds. It may look through all of them.
func (p *Pool) Containing(at cuda.Ptr) (cuda.Range, bool) {
	p.lock()
	defer p.unlock()
	if a, offset := p.service.areaOf(at); a != nil {
		p.endScript()
		from, bytes, ok := a.layout.Containing(offset)
		return cuda.Range{Base: a.ran.Base() + cuda.Ptr(from), Bytes: bytes}, ok
	}
	return p.stitched.Containing(at)
}

// EmptyCache gives free physical memory back, and returns the bytes. It waits for
// queued work. A plan is taken up again at the next iteration.
func (p *Pool) EmptyCache() (released int64) {
	p.lock()
	defer p.unlock()
	p.catchUp()
	p.takeBack(0, front.All)
	p.reclaim(true)
	p.leave("the caches were emptied")
	p.shed(true)
	if s := &p.service; s.phase != off && !s.file && p.LiveBytes() < leftOver {
		s.again("") // the next job may be another
	}
	released = p.stitched.EmptyCache()
	p.reserved.Store(p.stitched.Stats().ReservedBytes)
	return released
}

// Trim gives back so much free physical memory as can be had without waiting.
func (p *Pool) Trim(bytes int64) (released int64) {
	p.lock()
	defer p.unlock()
	p.catchUp()
	p.takeBack(0, front.All)
	released = p.stitched.Trim(bytes)
	p.reserved.Store(p.stitched.Stats().ReservedBytes)
	return released
}

// LiveBytes are the bytes of live allocations, as requested; ReservedBytes the
// physical memory. Neither takes the lock.
func (p *Pool) LiveBytes() int64 { return p.live.Load() - p.ahead.heldBytes(p.config.Front) }

// ReservedBytes is the physical memory that the pool has.
func (p *Pool) ReservedBytes() int64 { return p.reserved.Load() }

// PoolStats counts bytes and calls.
type PoolStats struct {
	Stats
	Stitches, StitchedHandles int64 // ranges made of scattered memory, and handles in them
	StitchReuses              int64 // allocations served by one made before
	PlanState                 string
	PlanWhy                   string // it is not followed; "" while it is
	PlanBytes                 int64  // planned addresses
	Planned, PlannedBytes     int64  // allocations served by the plan
	Scripted                  int64  // of these, those that the front has served by itself
	Unplanned                 int64  // of those that could have been, those served otherwise while a plan was followed
	FrontAllocs, FrontFrees   int64  // calls, of Allocs and Frees, that the front has served
	FrontPeakBytes            int64  // most bytes live at one of them, with those of NoteBesides
}

// Stats reports counters.
func (p *Pool) Stats() PoolStats {
	p.lock()
	defer p.unlock()
	s := p.stitched.Stats()
	r := PoolStats{
		Stats: Stats{
			LiveBytes: p.LiveBytes(), LivePeakBytes: p.livePeak, ReservedBytes: s.ReservedBytes, ReservedPeakBytes: max(p.reservedPeak, s.ReservedBytes),
			Allocs: p.allocs, Frees: p.frees, Retries: p.retries + s.Retries,
		},
		Stitches: s.Stitches, StitchedHandles: s.StitchedHandles, StitchReuses: s.StitchReuses,
		PlanState: p.service.phase.String(), PlanWhy: p.service.why, Planned: p.planned, PlannedBytes: p.plannedBytes, Scripted: p.scripted, Unplanned: p.other,
	}
	if a := p.service.current; a != nil {
		r.PlanBytes = a.ran.Bytes()
	}
	if f := p.config.Front; f != nil {
		served, freed := f.Following()
		r.Planned += served
		r.Scripted += served
		r.FrontAllocs = f.Served() + r.Scripted
		r.FrontFrees = f.Served() + f.HeldCount() + p.ahead.taken + p.scriptedFrees + freed
		r.FrontPeakBytes = f.LivePeakBytes()
		r.Allocs, r.Frees = r.Allocs+r.FrontAllocs, r.Frees+r.FrontFrees-p.ahead.taken
	}
	return r
}

// ResetPeaks makes the present the peak.
func (p *Pool) ResetPeaks() {
	p.lock()
	defer p.unlock()
	p.stitched.ResetPeaks()
	p.livePeak, p.reservedPeak = p.LiveBytes(), p.stitched.Stats().ReservedBytes
	if p.config.Front != nil {
		p.config.Front.ResetPeak()
	}
}

// Close waits for what runs in the background. Allocations stay valid.
func (p *Pool) Close() {
	p.ServeFront(false)
	p.lock()
	p.leave("the pool is closed")
	p.service.phase = off
	p.unlock()
	p.work.Wait()
}

// Check verifies the invariants.
func (p *Pool) Check() error {
	p.lock()
	defer p.unlock()
	p.endScript()
	if err := p.stitched.Check(); err != nil {
		return err
	}
	live := p.stitched.Stats().LiveBytes
	for _, a := range p.service.areas {
		if err := a.layout.Check(a.ran.Bytes()); err != nil {
			return err
		}
		live += a.layout.LiveBytes()
	}
	for _, w := range p.waiting {
		live -= w.area.layout.Requested(w.offset)
	}
	if live != p.live.Load() {
		return fmt.Errorf("pool: allocations of %d bytes, %d live", live, p.live.Load())
	}
	return nil
}
