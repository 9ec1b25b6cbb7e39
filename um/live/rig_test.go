package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

const mib = livetest.MiB

// rig is an engine between the two.
type rig struct {
	livetest.Test
	l *Live
	d *livetest.Driver
	h *livetest.Hook
}

func defaults() Config {
	return Config{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 64 * mib}
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	r := &rig{Test: livetest.Test{T: t}, d: livetest.NewDriver(1 << 30), h: livetest.NewHook()}
	l, err := New(c, r.d, r.h, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r.l, r.Memory = l, l
	t.Cleanup(func() { _ = l.Close() }) // tests that expect nothing else close it themselves
	return r
}
