package pool

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/pool/plan"
	"github.com/penstock-gpu/penstock/pool/planned"
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

// Layer is a link of the chain: what it does not serve itself it has the one below serve. The
// front comes first, then what is planned (package planned), then what is stitched (package stitch).
type Layer interface {
	// Malloc returns memory for work on a stream. When there is none, the error is the budget's or the driver's.
	Malloc(bytes int64, stream uint64) (cuda.Ptr, error)
	// Free takes memory back. It is reused at once for its own stream, and after their
	// present work for streams that were recorded.
	Free(at cuda.Ptr) error
	// RecordStream says that work on another stream uses a live allocation.
	RecordStream(at cuda.Ptr, stream uint64)
	// Owns says whether an address is a live allocation.
	Owns(at cuda.Ptr) bool
	// Containing is the allocation that an address lies in. It may look through all of them.
	Containing(at cuda.Ptr) (cuda.Range, bool)
	// Segments are all the memory that it has, in no order.
	Segments() []segments.Segment
	// EmptyCache gives free physical memory back, and returns the bytes. It waits for queued work.
	EmptyCache() (released int64)
	// Trim gives back so much free physical memory as can be had without waiting.
	Trim(bytes int64) (released int64)
	ResetPeaks()
	// Check verifies the invariants.
	Check() error
}

// The chain.
var (
	_ Layer = (*Pool)(nil)
	_ Layer = (*planned.Pool)(nil)
	_ Layer = (*stitch.Pool)(nil)
)

// Pool is the one pool of device memory, the chain with its front and its lock. It may be
// used by several threads. See the package comment.
type Pool struct {
	front *front.Front // nil: none

	mu         sync.Mutex
	planned    *planned.Pool
	stitched   *stitch.Pool // below it
	frontState frontState   // what the front may do

	live, reserved         atomic.Int64
	livePeak, reservedPeak int64
	allocs, frees          int64
}

// New returns an empty pool.
func New(c Config, d stitch.Driver, b stitch.Budget, f stitch.Fences) (*Pool, error) {
	s, err := stitch.New(c.Stitch, d, b, f)
	if err != nil {
		return nil, err
	}
	p := &Pool{front: c.Front, stitched: s}
	p.planned, err = planned.New(planned.Config{Off: c.Unplanned, Plan: c.Plan, Front: c.Front}, above{p}, s)
	return p, err
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
	at, err := p.planned.Malloc(bytes, stream)
	if err != nil {
		return 0, err
	}
	p.planned.NoteAlloc(at, bytes, stream)
	p.allocs++
	p.live.Add(bytes)
	p.livePeak = max(p.livePeak, p.LiveBytes())
	p.planned.BeginDue()
	return at, nil
}

// Free takes memory back. It is reused at once for its own stream, and after
// their present work for streams that were recorded.
func (p *Pool) Free(at cuda.Ptr) error {
	p.lock()
	defer p.unlock()
	p.catchUp()
	p.planned.NoteFree(at)
	return p.free(at)
}

// free makes the memory of an allocation free, which is noted already.
func (p *Pool) free(at cuda.Ptr) error {
	bytes := p.planned.Bytes(at)
	err := p.planned.Free(at)
	if bytes > 0 {
		p.frees++
		p.live.Add(-bytes)
	}
	return err
}

// RecordStream says that work on another stream uses a live allocation.
func (p *Pool) RecordStream(at cuda.Ptr, stream uint64) {
	p.lock()
	defer p.unlock()
	p.planned.RecordStream(at, stream)
}

// Owns says whether an address is a live allocation of this pool.
func (p *Pool) Owns(at cuda.Ptr) bool {
	p.lock()
	defer p.unlock()
	return p.planned.Owns(at)
}

// Containing is the allocation that an address lies in: a live one, or one that the
// front holds. It may look through all of them.
func (p *Pool) Containing(at cuda.Ptr) (cuda.Range, bool) {
	p.lock()
	defer p.unlock()
	return p.planned.Containing(at)
}

// TryContaining is Containing for who must not wait for the pool: busy says that somebody has it.
func (p *Pool) TryContaining(at cuda.Ptr) (r cuda.Range, ok, busy bool) {
	if !p.mu.TryLock() {
		return r, false, true
	}
	defer p.unlock()
	r, ok = p.planned.Containing(at)
	return r, ok, false
}

// Segments are all the memory that the pool has, in no order. What the front holds is free.
func (p *Pool) Segments() []segments.Segment {
	p.lock()
	defer p.unlock()
	p.catchUp()
	all := p.planned.Segments()
	if p.front == nil {
		return all
	}
	held := p.front.Held() // of what is allocated here: while the lock is held that stays, whatever the front does
	for i, s := range all {
		all[i] = segments.Segment{Address: s.Address, Stream: s.Stream, Small: s.Small}
		for _, b := range s.Blocks {
			if _, ok := held[b.Address]; ok {
				b.State, b.Requested = segments.Inactive, 0
			}
			all[i].Append(b.Bytes, b.Requested, b.State)
		}
	}
	return all
}

// EmptyCache gives free physical memory back, and returns the bytes. It waits for
// queued work. A plan is taken up again at the next iteration.
func (p *Pool) EmptyCache() (released int64) {
	p.lock()
	defer p.unlock()
	p.catchUp()
	p.flush(0, front.All)
	return p.planned.EmptyCache()
}

// Trim gives back so much free physical memory as can be had without waiting.
func (p *Pool) Trim(bytes int64) (released int64) {
	p.lock()
	defer p.unlock()
	p.catchUp()
	p.flush(0, front.All)
	return p.planned.Trim(bytes)
}

// LiveBytes are the bytes of live allocations, as requested; ReservedBytes the
// physical memory. Neither takes the lock.
func (p *Pool) LiveBytes() int64 { return p.live.Load() - heldBytes(p.front) }

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
	s, c := p.stitched.Stats(), p.planned.Stats()
	r := PoolStats{
		Stats: Stats{
			LiveBytes: p.LiveBytes(), LivePeakBytes: p.livePeak, ReservedBytes: s.ReservedBytes, ReservedPeakBytes: max(p.reservedPeak, s.ReservedBytes),
			Allocs: p.allocs, Frees: p.frees, Retries: c.Retries + s.Retries,
		},
		Stitches: s.Stitches, StitchedHandles: s.StitchedHandles, StitchReuses: s.StitchReuses,
		PlanState: c.State, PlanWhy: c.Why, PlanBytes: c.Bytes, Planned: c.Served, PlannedBytes: c.ServedBytes, Scripted: c.Scripted, Unplanned: c.Other,
	}
	if f := p.front; f != nil {
		served, freed := f.Following()
		r.Planned += served
		r.Scripted += served
		r.FrontAllocs = f.Served() + r.Scripted
		r.FrontFrees = f.Served() + f.HeldCount() + p.frontState.flushed + c.ScriptedFrees + freed
		r.FrontPeakBytes = f.LivePeakBytes()
		r.Allocs, r.Frees = r.Allocs+r.FrontAllocs, r.Frees+r.FrontFrees-p.frontState.flushed
	}
	return r
}

// ResetPeaks makes the present the peak.
func (p *Pool) ResetPeaks() {
	p.lock()
	defer p.unlock()
	p.planned.ResetPeaks()
	p.livePeak, p.reservedPeak = p.LiveBytes(), p.stitched.ReservedBytes()
	if p.front != nil {
		p.front.ResetPeak()
	}
}

// Close waits for what runs in the background. Allocations stay valid.
func (p *Pool) Close() {
	p.ServeFront(false)
	p.lock()
	p.planned.Stop()
	p.unlock()
	p.planned.Wait()
}

// Check verifies the invariants.
func (p *Pool) Check() error {
	p.lock()
	defer p.unlock()
	if err := p.planned.Check(); err != nil {
		return err
	}
	if live := p.planned.LiveBytes(); live != p.live.Load() {
		return fmt.Errorf("pool: allocations of %d bytes, %d live", live, p.live.Load())
	}
	return nil
}
