package replay

import (
	"testing"

	"github.com/penstock-gpu/penstock/internal/testlogs"
)

// BenchmarkPenstock is the engine and the simulated GPU together, on a recorded job under a software cap.
func BenchmarkPenstock(b *testing.B) {
	tr, p := testlogs.Load(b, "gpt2m"), h200(b)
	for b.Loop() {
		mustRun(b, tr, Options{Policy: PolicyPenstock, Ratio: 1.5, Profile: p, SoftwareCap: true})
	}
}
