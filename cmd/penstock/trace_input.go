package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

// input is a trace with what deciding about a replay takes.
type input struct {
	*trace.Trace
	peakBytes int64
	largest   trace.Launch
}

// loadInput reads a trace. Of a damaged one it takes the intact part if told to.
func loadInput(ctx context.Context, path string, acceptDamaged bool, notes io.Writer) (input, error) {
	tr, err := loadTrace(ctx, path)
	return checkInput(tr, err, acceptDamaged, notes)
}

func loadTrace(ctx context.Context, path string) (*trace.Trace, error) {
	return interruptible(ctx, func() (*trace.Trace, error) { return trace.Load(path) })
}

// shippedInput is the trace inside the program.
func shippedInput() (input, error) {
	tr, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		return input{}, internalf("the shipped trace: %w", err)
	}
	return checkInput(tr, nil, false, io.Discard)
}

func checkInput(tr *trace.Trace, err error, acceptDamaged bool, notes io.Writer) (input, error) {
	if err := intact(tr, err, acceptDamaged, notes); err != nil {
		return input{}, err
	}
	in := input{Trace: tr, peakBytes: tr.PeakLiveBytes(), largest: tr.LargestLaunch()}
	if in.largest.Event < 0 || in.peakBytes == 0 {
		return input{}, fmt.Errorf("trace %s has no launch on any memory, so there is nothing to replay: record a training run with penstock run --trace and a --budget, without which launches are not recorded", tr.Name)
	}
	marked := len(tr.Iterations()) > 0
	if !tr.MarkIterations() && !tr.MarkDiffering() {
		return input{}, fmt.Errorf("trace %s has no full iteration: it has no marks (iter0, iter1, ... end), and no launches that repeat, or come again, for half of it: record more iterations", tr.Name)
	}
	if !tr.EstimateDurations() && tr.Durations() == trace.DurationsNone {
		return input{}, fmt.Errorf("trace %s does not say how long its kernels took, nor when its streams had got how far, so nothing can be simulated: record it with penstock run --trace and a --budget", tr.Name)
	}
	switch all := tr.Iterations(); {
	case tr.Differ:
		_, judged := tr.Judged()
		fmt.Fprintf(notes, "penstock: %s has no marks: %d iterations were found, no two of them alike; what is said is the mean of the last %d\n", tr.Name, len(all), judged)
	case !marked:
		fmt.Fprintf(notes, "penstock: %s has no marks: %d iterations were found, of %d launches and copies each\n", tr.Name, len(all), tr.Operations(all[0]))
	}
	if e := tr.Estimate; e != nil {
		fmt.Fprintf(notes, "penstock: the durations of %s are estimated: %s\n", tr.Name, estimateText(e))
	}
	return in, nil
}

// estimateText says what estimated durations are worth.
func estimateText(e *trace.Estimate) string {
	text := fmt.Sprintf("%d times it was seen how far a stream had got, for %d launches and copies", e.Progress, e.Operations)
	if e.Timed > 0 {
		text += fmt.Sprintf("; %d were timed, of kinds that have %.0f %% of the time", e.Timed, 100*e.TimedShare)
	}
	if e.Unknown > 0 {
		text += fmt.Sprintf("; %d were never seen to end and count as 0 s", e.Unknown)
	}
	if e.Moves > 0 {
		text += fmt.Sprintf("; %d moves to the device while it was recorded may have made some longer: record with a --budget that everything fits in", e.Moves)
	}
	return text
}

// intact decides whether what was read of a trace will do.
func intact(tr *trace.Trace, err error, acceptDamaged bool, notes io.Writer) error {
	var damage *trace.DamageError
	switch {
	case errors.As(err, &damage) && acceptDamaged && len(tr.Events) > 0:
		fmt.Fprintf(notes, "penstock: using the %d intact events: %v\n", len(tr.Events), err)
		return nil
	case errors.As(err, &damage) && len(tr.Events) > 0:
		return fmt.Errorf("%w with --accept-damaged", err)
	}
	return err
}

// budgetAt is the device memory that a ratio leaves.
func (in input) budgetAt(ratio float64) int64 { return int64(float64(in.peakBytes) / ratio) }

// fits says why a budget is impossible.
func (in input) fits(budget int64) error {
	if budget >= in.largest.Bytes {
		return nil
	}
	most := int64(float64(in.peakBytes) / float64(in.largest.Bytes) * 100) // hundredths, rounded down
	return fmt.Errorf("trace %s cannot run in a budget of %s: one launch of kernel %s touches %d bytes (%s): give --budget %d or more, or a ratio of at most %d.%02d",
		in.Name, sizeText(budget), shortName(in.largest.Kernel), in.largest.Bytes, size.Text(in.largest.Bytes), in.largest.Bytes, most/100, most%100)
}

// sizeText gives a size exactly and readably.
func sizeText(bytes int64) string {
	return fmt.Sprintf("%d bytes (%s)", bytes, size.Text(bytes))
}

// shortName keeps a mangled name of many template arguments on one line.
func shortName(name string) string {
	const most = 300
	if len(name) > most {
		return name[:most] + "..."
	}
	return name
}
