package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool"
)

// TestExplicitPrivatePools: small segments of private pools are physical memory of their own, counted in the budget and
// given back; large ones are tensors.
func TestExplicitPrivatePools(t *testing.T) {
	c := defaults()
	c.Engine, c.HostBudgetBytes = Explicit, 256*mib
	var l *Live
	j := newStubJob(t, func(d *cudastub.Driver, h *strictHook) memory {
		var err error
		if l, err = New(c, d, h, zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		return l
	})
	id := PoolID{1, 2}
	j.must(l.BeginPool(id))
	small, large := j.malloc(4096), j.malloc(2*pool.SmallSegmentBytes)
	j.must(l.EndPool(id))
	plain := func() int64 { return j.l.Stats().Explicit.PlainBytes }
	if plain() != pool.SmallSegmentBytes || j.d.Count("physical_bytes") != pool.SmallSegmentBytes || l.tensors.LiveBytes() == 0 {
		t.Errorf("%d bytes plain, %d of device memory", plain(), j.d.Count("physical_bytes"))
	}
	if !j.h.Published(small) {
		t.Error("the hook does not know the segment")
	}
	x := words(small, 4096)
	x[0], x[1023] = 1, 2 // it is mapped
	j.must(j.launch(work{kind: hook.Launch, queue: func() error { return j.kernel(j.add, uint64(small), 1024, 1) }}))
	j.must(j.l.Free(small))
	j.must(j.l.Free(large))
	j.must(l.ReleasePool(id))
	if plain() != 0 || j.h.Published(small) {
		t.Errorf("%d bytes plain after its release", plain())
	}
	l.EmptyCache()
	if n := j.d.Count("physical_bytes"); n != 0 {
		t.Errorf("%d bytes of device memory", n)
	}
	if n := l.tensors.LiveBytes(); n != 0 {
		t.Errorf("%d bytes of tensors", n)
	}
	j.closed()
}
