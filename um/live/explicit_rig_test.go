package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// swapJob is a job under the engine.
type swapJob struct {
	*livetest.Job
	l *livetest.Above
	e *swap
}

// swapJobConfig is what such a job can be given.
type swapJobConfig struct {
	process.Config
	swapConfig
}

func explicitConfig() swapJobConfig {
	return swapJobConfig{Config: process.Config{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 256 * mib}}
}

func newSwapJob(t *testing.T, c swapJobConfig, env ...string) *swapJob {
	t.Helper()
	j := &swapJob{}
	j.Job = livetest.NewJob(t, func(d *cudastub.Driver, h *livetest.StrictHook) livetest.Memory {
		j.l = &livetest.Above{Process: process.New(c.Config, d, h, zap.NewNop())}
		j.e = newSwap(j.l.Process, c.swapConfig, j.l)
		j.l.Serve(t, j.e)
		if err := j.e.Start(); err != nil {
			t.Fatal(err)
		}
		// Pinned memory, which a job has to its end, is more than a machine has for all these jobs together.
		t.Cleanup(func() {
			if d.StreamSynchronize(j.Stream) == nil {
				_ = j.e.host.Close()
			}
		})
		return j.l
	}, env...)
	return j
}

// locked runs with the engine's lock.
func (j *swapJob) locked(f func(e *swap)) {
	j.l.Mu.Lock()
	defer j.l.Mu.Unlock()
	f(j.e)
}
