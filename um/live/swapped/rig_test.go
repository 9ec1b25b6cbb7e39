package swapped

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

const mib = livetest.MiB

// job is a job under the engine.
type job struct {
	*livetest.Job
	l *livetest.Above
	e *Engine
}

// jobConfig is what such a job can be given.
type jobConfig struct {
	process.Config
	own
}

type own = Config

func defaults() jobConfig {
	return jobConfig{Config: process.Config{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 256 * mib}}
}

func newJob(t *testing.T, c jobConfig, env ...string) *job {
	t.Helper()
	j := &job{}
	j.Job = livetest.NewJob(t, func(d *cudastub.Driver, h *livetest.StrictHook) livetest.Memory {
		j.l = &livetest.Above{Process: process.New(c.Config, d, h, zap.NewNop())}
		j.e = New(j.l.Process, c.own, j.l)
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
func (j *job) locked(f func(e *Engine)) {
	j.l.Mu.Lock()
	defer j.l.Mu.Unlock()
	f(j.e)
}
