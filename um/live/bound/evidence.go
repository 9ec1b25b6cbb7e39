package bound

import (
	"bytes"

	"github.com/penstock-gpu/penstock/trace"
)

// Evidence is what a job leaves for those who simulate an oracle of it: its last iterations, and what it had to run them in.
type Evidence struct {
	Device            string  `json:"device"`       // the card's name
	BudgetBytes       int64   `json:"budget_bytes"` // that could be swapped
	InBytesPerSecond  float64 `json:"in_bytes_per_second"`
	OutBytesPerSecond float64 `json:"out_bytes_per_second"`
	Recording         []byte  `json:"recording"` // of package trace
}

// Record puts the iterations into the evidence.
func (e *Evidence) Record(t *trace.Trace) error {
	var out bytes.Buffer
	w, err := trace.NewWriter(&out, trace.Header{}, trace.WriterOptions{FlushEvery: -1})
	if err != nil {
		return err
	}
	for i := range t.Events {
		if err := w.Append(&t.Events[i]); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	e.Recording = out.Bytes()
	return nil
}

// Trace is what was recorded.
func (e *Evidence) Trace() (*trace.Trace, error) { return trace.Parse("recent", e.Recording) }

// Judgement is a bound, or what it takes to find one.
type Judgement struct {
	Bound
	Evidence *Evidence `json:"oracle_evidence,omitempty"` // of a job that nobody has judged
}

// Report is the part of a job's report that this is about.
type Report struct {
	Explicit *Judgement `json:"explicit"`
}
