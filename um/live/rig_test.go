package live

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

const mib = livetest.MiB

// rig is an engine between the two.
type rig struct {
	*testing.T
	l *Live
	d *livetest.Driver
	h *livetest.Hook
}

func defaults() Config {
	return Config{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 64 * mib}
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	r := &rig{T: t, d: livetest.NewDriver(1 << 30), h: livetest.NewHook()}
	l, err := New(c, r.d, r.h, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r.l = l
	t.Cleanup(func() { _ = l.Close() }) // tests that expect nothing else close it themselves
	return r
}

func (r *rig) malloc(bytes int64, stream uint64) cuda.Ptr {
	r.Helper()
	p, err := r.l.Malloc(bytes, stream)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// eventually waits for what the engine's threads bring about.
func (r *rig) eventually(what string, holds func() bool) {
	r.Helper()
	for until := time.Now().Add(20 * time.Second); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(until) {
			r.Fatalf("not so after 20 s: %s\n%+v", what, r.l.Stats())
		}
	}
}
