package replay

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/trace"
)

// naive is the stock driver: PyTorch's caching allocator over managed segments,
// kernels that fault for what is missing, the driver's own eviction. Dead bytes
// are moved like any others, because the pager cannot know.
type naive struct {
	app     *application
	gpu     *sim.GPU
	driver  *sim.Thread
	pool    *pool.Caching
	streams *streamNumbers
	where   map[uint64]cuda.Range
}

func newNaive(t *trace.Trace, o Options, budget int64) *naive {
	g := sim.New(o.Profile, sim.Options{CapacityBytes: budget})
	n := &naive{gpu: g, driver: g.Thread("application"), where: map[uint64]cuda.Range{}}
	n.pool = pool.NewCaching(managedSource{n.driver}, nil)
	n.streams = newStreamNumbers(n.driver)
	n.app = newApplication(t, o, g, n)
	return n
}

// managedSource makes segments of managed memory, as a caching allocator does
// whose cudaMalloc was replaced by cudaMallocManaged.
type managedSource struct{ driver cuda.Driver }

func (s managedSource) Acquire(bytes int64) (cuda.Ptr, error) { return s.driver.MemAllocManaged(bytes) }
func (s managedSource) Release(p cuda.Ptr, _ int64) error     { return s.driver.MemFree(p) }

func (n *naive) alloc(e *trace.Event) error {
	p, err := n.pool.Malloc(max(1, e.Bytes), 0)
	if err != nil {
		return err
	}
	n.where[e.Alloc] = cuda.Range{Base: p, Bytes: e.Bytes}
	return nil
}

func (n *naive) free(e *trace.Event) error {
	r, ok := n.where[e.Alloc]
	if !ok {
		return nil // it was allocated before the recording began
	}
	delete(n.where, e.Alloc)
	return n.pool.Free(r.Base)
}

func (n *naive) launch(e *trace.Event, finished func(time.Duration)) {
	s, _, err := n.streams.of(e.Stream)
	if err != nil {
		n.app.err = err
		return
	}
	k := sim.Kernel{Duration: duration(e), Done: finished}
	for _, x := range e.Accesses {
		if r, ok := n.where[x.Alloc]; ok && r.Bytes > 0 {
			k.Accesses = append(k.Accesses, sim.Access{Range: r, Read: x.Mode != trace.AccessWrite, Write: x.Mode != trace.AccessRead})
		}
	}
	n.gpu.Launch(s, k)
}

func (n *naive) sample(*Sample) {}

func (n *naive) predictions() (ops, predicted int64) { return 0, 0 }

func (n *naive) settle() error { return n.pool.Check() }
