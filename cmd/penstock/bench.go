package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/replay"
)

// benchFlags are the flags as given.
type benchFlags struct {
	traces                               []string
	ratios, policies, engines, gpu, html string
	json, csv, acceptDamaged             bool
}

// newBenchCommand is `penstock bench`.
func newBenchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench [FILE...]",
		Short: "Compare all policies on traces, on a simulated GPU",
		Long: `Replay traces under every policy at several ratios on a simulated GPU, and print
the seconds of the last full iteration beside the bound (the oracle). Nothing is
measured: every number is simulated.`,
		Example: `  penstock bench
  penstock bench --ratios 1.5,2,3 --csv traces/*.tsv.gz > results.csv`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.traces = append(f.traces, args...)
			return f.run(cmd)
		},
	}
	cmd.Flags().StringArrayVar(&f.traces, "trace", nil, row(cmd, "trace").Doc)
	textFlag(cmd, &f.ratios, "ratios")
	textFlag(cmd, &f.policies, "policies")
	textFlag(cmd, &f.engines, "engines")
	textFlag(cmd, &f.gpu, "gpu")
	textFlag(cmd, &f.html, "html")
	boolFlag(cmd, &f.json, "json")
	boolFlag(cmd, &f.csv, "csv")
	boolFlag(cmd, &f.acceptDamaged, "accept-damaged")
	cmd.AddCommand(newBenchStitchCommand())
	return cmd
}

func (f *benchFlags) run(cmd *cobra.Command) error {
	if f.json && f.csv {
		return errors.New("--json and --csv both say what to print: give one of them")
	}
	jobs, err := f.jobs(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if f.html != "" {
		if err := checkOutput("html", f.html); err != nil {
			return err
		}
	}
	results, err := runJobs(cmd.Context(), jobs, newProgress(cmd.ErrOrStderr(), len(jobs)))
	if err != nil {
		return err
	}
	if f.html != "" {
		if err := writePage(f.html, resultsPage("Penstock bench", results)); err != nil {
			return err
		}
	}
	rows := benchRows(jobs, results)
	switch out := cmd.OutOrStdout(); {
	case f.json:
		return writeJSON(out, rows)
	case f.csv:
		return writeCSV(out, rows)
	default:
		return writeTable(out, rows)
	}
}

// jobs is every combination that can be replayed; the others are noted.
func (f *benchFlags) jobs(ctx context.Context, notes io.Writer) ([]job, error) {
	ratios, err := parseList("ratios", f.ratios, parseRatio)
	if err != nil {
		return nil, err
	}
	policies, err := parseList("policies", f.policies, parsePolicy)
	if err != nil {
		return nil, err
	}
	engines, err := parseList("engines", f.engines, parseEngine)
	if err != nil {
		return nil, err
	}
	profile, err := parseProfile(f.gpu)
	if err != nil {
		return nil, err
	}
	inputs, err := f.inputs(ctx, notes)
	if err != nil {
		return nil, err
	}
	var jobs []job
	var left error
	for _, in := range inputs {
		for _, ratio := range ratios {
			if left = in.fits(in.budgetAt(ratio)); left != nil {
				fmt.Fprintf(notes, "penstock: left out %s at %s: %v\n", in.Name, ratioText(ratio), left)
				continue
			}
			jobs = append(jobs, combinations(in, ratio, policies, engines, profile, f.html != "")...)
		}
	}
	switch {
	case len(jobs) == 0 && left != nil:
		return nil, left
	case len(jobs) == 0:
		return nil, errors.New("nothing to replay: the explicit engine has no such policy, so add penstock, lru or oracle to --policies or managed to --engines")
	}
	return jobs, nil
}

func (f *benchFlags) inputs(ctx context.Context, notes io.Writer) ([]input, error) {
	if len(f.traces) == 0 {
		in, err := shippedInput()
		return []input{in}, err
	}
	var all []input
	for _, path := range f.traces {
		in, err := loadInput(ctx, path, f.acceptDamaged, notes)
		if err != nil {
			return nil, err
		}
		// Results are told apart by name.
		if slices.ContainsFunc(all, func(other input) bool { return other.Name == in.Name }) {
			return nil, fmt.Errorf("two traces are called %s: rename a file", in.Name)
		}
		all = append(all, in)
	}
	return all, nil
}

// combinations is every policy on every engine that it is simulated on.
func combinations(in input, ratio float64, policies, engines []string, profile sim.Profile, timeline bool) []job {
	var jobs []job
	for _, engine := range engines {
		for _, policy := range policies {
			if !replay.Simulates(engine, policy) {
				continue
			}
			jobs = append(jobs, job{in: in, options: replay.Options{Policy: policy, Engine: engine, Ratio: ratio, Profile: profile, Timeline: timeline}})
		}
	}
	return jobs
}

// benchRow is a result with the ratio that was asked for.
type benchRow struct {
	Ratio float64 `json:"ratio"`
	replay.Result
}

func benchRows(jobs []job, results []replay.Result) []benchRow {
	rows := make([]benchRow, len(jobs))
	for i, r := range results {
		r.Timeline = nil // for the page only
		rows[i] = benchRow{Ratio: jobs[i].options.Ratio, Result: r}
	}
	return rows
}

func writeCSV(w io.Writer, rows []benchRow) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"trace", "ratio", "policy", "engine", "gpu", "budget_bytes", "peak_live_bytes", "compute_seconds", "iteration_seconds",
		"stall_seconds", "h2d_bytes", "d2h_bytes", "faults", "prediction_hit_rate", "launch_cost_seconds", "simulated", "durations"})
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	count := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, r := range rows {
		_ = out.Write([]string{r.Trace, number(r.Ratio), r.Policy, r.Engine, r.GPU, count(r.BudgetBytes), count(r.PeakLiveBytes), number(r.ComputeSeconds),
			number(r.IterationSeconds), number(r.StallSeconds), count(r.H2DBytes), count(r.D2HBytes), count(r.Faults), number(r.PredictionHitRate),
			number(r.LaunchCostSeconds), strconv.FormatBool(r.Simulated), string(r.Durations)})
	}
	out.Flush()
	return out.Error() // of any of the writes
}
