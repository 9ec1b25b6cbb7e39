package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/faults/symbol"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/replay"
)

// simulateFlags are the flags as given.
type simulateFlags struct {
	trace, ratio, budget, policy, engine, gpu, bus, launchCost, iterations, replay string
	json, acceptDamaged, packs                                                     bool
}

// newSimulateCommand is `penstock simulate`.
func newSimulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate --trace FILE (--ratio R | --budget B)",
		Short: "Replay a trace on a simulated GPU with less memory",
		Long: `Replay a recorded run on a simulated GPU, in virtual time, as if the card had only
the given memory, and report its last full iteration. Nothing is measured: every
number is simulated. Where no two iterations are alike, it is the mean of the later half.`,
		Example: `  penstock simulate --trace run.pstrace --ratio 2
  penstock simulate --trace gpt2l.tsv.gz --budget 24GiB --policy oracle --engine explicit --json
  penstock simulate --trace run.pstrace --ratio 2 --policy oracle --engine explicit --replay=on`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := f.job(cmd)
			if err != nil {
				return err
			}
			results, err := runJobs(cmd.Context(), []job{j}, quietProgress(cmd.ErrOrStderr(), 1))
			if err != nil {
				return err
			}
			if f.json {
				return writeJSON(cmd.OutOrStdout(), results[0])
			}
			return writeSimulation(cmd.OutOrStdout(), results[0])
		},
	}
	textFlag(cmd, &f.trace, "trace")
	textFlag(cmd, &f.ratio, "ratio")
	textFlag(cmd, &f.budget, "budget")
	textFlag(cmd, &f.policy, "policy")
	textFlag(cmd, &f.engine, "engine")
	textFlag(cmd, &f.gpu, "gpu")
	textFlag(cmd, &f.bus, "bus")
	textFlag(cmd, &f.launchCost, "launch-cost")
	textFlag(cmd, &f.iterations, "iterations")
	textFlag(cmd, &f.replay, "replay")
	boolFlag(cmd, &f.packs, "packs")
	boolFlag(cmd, &f.json, "json")
	boolFlag(cmd, &f.acceptDamaged, "accept-damaged")
	return cmd
}

// job checks the flags, cheap ones first, and the trace against them.
func (f *simulateFlags) job(cmd *cobra.Command) (job, error) {
	var j job
	var err error
	o := &j.options
	if o.Policy, err = parsePolicy(f.policy); err != nil {
		return j, err
	}
	if o.Engine, err = parseEngine(f.engine); err != nil {
		return j, err
	}
	if !replay.Simulates(o.Engine, o.Policy) {
		return j, fmt.Errorf("the explicit engine has no policy %s: use --policy penstock, lru or oracle, or --engine managed", o.Policy)
	}
	if o.Replay, err = parseReplay(f.replay); err != nil {
		return j, err
	}
	if o.Replay && !replay.Replays(o.Engine, o.Policy) {
		return j, fmt.Errorf("--replay: the policy %s has none: use --policy %s, --policy %s with --engine %s, or --replay=off", o.Policy, replay.PolicyOracle, replay.PolicyPenstock, replay.EngineExplicit)
	}
	o.NoPacks = !f.packs
	if o.Profile, err = parseProfile(f.gpu); err != nil {
		return j, err
	}
	if f.bus != "" {
		if o.Engine != replay.EngineExplicit || o.Policy != replay.PolicyOracle {
			return j, errors.New("--bus: only the oracle of the explicit engine is given one: use --policy oracle --engine explicit, or --gpu")
		}
		if o.Bus, err = parseBus(f.bus); err != nil {
			return j, err
		}
	}
	if o.LaunchCost, err = time.ParseDuration(f.launchCost); err != nil || o.LaunchCost <= 0 || o.LaunchCost > time.Second {
		return j, fmt.Errorf("--launch-cost: %q is not a time of at most a second: give such as 20us", f.launchCost)
	}
	if o.Policy == replay.PolicyOracle && !cmd.Flags().Changed("launch-cost") {
		o.LaunchCost = 0 // the bound of the device and the bus
	}
	ratioGiven, budgetGiven := cmd.Flags().Changed("ratio"), cmd.Flags().Changed("budget")
	switch {
	case ratioGiven && budgetGiven:
		return j, errors.New("--ratio and --budget both say how much memory there is: give one of them")
	case ratioGiven:
		if o.Ratio, err = parseRatio(f.ratio); err != nil {
			return j, err
		}
	case budgetGiven:
		if o.BudgetBytes, err = options.ParseBytes(f.budget); err != nil {
			return j, fmt.Errorf("--budget: %w", err)
		}
		if o.BudgetBytes == 0 {
			return j, errors.New("--budget: nothing runs in 0 bytes: give more, such as 24GiB")
		}
		if o.BudgetBytes > o.Profile.MemoryBytes {
			return j, fmt.Errorf("--budget: %s is above the memory of %s, %s: give at most that", sizeText(o.BudgetBytes), o.Profile.Name, sizeText(o.Profile.MemoryBytes))
		}
	default:
		return j, errors.New("how much memory is there? give --ratio (such as 2) or --budget (such as 24GiB)")
	}
	if f.trace == "" {
		return j, errors.New("no trace to replay: give --trace FILE, or see `penstock demo`")
	}
	iterations, err := parseIterations(f.iterations)
	if err != nil {
		return j, err
	}
	if j.in, err = loadInput(cmd.Context(), f.trace, f.acceptDamaged, cmd.ErrOrStderr()); err != nil {
		return j, err
	}
	if j.in.Trace, err = j.in.Repeat(iterations); err != nil {
		return j, fmt.Errorf("--iterations %d: %w", iterations, err)
	}
	budget := o.BudgetBytes
	if budget == 0 {
		budget = j.in.budgetAt(o.Ratio)
	} else {
		o.Ratio = float64(j.in.peakBytes) / float64(budget)
	}
	if o.Engine == replay.EngineExplicit && o.Policy != replay.PolicyOracle {
		return j, nil // a launch that is larger uses host memory in place
	}
	return j, j.in.fits(budget)
}

// parseReplay reads on or off.
func parseReplay(text string) (bool, error) {
	switch text {
	case options.ReplayOn:
		return true, nil
	case options.ReplayOff:
		return false, nil
	}
	return false, fmt.Errorf("--replay: %q is neither: choose %s or %s", text, options.ReplayOn, options.ReplayOff)
}

// mostIterations keeps a typing error from filling the memory.
const mostIterations = 1000

// parseIterations is how many iterations are asked for, 0 for those of the trace.
func parseIterations(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostIterations {
		return 0, fmt.Errorf("--iterations: %q is not a number from 1 to %d", text, mostIterations)
	}
	return n, nil
}

// writeSimulation prints one result for people.
func writeSimulation(w io.Writer, r replay.Result) error {
	hits := "this policy does not predict"
	if predicts(r.Policy) {
		hits = fmt.Sprintf("%.1f %%", 100*r.PredictionHitRate)
	}
	which := "last full iteration"
	if r.Iterations > 1 {
		which = fmt.Sprintf("mean of the last %d iterations", r.Iterations)
	}
	_, err := fmt.Fprintf(w, `%s under %s on %s (%s engine), %s, simulated: no GPU was used
  budget               %s of %s peak live (%.2fx)
  iteration            %.3f s: %.3f s computing, %.3f s stalled
  durations            %s
  moved to the device  %s
  moved to the host    %s
  faults               %d
  prediction hit rate  %s
`, r.Trace, r.Policy, r.GPU, r.Engine, which, size.Text(r.BudgetBytes), size.Text(r.PeakLiveBytes),
		float64(r.PeakLiveBytes)/float64(r.BudgetBytes), r.IterationSeconds, r.ComputeSeconds, r.StallSeconds, r.Durations,
		size.Text(r.H2DBytes), size.Text(r.D2HBytes), r.Faults, hits)
	if err != nil || r.Replay == nil {
		return err
	}
	return writeReplay(w, r.Replay)
}

// writeReplay prints what was made again.
func writeReplay(w io.Writer, a *replay.Again) error {
	_, err := fmt.Fprintf(w, `  made again           %s instead of being moved, by %d launches in %.4f s, which are part of computing
  without replay       %.3f s an iteration
  roles of launches    %s
`, size.Text(a.Bytes), a.Launches, a.Seconds, a.SwapSeconds, a.Roles)
	if a.Rejected > 0 && err == nil {
		_, err = fmt.Fprintf(w, "  rejected plans       %d of %d would have computed something else: please report it\n", a.Rejected, a.Plans)
	}
	for _, f := range a.Functions {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %8.4f s %5d x     %s\n", f.Seconds, f.Launches, symbol.Readable(f.Name))
		}
	}
	return err
}

// predicts says whether a policy's hit rate means anything.
func predicts(policy string) bool {
	return policy == replay.PolicyDeepUM || policy == replay.PolicyPenstock
}
