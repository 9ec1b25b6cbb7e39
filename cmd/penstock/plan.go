package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/pool/plan"
)

// planFlags are the flags as given.
type planFlags struct {
	trace, csv, capacity, time, out string
	json, acceptDamaged             bool
}

// planResult is what is said about a plan.
type planResult struct {
	Input          string  `json:"input"`
	Requests       int     `json:"requests"`
	PeakLiveBytes  int64   `json:"peak_live_bytes"` // as requested
	PlannedBytes   int64   `json:"planned_bytes"`   // arena and unplanned
	CapacityBytes  int64   `json:"capacity_bytes,omitempty"`
	PlannedOver    float64 `json:"planned_over_peak"`
	PlanSeconds    float64 `json:"plan_seconds"`
	Fits           bool    `json:"fits"`                      // in the capacity, when one was given
	Prologue       int     `json:"prologue_calls,omitempty"`  // of a trace
	Period         int     `json:"period_calls,omitempty"`    // of a trace
	Iterations     int     `json:"iterations,omitempty"`      // of a trace, in a period
	UnplannedBytes int64   `json:"unplanned_bytes,omitempty"` // of a trace: in planned_bytes
	isTrace        bool
}

// newPlanCommand is `penstock plan`.
func newPlanCommand() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan (--trace FILE | --csv FILE)",
		Short: "Decide where every allocation of a job goes",
		Long: `Plan the memory of a job: find the iteration that repeats in a recorded run and
give every allocation an offset, so that what is alive together does not overlap and
as little as possible is needed. Or place the requests of a CSV file in the format of
google/minimalloc. A plan that does not fit in --capacity is no error: see "fits".`,
		Example: `  penstock plan --trace run.pstrace --out plan.json
  penstock plan --csv A.1048576.csv --capacity 1048576 --time 60s --out placements.csv --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	textFlag(cmd, &f.trace, "trace")
	textFlag(cmd, &f.csv, "csv")
	textFlag(cmd, &f.capacity, "capacity")
	textFlag(cmd, &f.time, "time")
	textFlag(cmd, &f.out, "out")
	boolFlag(cmd, &f.json, "json")
	boolFlag(cmd, &f.acceptDamaged, "accept-damaged")
	return cmd
}

func (f *planFlags) run(cmd *cobra.Command) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	if f.out != "" {
		if err := checkOutput("out", f.out); err != nil {
			return err
		}
	}
	var r planResult
	if f.trace != "" {
		r, err = f.planTrace(cmd, o)
	} else {
		r, err = f.placeCSV(cmd, o)
	}
	if err != nil {
		return err
	}
	r.CapacityBytes = o.CapacityBytes
	r.Fits = o.CapacityBytes == 0 || r.PlannedBytes <= o.CapacityBytes
	r.PlannedOver = 1
	if r.PeakLiveBytes > 0 {
		r.PlannedOver = float64(r.PlannedBytes) / float64(r.PeakLiveBytes)
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return r.write(cmd.OutOrStdout())
}

// options checks the flags.
func (f *planFlags) options() (plan.Options, error) {
	var o plan.Options
	switch {
	case f.trace == "" && f.csv == "":
		return o, errors.New("nothing to plan: give --trace FILE or --csv FILE")
	case f.trace != "" && f.csv != "":
		return o, errors.New("--trace and --csv both say what to plan: give one of them")
	case f.csv != "" && f.acceptDamaged:
		return o, errors.New("--accept-damaged is for traces: leave it out with --csv")
	}
	var err error
	if f.capacity != "" {
		if o.CapacityBytes, err = options.ParseBytes(f.capacity); err == nil && o.CapacityBytes == 0 {
			err = errors.New("nothing fits in 0 bytes: give more, or leave it out for as little as can be")
		}
		if err != nil {
			return o, fmt.Errorf("--capacity: %w", err)
		}
	}
	if o.TimeLimit, err = time.ParseDuration(f.time); err != nil || o.TimeLimit <= 0 {
		return o, fmt.Errorf("--time: %q is no time above 0: write one such as 60s or 2m", f.time)
	}
	return o, nil
}

func (f *planFlags) planTrace(cmd *cobra.Command, o plan.Options) (planResult, error) {
	tr, err := loadTrace(cmd.Context(), f.trace)
	if err := intact(tr, err, f.acceptDamaged, cmd.ErrOrStderr()); err != nil {
		return planResult{}, err
	}
	peak := tr.PeakLiveBytes()
	if peak == 0 {
		return planResult{}, fmt.Errorf("trace %s allocates nothing, so there is nothing to plan: record a training run", tr.Name)
	}
	begun := time.Now()
	done := showSearch(cmd.ErrOrStderr(), &o, peak)
	p, err := plan.FromTrace(cmd.Context(), tr, o)
	done()
	if err = interrupted(cmd.Context(), err); err != nil {
		return planResult{}, err
	}
	r := planResult{Input: tr.Name, Requests: len(p.Prologue) + len(p.Period), PeakLiveBytes: p.PeakLiveBytes, PlannedBytes: p.ArenaBytes + p.UnplannedBytes,
		PlanSeconds: time.Since(begun).Seconds(), Prologue: len(p.Prologue), Period: len(p.Period), Iterations: p.Iterations,
		UnplannedBytes: p.UnplannedBytes, isTrace: true}
	if f.out != "" {
		return r, writeOutput("out", f.out, p.Write)
	}
	return r, nil
}

func (f *planFlags) placeCSV(cmd *cobra.Command, o plan.Options) (planResult, error) {
	in, err := plan.ReadCSVFile(f.csv)
	if err != nil {
		return planResult{}, err
	}
	begun := time.Now()
	done := showSearch(cmd.ErrOrStderr(), &o, 0)
	p, err := plan.Place(cmd.Context(), in.Requests, o)
	done()
	var bad *plan.InputError
	if errors.As(err, &bad) {
		return planResult{}, fmt.Errorf("%s: the request with id %s %s: correct it", f.csv, in.IDs[bad.Request], bad.Problem)
	}
	if err = interrupted(cmd.Context(), err); err != nil {
		return planResult{}, fmt.Errorf("%s: %w", f.csv, err)
	}
	r := planResult{Input: f.csv, Requests: len(in.Requests), PeakLiveBytes: p.PeakLiveBytes, PlannedBytes: p.Bytes, PlanSeconds: time.Since(begun).Seconds()}
	if f.out != "" {
		return r, writeOutput("out", f.out, func(w io.Writer) error { return in.WriteCSV(w, p.Offsets) })
	}
	return r, nil
}

// interrupted makes an interrupt an error: a placement that was cut short is none
// that was asked for.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Canceled
	}
	return err
}

// write prints a result for people.
func (r planResult) write(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s: %s planned, %s live at the peak (%.4f of it), in %.2f s\n", r.Input,
		sizeText(r.PlannedBytes), sizeText(r.PeakLiveBytes), r.PlannedOver, r.PlanSeconds)
	switch {
	case r.isTrace && r.Period == 0:
		fmt.Fprintf(w, "  no iteration repeats: all %d allocations are planned as they came, once\n", r.Prologue)
	case r.isTrace:
		fmt.Fprintf(w, "  start-up   %d allocations\n  period     %d allocations in %d iterations\n", r.Prologue, r.Period, r.Iterations)
	default:
		fmt.Fprintf(w, "  requests   %d\n", r.Requests)
	}
	if r.UnplannedBytes > 0 {
		fmt.Fprintf(w, "  unplanned  %s, for allocations that live on without end\n", sizeText(r.UnplannedBytes))
	}
	if r.CapacityBytes > 0 && !r.Fits {
		fmt.Fprintf(w, "  does not fit in %s: give more, or more --time\n", sizeText(r.CapacityBytes))
	} else if r.CapacityBytes > 0 {
		fmt.Fprintf(w, "  fits in %s\n", sizeText(r.CapacityBytes))
	}
	return w.Flush() // the error of any of these
}

// showSearch says from time to time how far a search is, if it takes long: on the
// terminal's line, or line by line elsewhere. The function ends it.
func showSearch(w io.Writer, o *plan.Options, peak int64) (done func()) {
	width := terminalWidth(w)
	every := 10 * time.Second
	if width > 0 {
		every = time.Second
	}
	var best atomic.Int64
	o.Progress = best.Store
	begun := time.Now()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				if width > 0 {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			case <-tick.C:
			}
			line := fmt.Sprintf("planning: %.0f s of at most %v", time.Since(begun).Seconds(), o.TimeLimit)
			if b := best.Load(); b > 0 {
				line += ", best " + size.Text(b)
				if peak > 0 {
					line += fmt.Sprintf(" (%.4f of the peak)", float64(b)/float64(peak))
				}
			}
			if width > 0 {
				fmt.Fprint(w, "\r"+line[:min(len(line), width-1)]+"\x1b[K")
			} else {
				fmt.Fprintln(w, line)
			}
		}
	}()
	return func() { close(stop); <-ended }
}
