package e2e

import (
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

// TestContexts: a job with a context beside the one of its tensors. Where one's default stream is taken for the
// other's, a tensor leaves while a kernel writes to it.
func TestContexts(t *testing.T) {
	t.Parallel()
	job := program(t, "contexts")
	managed := []string{"PENSTOCK_ENGINE=managed", "STUB_ABORT=1", "STUB_API_LOCK=1"}
	explicit := explicitly("PENSTOCK_POLICY=lru")
	none := []string{"PENSTOCK_ENGINE=none", "STUB_API_LOCK=1"}
	for _, c := range []struct {
		name, mode string
		env        []string
	}{
		{"default", "default", explicit},
		{"stream", "stream", explicit},
		{"green", "green", explicit},
		{"plain", "plain", explicit},
		{"managed current", "current", managed},
		{"current", "current", explicit},
		{"managed plain", "plain", managed},
		{"none current", "current", none},
	}[:short.Of(8, 5)] {
		t.Run(c.name, func(t *testing.T) { mustRun(t, c.env, job, c.mode) })
	}
}
