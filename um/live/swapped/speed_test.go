package swapped

import (
	"testing"

	"github.com/penstock-gpu/penstock/um/live/livetest"
)

// TestProgressed: how far the job is counts from when something has left the device; an estimate of its speed in memory takes like
// iterations, and without any there is none.
func TestProgressed(t *testing.T) {
	j := newJob(t, defaults())
	first := j.Malloc(4 * mib)
	j.Fill(first, 4*mib, 1)
	progressed := func() (ops, period int64, waited bool) {
		j.l.Mu.Lock()
		defer j.l.Mu.Unlock()
		j.e.CatchUp()
		m, settled, replays := j.e.Progressed()
		if !settled || replays {
			t.Error("something is tried out, or made again")
		}
		return m.Ops, m.Period, m.Memory > 0
	}
	if ops, _, waited := progressed(); ops != 0 || waited {
		t.Errorf("%d operations before anything has left", ops)
	}
	tensors := j.Oversubscribe(stubTensors)
	for _, p := range tensors {
		j.Increase(p, livetest.TensorBytes, 1)
	}
	ops, period, waited := progressed()
	if ops < int64(2*len(tensors)) || !waited {
		t.Errorf("%d operations, launches have waited: %t", ops, waited)
	}
	if s := j.e.InMemory(max(1, period)); s != 0 {
		t.Errorf("%v s an operation in memory, of no three iterations", s)
	}
	j.Closed()
}
