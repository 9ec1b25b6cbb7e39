package paged

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda/uvm"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

const mib = livetest.MiB

// rig is the engine between test doubles of the driver and of the launch hook.
type rig struct {
	livetest.Test
	l *livetest.Above
	d *livetest.Driver
	h *livetest.Hook
	e *Engine
}

func defaults() process.Config {
	return process.Config{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 64 * mib}
}

func newRig(t *testing.T, c process.Config, limit ...int64) *rig {
	t.Helper()
	r := &rig{Test: livetest.Test{T: t}, d: livetest.NewDriver(1 << 30), h: livetest.NewHook()}
	proc := process.New(c, r.d, r.h, zap.NewNop())
	own := Config{}
	if len(limit) > 0 {
		own.LimitBytes = limit[0]
	}
	r.e = New(proc, own)
	r.l = &livetest.Above{Process: proc}
	r.Memory = r.l
	r.l.Serve(t, r.e)
	r.Must(r.e.Start())
	t.Cleanup(func() { _ = r.l.Close() }) // tests that expect nothing else close it themselves
	return r
}

// holdBack makes the engine believe that it can hold launches back, as with the
// unified-memory driver at hand. Its movers stay those of the fake driver.
func (r *rig) holdBack() {
	const workers = 4
	r.Eventually("every worker has its mover", func() bool {
		r.d.Mu.Lock()
		defer r.d.Mu.Unlock()
		return r.d.Streams == workers
	})
	r.l.Mu.Lock()
	defer r.l.Mu.Unlock()
	r.e.space = new(uvm.Space)
}
