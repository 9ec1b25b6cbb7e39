package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/report"
)

// What the commands call; variables for tests.
var (
	runReplay = replay.Run
	writeHTML = report.WriteHTML
)

// job is one replay of many.
type job struct {
	in      input
	options replay.Options
}

func (j job) String() string {
	policy := j.options.Policy
	if j.options.Replay {
		policy = replay.PolicyOracleReplay
	}
	return fmt.Sprintf("%s at %s, %s", j.in.Name, ratioText(j.options.Ratio), seriesOf(policy, j.options.Engine))
}

// seriesOf names a policy on an engine; managed goes without saying.
func seriesOf(policy, engine string) string {
	if engine == replay.EngineManaged || engine == "" {
		return policy
	}
	return policy + " (" + engine + ")"
}

func ratioText(ratio float64) string { return strconv.FormatFloat(ratio, 'g', 4, 64) + "x" }

// runJobs replays on all cores and returns results in the order of jobs. The
// first error stops the rest.
func runJobs(ctx context.Context, jobs []job, show *progress) ([]replay.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]replay.Result, len(jobs))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(len(jobs), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := range next {
				begun := time.Now()
				result, err := runOne(ctx, jobs[i], func(done, total int) { show.update(i, done, total) })
				if err != nil {
					cancel(err)
					return
				}
				results[i] = result
				show.finish(i, fmt.Sprintf("%s: %.3f s an iteration, simulated in %.1f s", jobs[i], result.IterationSeconds, time.Since(begun).Seconds()))
			}
		})
	}
feed:
	for i := range jobs {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	workers.Wait()
	show.close()
	return results, context.Cause(ctx)
}

// runOne replays one job. A panic in it is an error like any other.
func runOne(ctx context.Context, j job, report func(done, total int)) (result replay.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = internalf("replaying %s: %v", j, p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return result, err
	}
	o := j.options
	o.Progress = report
	result, err = runReplay(ctx, j.in.Trace, o)
	var bad *replay.InputError
	switch {
	case err == nil || errors.As(err, &bad):
		return result, err
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return result, context.Canceled
	}
	return result, internalf("replaying %s: %w", j, err)
}

// parsePolicy and the other parsers say what is known when they refuse.
func parsePolicy(name string) (string, error) {
	if known := replay.Policies(); !slices.Contains(known, name) {
		return "", fmt.Errorf("unknown policy %q: choose one of %s", name, strings.Join(known, ", "))
	}
	return name, nil
}

var knownEngines = []string{replay.EngineManaged, replay.EngineExplicit}

func parseEngine(name string) (string, error) {
	if !slices.Contains(knownEngines, name) {
		return "", fmt.Errorf("unknown engine %q: choose one of %s", name, strings.Join(knownEngines, ", "))
	}
	return name, nil
}

func parseProfile(name string) (sim.Profile, error) { return sim.ProfileByName(name) }

// parseBus reads 55,55 or 55,55,92.
func parseBus(text string) (replay.Bus, error) {
	rates := []float64{0, 0, math.Inf(1)}
	words := strings.Split(text, ",")
	if len(words) != 2 && len(words) != 3 {
		return replay.Bus{}, fmt.Errorf("--bus: %q is not two or three rates: give GB/s in and out, such as 55,55, and both together where that is less, such as 55,55,92", text)
	}
	for i, word := range words {
		rate, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		if err != nil || !(rate > 0) || math.IsInf(rate, 0) {
			return replay.Bus{}, fmt.Errorf("--bus: %q is no rate: give GB/s, such as 55", word)
		}
		rates[i] = rate * 1e9
	}
	return replay.Bus{In: rates[0], Out: rates[1], Both: rates[2]}, nil
}

// parseRatio reads 1.5 or 1.5x.
func parseRatio(text string) (float64, error) {
	ratio, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "x"), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("ratio %q is not a number: write one such as 1.5 or 2", text)
	case !(ratio >= 1) || math.IsInf(ratio, 0):
		return 0, fmt.Errorf("ratio %s is impossible: it is peak live bytes over the budget, so give a number of at least 1", text)
	}
	return ratio, nil
}

// parseList applies a parser to each part of a comma-separated list, without repeats.
func parseList[T comparable](flag, text string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		v, err := parse(part)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--%s is empty: name at least one, separated by commas", flag)
	}
	return all, nil
}
