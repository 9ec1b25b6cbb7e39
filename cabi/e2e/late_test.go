package e2e

import (
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

// TestAcrossTheWrap: jobs in which the 2^32nd operation comes, at 50,000 a second after a
// day. The words by which streams are gated and report are of 32 bits and begin anew then.
// Every value is checked, as are the engine's accounts.
func TestAcrossTheWrap(t *testing.T) {
	t.Parallel()
	const late = "E2E_FIRST=4294967200" // 96 before
	train, job := program(t, "train"), program(t, "explicit")
	t.Run("managed", func(t *testing.T) { mustRun(t, []string{late}, train) })
	t.Run("explicit", func(t *testing.T) {
		mustRun(t, explicitly(late, "PENSTOCK_HOST_BUDGET=512MiB"), train)
	})
	for _, mode := range []string{"streams", "graphs", "train", "frozen", "ownstreams", "copies", "freed", "race", "manystreams"}[:short.Of(9, 1)] {
		t.Run(mode, func(t *testing.T) {
			r := mustRun(t, explicitly(late, "PENSTOCK_POLICY=lru"), job, mode)
			if all, _ := explicitStats(t, r); all["failure"] != nil || all["dropped_records"] != 0.0 {
				t.Errorf("%v", all)
			}
		})
	}
}
