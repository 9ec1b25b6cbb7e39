package swapped

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/bound"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// This file says at the end of a job how near it came to an oracle, which knows the future
// and whose software costs nothing: the job measures its last iterations and leaves them, from what the runtime
// remembers, for the command that simulates them under one, and once more under one that waits for the job's CPU.
// The oracle is no part of this library; where `penstock run` started the job, it is asked here.
//
// How long launches take is measured, too. While they wait for memory, the time between
// two of them says little of that, so some are timed on the device (timing.c of the hook), without their waits, and stand
// for others of their kind. Where too little is timed nothing is said.

const (
	rememberedOps = 1 << 16
	simulated     = 3   // iterations, of which the last counts: the first two fill the memory
	leastTimed    = 0.8 // of the device's time, for a bound to be told
	judgePatience = 2 * time.Second
)

func (e *Engine) Assess(s *stats.Stats, command string) {
	proc := e.proc
	x := s.Explicit
	switch {
	case s.H2DBytes == 0 && s.D2HBytes == 0:
		x.Bound = bound.Bound{Why: "nothing was moved"}
		return
	case s.Failure != "":
		x.Bound = bound.Bound{Why: "the engine failed"}
		return
	}
	in, out := e.fastest(x)
	evidence := bound.Evidence{Device: proc.Driver.Info().Name, BudgetBytes: s.BudgetBytes - proc.PlainBytes.Load(), InBytesPerSecond: in, OutBytesPerSecond: out}
	enough, stop := context.WithTimeout(context.Background(), judgePatience)
	defer stop()
	found := make(chan bound.Judgement, 3)
	tell := func(b bound.Bound) { found <- bound.Judgement{Bound: b} }
	go func() {
		defer close(found)
		defer func() {
			if p := recover(); p != nil {
				tell(bound.Bound{Why: fmt.Sprintf("it failed: %v", p)})
			}
		}()
		b, iterations := measure(e.recent(rememberedOps))
		if iterations == nil { // short iterations that come again very often are taken for a loop within one
			if few, found := measure(e.recent(estimatedOver)); found != nil {
				b, iterations = few, found
			}
		}
		if iterations == nil {
			tell(b)
			return
		}
		if err := evidence.Record(iterations); err != nil {
			tell(bound.Bound{Why: err.Error()})
			return
		}
		if command == "" {
			b.Why = whyNotAsked
			found <- bound.Judgement{Bound: b, Evidence: &evidence}
			return
		}
		if err := ask(enough, command, b, &evidence, tell); err != nil {
			tell(bound.Bound{Why: err.Error()})
		}
	}()
	x.Bound = bound.Bound{Why: fmt.Sprintf("it would have taken more than %s", judgePatience)}
	lost := uint64(0)
	if proc.Hook != nil {
		lost = proc.Hook.TimingsLost()
	}
	for {
		select {
		case told, more := <-found:
			if !more {
				return
			}
			x.Judgement, x.LostTimings = told, lost
		case <-enough.Done():
			return
		}
	}
}

// whyNotAsked says how to get a bound where nobody found one at the job's end.
const whyNotAsked = "`penstock run` does it at the end of a job that it starts; for this one, `penstock report bound` does it with the report (PENSTOCK_REPORT)"

// ask has the command simulate the oracle. It knows nothing of this process: neither its environment, in which the hook is
// preloaded, nor its files. What is told before time is up counts.
func ask(enough context.Context, command string, b bound.Bound, e *bound.Evidence, tell func(bound.Bound)) error {
	asked, err := json.Marshal(bound.Report{Explicit: &bound.Judgement{Bound: b, Evidence: e}})
	if err != nil {
		return err
	}
	var complaint strings.Builder
	c := exec.CommandContext(enough, command, "report", "bound", "--json", "-")
	c.Env, c.Stdin, c.Stderr = []string{}, bytes.NewReader(asked), &complaint
	answers, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return err
	}
	told := 0
	for d := json.NewDecoder(answers); ; told++ {
		var b bound.Bound
		if err = d.Decode(&b); err != nil {
			break
		}
		tell(b)
	}
	_ = c.Wait() // the job may have a handler that has waited for all of its children
	if told > 0 || enough.Err() != nil {
		return nil
	}
	if text := strings.TrimSpace(complaint.String()); text != "" {
		return errors.New(text)
	}
	return fmt.Errorf("%s said nothing: %w", command, err)
}

// recent is what the runtime remembers of so many iterations at most, or all of it where none is known.
func (e *Engine) recent(iterations int64) explicit.Recent {
	e.proc.Mu.Lock()
	defer e.proc.Mu.Unlock()
	ops := rememberedOps
	if period := e.runtime.History.Period(); period > 0 {
		ops = int(min(int64(ops), iterations*period))
	}
	return e.runtime.Recent(ops)
}

// measure says of the last iterations that are remembered what takes no oracle, and gives those for one to be simulated; nil when
// there can be no bound.
func measure(recent explicit.Recent) (bound.Bound, *trace.Trace) {
	none := func(format string, args ...any) (bound.Bound, *trace.Trace) {
		return bound.Bound{Why: fmt.Sprintf(format, args...)}, nil
	}
	t := recent.Trace
	if !recent.EstimateDurations() {
		return none("no launch was seen to end")
	}
	t.MarkIterations()
	all := t.Iterations()
	if len(all) < simulated {
		return none("the last %d launches and copies hold no %d like iterations", t.Estimate.Operations, simulated)
	}
	timed := t.Estimate
	if timed.TimedShare < leastTimed {
		return none("%d launches were timed, of kinds that have %.0f %% of the device's time: too few to say how long an iteration takes", timed.Timed, 100*timed.TimedShare)
	}
	took := make([]float64, len(all))
	for i, r := range all {
		took[i] = (t.Events[r.End].Time - t.Events[r.First-1].Time).Seconds() // from mark to mark
	}
	slices.Sort(took)
	last := all[len(all)-1]
	b := bound.Bound{IterationSeconds: took[len(took)/2], LaunchCostSeconds: recent.LaunchCost().Seconds()}
	b.CPUSeconds = b.LaunchCostSeconds * float64(operations(t.Events[last.First:last.End]))
	b.TimedLaunches, b.TimedShare, b.TimedError = timed.Timed, timed.TimedShare, timed.TimedError
	b.GPUSeconds = gpuTime(t.Events[last.First:last.End])
	b.InMemorySeconds = max(b.GPUSeconds, b.CPUSeconds)
	b.InMemoryShare = b.InMemorySeconds / b.IterationSeconds
	return b, from(t, all[len(all)-simulated].First-1, last.End)
}

func gpuTime(events []trace.Event) (seconds float64) {
	for i := range events {
		if k := events[i].Kind; k == trace.KindLaunch || k == trace.KindCopy {
			seconds += max(0, events[i].Duration).Seconds()
		}
	}
	return seconds
}

func operations(events []trace.Event) (n int) {
	for i := range events {
		if events[i].Kind == trace.KindLaunch || events[i].Kind == trace.KindCopy {
			n++
		}
	}
	return n
}

// from is a trace from one mark to another, after the allocations that were alive before. What
// nothing touches in it is left out: it can lie anywhere. But what is allocated in it is not, for the oracle repeats the last
// iteration only where it allocates as the one before.
func from(t *trace.Trace, first, last int) *trace.Trace {
	touched := map[uint64]bool{}
	for _, e := range t.Events[first:last] {
		if e.Kind == trace.KindAlloc { // its first use may be in the next iteration
			touched[e.Alloc] = true
		}
		for _, a := range e.Accesses {
			touched[a.Alloc] = true
		}
	}
	out := &trace.Trace{Name: t.Name}
	named := map[uint32]bool{}
	for i, e := range t.Events[:last+1] {
		switch e.Kind {
		case trace.KindAlloc, trace.KindFree:
			if touched[e.Alloc] {
				out.Events = append(out.Events, e)
			}
		default:
			if i < first {
				continue
			}
			if e.Kind == trace.KindLaunch && !named[e.Function] { // by its number: the runtime remembers no names
				named[e.Function] = true
				out.Events = append(out.Events, trace.Event{Kind: trace.KindFunction, Function: e.Function, Time: e.Time})
			}
			out.Events = append(out.Events, e)
		}
	}
	return out
}

// fastest is what copies of this job reached each way, over a while or over all, in bytes a second.
func (e *Engine) fastest(x *stats.Explicit) (in, out float64) {
	e.proc.Mu.Lock()
	defer e.proc.Mu.Unlock()
	return max(x.InGBPerSecond*1e9, e.pace[um.In].fastest), max(x.OutGBPerSecond*1e9, e.pace[um.Out].fastest)
}
