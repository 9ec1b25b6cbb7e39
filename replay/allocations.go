package replay

import (
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
)

// allocations are those of the trace in an engine's hands: tensors in its runtime,
// smaller ones in a pool of plain memory.
type allocations struct {
	engine  um.Engine
	small   *pool.Caching // of what is no tensor
	changed func()        // the engine may have something to do

	smalls map[uint64]cuda.Ptr   // by the trace's allocation id
	ranges map[uint64]cuda.Range // of the tensors
	slots  []uint32              // of the operation that is being launched
}

func newAllocations(plain pool.Source, changed func()) allocations {
	return allocations{
		small: pool.NewCaching(plain, nil), changed: changed,
		smalls: map[uint64]cuda.Ptr{}, ranges: map[uint64]cuda.Range{},
	}
}

func (a *allocations) alloc(e *trace.Event) error {
	if e.Bytes < um.SmallBytes {
		p, err := a.small.Malloc(max(1, e.Bytes), 0)
		a.smalls[e.Alloc] = p
		return err
	}
	p, err := a.engine.Malloc(e.Bytes, 0)
	if err != nil {
		return err
	}
	a.ranges[e.Alloc] = cuda.Range{Base: p, Bytes: e.Bytes}
	a.changed()
	return nil
}

func (a *allocations) free(e *trace.Event) error {
	if p, ok := a.smalls[e.Alloc]; ok {
		delete(a.smalls, e.Alloc)
		return a.small.Free(p)
	}
	r, ok := a.ranges[e.Alloc]
	if !ok {
		return nil // it was allocated before the recording began
	}
	delete(a.ranges, e.Alloc)
	a.changed()
	return a.engine.Free(r.Base)
}

// accesses are what an operation does to tensors, each once; slots are then theirs.
func (a *allocations) accesses(e *trace.Event) (all []sim.Access) {
	a.slots = a.slots[:0]
	for _, x := range e.Accesses {
		r, ok := a.ranges[x.Alloc]
		if !ok {
			continue
		}
		slot := a.engine.SlotOf(r.Base)
		if slices.Contains(a.slots, slot) {
			continue
		}
		a.slots = append(a.slots, slot)
		all = append(all, sim.Access{Range: r, Read: x.Mode != trace.AccessWrite, Write: x.Mode != trace.AccessRead})
	}
	return all
}
