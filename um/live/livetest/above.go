package livetest

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// Above is what stands above an engine, as far as its tests need it: tensors are the engine's, what is smaller lies in a
// pool of plain memory where the driver can map some.
type Above struct {
	*process.Process
	pool *pool.Pool // nil: there is none
}

// Serve puts the engine in its place, and makes plain memory.
func (a *Above) Serve(t *testing.T, e process.Engine) {
	t.Helper()
	p := a.Process
	a.Engine, a.Plain = e, NoPlain{}
	a.Budget = p.Config.BudgetBytes
	a.PlainBudget.Store(a.Budget)
	if p.Driver.Capabilities().VirtualMemory {
		var c pool.Config
		c.Stitch.ReserveBytes = 1 << 30
		var err error
		if a.pool, err = pool.New(c, e.PlainDriver(p.Driver), a, fences{}); err != nil {
			t.Fatal(err)
		}
		a.Plain = a.pool
	}
}

// NoPlain is where there is no plain memory.
type NoPlain struct{}

func (NoPlain) LiveBytes() int64  { return 0 }
func (NoPlain) NoteBesides(int64) {}
func (NoPlain) ServeFront(bool)   {}
func (NoPlain) Close()            {}

// fences are those of streams that have passed everything.
type fences struct{}

func (fences) Fence(uint64) (any, error) { return 0, nil }
func (fences) Passed(any) bool           { return true }
func (fences) Wait(any) error            { return nil }

// Take and Give are the pool's budget.
func (a *Above) Take(bytes int64) error { return a.Engine.TakePlain(bytes) }
func (a *Above) Give(bytes int64)       { a.AddPlain(-bytes) }

func (a *Above) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes >= um.SmallBytes {
		return a.Engine.Malloc(bytes, stream)
	}
	return a.pool.Malloc(bytes, stream)
}

func (a *Above) Free(p cuda.Ptr) error {
	if a.pool == nil || a.Engine.Owns(p) {
		return a.Engine.Free(p)
	}
	return a.pool.Free(p)
}

func (a *Above) RecordStream(p cuda.Ptr, stream uint64) error {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Engine.CatchUp()
	return a.Tensors.RecordStream(p, a.Streams.Number(stream))
}

func (a *Above) EmptyCache() {
	if a.Synchronize() == nil {
		if a.pool != nil {
			a.pool.EmptyCache()
		}
		a.Engine.Empty()
	}
}

func (a *Above) Stats() stats.Stats {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Engine.CatchUp()
	s := stats.Stats{AllocatedBytes: a.LiveBytes(), ReservedBytes: a.ReservedBytes(), BudgetBytes: a.Budget, Faults: stats.Unavailable, Hooked: a.Hook != nil}
	if a.Failed != nil {
		s.Failure = a.Failed.Error()
	}
	a.Engine.Report(&s)
	return s
}

// Containing and TryContaining are the blocks of plain memory.
func (a *Above) Containing(p cuda.Ptr) (cuda.Range, bool) { return a.pool.Containing(p) }
func (a *Above) TryContaining(p cuda.Ptr) (r cuda.Range, ok, busy bool) {
	return a.pool.TryContaining(p)
}
