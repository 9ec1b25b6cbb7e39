package explicit

import (
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// atTheTurn is a runtime with n tensors on the host that the next operations use and that are
// planned to come, after one operation for which memory has to be mapped. busy: before that
// one the device has another to run.
func atTheTurn(t *testing.T, budgetChunks, n int64, busy, soon bool) *Runtime {
	t.Helper()
	const chunk = 8 << 20
	b := newBystander()
	r := New(Config{BudgetBytes: budgetChunks * chunk, HostBudgetBytes: 64 * chunk, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}, ChunkBytes: chunk}, b)
	var seq uint64
	use := func(x *tensor) {
		seq++
		r.Op(um.Op{Seq: seq, Slots: []uint32{x.Slot}, Name: "kernel"})
	}
	make := func() *tensor {
		p, err := r.Malloc(chunk, 0)
		if err != nil {
			t.Fatal(err)
		}
		return r.ByPtr[p]
	}
	move := func(d um.Direction, want Kind) {
		t.Helper()
		m, ok := r.Next(d)
		if !ok || m.Kind != want {
			t.Fatalf("%v, want %v", m, want)
		}
		m.Handle = max(m.Handle, 77)
		r.Done(m)
	}
	plans := func(p plan) {
		p.valid, p.serial, p.epoch, p.version = true, r.plan.serial+1, r.Epoch(), r.History.Version()
		for _, x := range p.evict {
			x.serial, x.leaves = p.serial, x.size
		}
		r.plan = p
	}
	var away []*tensor
	for range n {
		x := make()
		use(x)
		move(um.In, MoveMap)
		r.Progress(0, seq)
		plans(plan{evict: []*tensor{x}})
		move(um.Out, MoveEvict)
		away = append(away, x)
	}
	if busy {
		x := make()
		use(x)
		move(um.In, MoveMap)
	}
	use(make())
	if soon {
		for _, x := range away {
			use(x)
		}
	}
	plans(plan{fetch: slices.Clone(away)})
	return r
}

// TestTheBusIsNotLeftIdle: what is needed soon comes before memory is mapped for the launch that
// waits, unless the launch needs the room or, with one of them under way, the device has nothing else to do.
func TestTheBusIsNotLeftIdle(t *testing.T) {
	for name, c := range map[string]struct {
		budgetChunks int64
		busy, soon   bool
		want         []Kind
	}{
		"the device waits":  {32, false, true, []Kind{MoveFetch, MoveMap}},
		"the device works":  {32, true, true, []Kind{MoveFetch, MoveFetch, MoveFetch, MoveMap}},
		"needed much later": {32, true, false, []Kind{MoveMap}},
		"room for one":      {2, true, true, []Kind{MoveMap}},
	} {
		t.Run(name, func(t *testing.T) {
			r := atTheTurn(t, c.budgetChunks, 6, c.busy, c.soon)
			for i, want := range c.want {
				m, ok := r.Next(um.In)
				if !ok || m.Kind != want {
					t.Fatalf("move %d is %v, want %v", i, m, want)
				}
				if m.Handle = max(m.Handle, 78); want == MoveFetch {
					r.Submitted(m, uint32(i+1))
				} else {
					r.Done(m)
				}
			}
		})
	}
}
