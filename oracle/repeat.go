package oracle

import "github.com/penstock-gpu/penstock/trace"

// Followed is a trace up to the end of its last full iteration and, behind a mark that says so, that iteration once
// more: what [Run] looks at unless [Options.NoRepeat] is set. Where the iteration does not repeat
// it is the trace as it is, and false.
func Followed(t *trace.Trace) (*trace.Trace, bool) {
	n := len(t.Iterations())
	again, err := t.Repeat(n + 1)
	if err != nil {
		return t, false
	}
	repetition := again.Iterations()[n]
	again.Events = again.Events[:repetition.End]
	again.Events[repetition.First-1].Name = trace.MarkEnd
	return again, true
}
