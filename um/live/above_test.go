package live

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/um"
)

// above is what stands above an engine, as far as its tests need it: tensors are the engine's, what is smaller lies in a
// pool of plain memory where the driver can map some.
type above struct {
	*Process
	pool *pool.Pool // nil: there is none
}

// serve puts the engine in its place, and makes plain memory.
func (a *above) serve(t *testing.T, e engine) {
	t.Helper()
	p := a.Process
	a.engine, a.plain = e, noPlain{}
	a.budget = p.config.BudgetBytes
	a.plainBudget.Store(a.budget)
	if p.driver.Capabilities().VirtualMemory {
		var c pool.Config
		c.Stitch.ReserveBytes = 1 << 30
		var err error
		if a.pool, err = pool.New(c, e.plainDriver(p.driver), a, fences{}); err != nil {
			t.Fatal(err)
		}
		a.plain = a.pool
	}
}

// noPlain is where there is no plain memory.
type noPlain struct{}

func (noPlain) LiveBytes() int64  { return 0 }
func (noPlain) NoteBesides(int64) {}
func (noPlain) ServeFront(bool)   {}
func (noPlain) Close()            {}

// fences are those of streams that have passed everything.
type fences struct{}

func (fences) Fence(uint64) (any, error) { return 0, nil }
func (fences) Passed(any) bool           { return true }
func (fences) Wait(any) error            { return nil }

// Take and Give are the pool's budget.
func (a *above) Take(bytes int64) error { return a.engine.takePlain(bytes) }
func (a *above) Give(bytes int64)       { a.addPlain(-bytes) }

func (a *above) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes >= um.SmallBytes {
		return a.engine.malloc(bytes, stream)
	}
	return a.pool.Malloc(bytes, stream)
}

func (a *above) Free(p cuda.Ptr) error {
	if a.pool == nil || a.engine.owns(p) {
		return a.engine.free(p)
	}
	return a.pool.Free(p)
}

func (a *above) RecordStream(p cuda.Ptr, stream uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.engine.catchUp()
	return a.tensors.RecordStream(p, a.streams.Number(stream))
}

func (a *above) EmptyCache() {
	if a.synchronize() == nil {
		if a.pool != nil {
			a.pool.EmptyCache()
		}
		a.engine.empty()
	}
}

func (a *above) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.engine.catchUp()
	s := Stats{AllocatedBytes: a.liveBytes(), ReservedBytes: a.reservedBytes(), BudgetBytes: a.budget, Faults: unavailable, Hooked: a.hook != nil}
	if a.failed != nil {
		s.Failure = a.failed.Error()
	}
	a.engine.report(&s)
	return s
}

// Containing and TryContaining are the blocks of plain memory.
func (a *above) Containing(p cuda.Ptr) (cuda.Range, bool) { return a.pool.Containing(p) }
func (a *above) TryContaining(p cuda.Ptr) (r cuda.Range, ok, busy bool) {
	return a.pool.TryContaining(p)
}
