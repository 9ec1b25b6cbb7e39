package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/um"
)

// swapJob is a job under the engine.
type swapJob struct {
	*stubJob
	l *above
	e *swap
}

// swapJobConfig is what such a job can be given.
type swapJobConfig struct {
	processConfig
	swapConfig
}

func explicitConfig() swapJobConfig {
	return swapJobConfig{processConfig: processConfig{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 256 * mib}}
}

func newSwapJob(t *testing.T, c swapJobConfig, env ...string) *swapJob {
	t.Helper()
	j := &swapJob{}
	j.stubJob = newStubJob(t, func(d *cudastub.Driver, h *strictHook) memory {
		j.l = &above{Process: newProcess(c.processConfig, d, h, zap.NewNop())}
		j.e = newSwap(j.l.Process, c.swapConfig, j.l)
		j.l.serve(t, j.e)
		if err := j.e.start(); err != nil {
			t.Fatal(err)
		}
		// Pinned memory, which a job has to its end, is more than a machine has for all these jobs together.
		t.Cleanup(func() {
			if d.StreamSynchronize(j.stream) == nil {
				_ = j.e.host.Close()
			}
		})
		return j.l
	}, env...)
	return j
}

// locked runs with the engine's lock.
func (j *swapJob) locked(f func(e *swap)) {
	j.l.mu.Lock()
	defer j.l.mu.Unlock()
	f(j.e)
}
