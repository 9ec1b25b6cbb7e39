package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/replay"
)

// The demo's card and ratios.
const demoProfile = "h200"

// demoIterations are more than the trace has: what is learned of an iteration, the explicit
// engine's packs above all, is at rest after some.
const demoIterations = 5

var demoRatios = []float64{1.25, 1.5, 2, 3}

// newDemoCommand is `penstock demo`.
func newDemoCommand() *cobra.Command {
	var html string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work on a simulated GPU: a table here, plots in a page",
		Long: `Replay the trace that comes with Penstock (GPT-2 medium, recorded on an H200) under
all policies, with 1.25 to 3 times less memory than it needs, its last iteration again and
again until there are five. No GPU and no network is used: every number is simulated.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd, html) },
	}
	textFlag(cmd, &html, "html")
	return cmd
}

// besideThePoint says of a replay that it would be one column too many.
func besideThePoint(j job) bool {
	return j.options.Engine == replay.EngineExplicit && j.options.Policy == replay.PolicyLRU
}

func runDemo(cmd *cobra.Command, html string) error {
	if err := checkOutput("html", html); err != nil {
		return err
	}
	profile, err := sim.ProfileByName(demoProfile)
	if err != nil {
		return internalf("%w", err)
	}
	in, err := shippedInput()
	if err != nil {
		return err
	}
	if in.Trace, err = in.Repeat(demoIterations); err != nil {
		return internalf("%w", err)
	}
	var jobs []job
	for _, ratio := range demoRatios {
		jobs = append(jobs, slices.DeleteFunc(combinations(in, ratio, replay.Policies(), knownEngines, profile, true), besideThePoint)...)
		made := jobs[len(jobs)-1] // the bound of the explicit engine, and what it is when memory may be made again
		made.options.Replay = true
		jobs = append(jobs, made)
	}
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	fmt.Fprintf(out, "Replaying %s (GPT-2 medium, recorded on an H200; %s at its peak) on a simulated %s.\n", in.Name, size.Text(in.peakBytes), profile.DeviceName)
	results, err := runJobs(cmd.Context(), jobs, newProgress(notes, len(jobs)))
	if err != nil {
		return err
	}
	if err := writeTable(out, benchRows(jobs, results)); err != nil {
		return err
	}
	if err := writePage(html, resultsPage("Penstock demo", results)); err != nil {
		return err
	}
	shown := html
	if abs, err := filepath.Abs(html); err == nil {
		shown = abs
	}
	_, err = fmt.Fprintf(out, "\nPlots of residency, traffic and stalls: open %s in a browser.\n", shown)
	return err
}
