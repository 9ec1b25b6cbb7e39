package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

// newExplicitJob is a job whose memory the explicit engine has.
func newExplicitJob(t *testing.T) (l *Live, j *livetest.Job) {
	c := defaults()
	c.Engine, c.HostBudgetBytes = Explicit, 256*mib
	j = livetest.NewJob(t, func(d *cudastub.Driver, h *livetest.StrictHook) livetest.Memory {
		var err error
		if l, err = New(c, d, h, zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		return l
	})
	return l, j
}

// TestExplicitPrivatePools: small segments of private pools are physical memory of their own, counted in the budget and
// given back; large ones are tensors.
func TestExplicitPrivatePools(t *testing.T) {
	l, j := newExplicitJob(t)
	id := PoolID{1, 2}
	j.Must(l.BeginPool(id))
	small, large := j.Malloc(4096), j.Malloc(2*pool.SmallSegmentBytes)
	j.Must(l.EndPool(id))
	plain := func() int64 { return j.Memory.Stats().Explicit.PlainBytes }
	if plain() != pool.SmallSegmentBytes || j.Driver.Count("physical_bytes") != pool.SmallSegmentBytes || l.Tensors.LiveBytes() == 0 {
		t.Errorf("%d bytes plain, %d of device memory", plain(), j.Driver.Count("physical_bytes"))
	}
	if !j.Hook.Published(small) {
		t.Error("the hook does not know the segment")
	}
	x := livetest.Words(small, 4096)
	x[0], x[1023] = 1, 2 // it is mapped
	j.Must(j.Launch(livetest.Work{Kind: hook.Launch, Run: func() error { return j.Kernel(j.Add, uint64(small), 1024, 1) }}))
	j.Must(j.Memory.Free(small))
	j.Must(j.Memory.Free(large))
	j.Must(l.ReleasePool(id))
	if plain() != 0 || j.Hook.Published(small) {
		t.Errorf("%d bytes plain after its release", plain())
	}
	l.EmptyCache()
	if n := j.Driver.Count("physical_bytes"); n != 0 {
		t.Errorf("%d bytes of device memory", n)
	}
	if n := l.Tensors.LiveBytes(); n != 0 {
		t.Errorf("%d bytes of tensors", n)
	}
	j.Closed()
}
