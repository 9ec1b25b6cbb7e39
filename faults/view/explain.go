package view

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/symbol"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/trace/phase"
)

// Finding is one sentence about a run, with the numbers in it, and what to do.
type Finding struct {
	What string `json:"what"`
	Do   string `json:"do,omitempty"`
}

// Explain says in words what limits a run and what to do next; the first finding is the verdict.
func Explain(r *analyse.Report) []Finding {
	e := explainer{r: r}
	e.verdict()
	e.cause()
	e.places()
	e.traffic()
	e.prefetch()
	e.trust()
	return e.findings
}

type explainer struct {
	r        *analyse.Report
	findings []Finding
}

func (e *explainer) say(do, format string, args ...any) {
	e.findings = append(e.findings, Finding{What: fmt.Sprintf(format, args...), Do: do})
}

func count(n int64) string { return Cell(n, Count) }

func percent(n, of int64) string { return Cell(share(n, of), Share) }

func (e *explainer) verdict() {
	s := e.r.Summary
	switch {
	case s.Faults == 0 && s.H2DBytes == 0 && s.D2HBytes == 0 && len(e.r.Limits) > 0:
		e.say("make the missing events visible (`penstock doctor`) and record again", "Nothing can be said: no fault and no migration is in the recording, and %s.", e.r.Limits[0])
	case s.Faults == 0 && s.H2DBytes == 0 && s.D2HBytes == 0:
		e.say("", "The GPU never faulted and no managed memory moved.")
	case s.Faults == 0:
		e.say("", "The GPU never faulted: all %s that came to it were fetched ahead of need; %s went back to the host.", size.Text(s.H2DBytes), size.Text(s.D2HBytes))
	default:
		stalled := ""
		if e.r.Seconds > 0 && s.StallSeconds > 0 {
			stalled = fmt.Sprintf("; kernels waited for their bytes for %s, %s of the run", seconds(s.StallSeconds), Cell(s.StallSeconds/e.r.Seconds, Share))
		}
		e.say("", "The GPU faulted %s times in %s, and %s came in by these faults%s.", count(s.Faults), seconds(e.r.Seconds), size.Text(s.FaultedBytes), stalled)
	}
}

// advice is what to do against each cause.
func (e *explainer) advice(c analyse.Cause) (why, do string) {
	policy := e.r.Header.Policy
	switch c {
	case analyse.FirstTouch:
		why = "the pages had not been on the GPU since their allocation was made"
		if policy != "" && policy != "penstock" {
			return why, "have them made before the kernel: " + e.ahead()
		}
		return why, "fetch the data once before its first kernel (cudaMemPrefetchAsync), or create it on the GPU"
	case analyse.EvictedEarly:
		why = fmt.Sprintf("the pages had been sent away although others would be needed later; they were back after %.0f launches on average", e.r.Summary.RefetchLaunches)
		if policy == "penstock" {
			return why, "give it a larger --budget, or send the recording with a report: the policy should not do this"
		}
		return why, "let the next use decide what leaves: " + e.ahead()
	case analyse.PrefetchedLate:
		return "the pages were on their way", "fetch earlier: raise PENSTOCK_LOOKAHEAD, or the --budget, so that there is room ahead of need; if the bus is busy all the time, less must move"
	case analyse.NeverPredicted:
		if e.r.Predictor.PrefetchedBytes*10 < e.r.Summary.H2DBytes {
			return "the pages had been away for long and nothing fetched them", "fetch ahead of need: " + e.ahead()
		}
		return "the pages had been away for long and no prediction named them", "look at the allocations below: memory that kernels reach through pointers in memory, or iterations that differ from each other, are not foreseen"
	case analyse.CPUTouched:
		return "the CPU had touched the pages in between", "keep the CPU off this memory while the GPU works on it: copy what it reads (results, logs) to host memory of its own"
	case analyse.Thrash:
		return "the pages went to and fro between processors", "give the memory a preferred location and let the others map it (cudaMemAdvise, accessed-by), or split what is shared"
	}
	return "the pages were there already: an access upgrade, or several threads faulting on one page", ""
}

// ahead is how to have memory fetched before it is needed.
func (e *explainer) ahead() string {
	if e.r.Header.Policy != "" {
		return "penstock run --policy penstock"
	}
	return "penstock run for a PyTorch program, cudaMemPrefetchAsync before the kernel for another"
}

func (e *explainer) cause() {
	n := e.r.Summary.Faults
	if n == 0 {
		return
	}
	said := 0
	for said < 2 {
		best := -1
		for i, c := range e.r.Causes {
			if c.Faults*10 >= n && (best < 0 || c.Faults > e.r.Causes[best].Faults) && !e.told(c.Cause) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		why, do := e.advice(analyse.Cause(best))
		c := e.r.Causes[best]
		e.say(do, "%s of the faults (%s): %s — %s.", percent(c.Faults, n), count(c.Faults), c.Cause, why)
		said++
	}
}

func (e *explainer) told(cause string) bool {
	for _, f := range e.findings {
		if strings.Contains(f.What, "): "+cause+" — ") {
			return true
		}
	}
	return false
}

// places names the worst kernel, allocation and phase.
func (e *explainer) places() {
	n := e.r.Summary.Faults
	if n == 0 {
		return
	}
	var parts []string
	if len(e.r.Kernels) > 0 && e.r.Kernels[0].Faults > 0 && e.r.Attribution.None < n {
		k := e.r.Kernels[0]
		parts = append(parts, fmt.Sprintf("the kernel %s had %s of the faults", Plain(symbol.Readable(k.Kernel), 80), percent(k.Faults, n)))
	}
	if len(e.r.Allocations) > 0 && e.r.Allocations[0].Faults > 0 {
		a := e.r.Allocations[0]
		if a.Bytes > 0 {
			parts = append(parts, fmt.Sprintf("the allocation of %s at %s had %s", size.Text(a.Bytes), Plain(a.Name(), 100), percent(a.Faults, n)))
		}
	}
	best := -1
	for i, p := range e.r.Phases {
		if p.Phase != phase.Unknown.String() && p.Faults > 0 && (best < 0 || p.Faults > e.r.Phases[best].Faults) {
			best = i
		}
	}
	if best >= 0 {
		p := e.r.Phases[best]
		parts = append(parts, fmt.Sprintf("the %s phase had %s", p.Phase, percent(p.Faults, n)))
	}
	if len(parts) > 0 {
		e.say("", "Most of all, %s.", strings.Join(parts, ", and "))
	}
}

func (e *explainer) traffic() {
	s := e.r.Summary
	if s.DistinctBytes == 0 {
		return
	}
	what := fmt.Sprintf("%s of distinct memory were used on the GPU and %s were brought to it: each byte crossed the bus %.1f times", size.Text(s.DistinctBytes), size.Text(s.H2DBytes), s.Amplification)
	if s.Faults > 0 && s.FaultedBytes > 0 {
		what += fmt.Sprintf(", %s for each fault", size.Text(int64(s.BytesPerFault)))
	}
	do := ""
	if b := e.r.Header.BudgetBytes; s.Amplification > 3 && b > 0 && s.DistinctBytes > b {
		do = fmt.Sprintf("the working set is larger than the budget of %s: a larger --budget, a smaller batch or activation checkpointing moves less", size.Text(e.r.Header.BudgetBytes))
	}
	e.say(do, "%s.", what)
	if s.EvictedBytes > 0 {
		do := "leave the driver room: a smaller --budget makes Penstock send memory away before the driver must"
		if e.r.Header.Policy == "" {
			do = "use less managed memory at a time, or send away what is not needed (cudaMemPrefetchAsync to the host) before the driver must"
		}
		e.say(do, "The driver itself evicted %s, in the middle of servicing faults.", size.Text(s.EvictedBytes))
	}
}

func (e *explainer) prefetch() {
	p := e.r.Predictor
	if p.PrefetchedBytes == 0 {
		return
	}
	what := fmt.Sprintf("%s of what came in was fetched ahead (%s)", Cell(p.Coverage, Share), size.Text(p.PrefetchedBytes))
	do := ""
	if p.WastedBytes >= 0 {
		what += fmt.Sprintf("; %s of it left again unused", percent(p.WastedBytes, p.PrefetchedBytes))
		if p.WastedBytes*5 > p.PrefetchedBytes {
			do = "fetch less far ahead: lower PENSTOCK_LOOKAHEAD"
		}
	}
	e.say(do, "%s.", what)
}

// trust says how far the numbers can be relied on.
func (e *explainer) trust() {
	s := e.r.Summary
	all := s.Faults + s.CPUFaults + s.H2DMigrations + s.D2HMigrations + s.LostEvents
	if s.LostEvents > 0 {
		do := ""
		if share(s.LostEvents, all) > 0.001 {
			do = "record a shorter or less faulting stretch: sums are lower bounds"
		}
		e.say(do, "%s events (%s) were lost.", count(s.LostEvents), Cell(math.Max(share(s.LostEvents, all), 0.001), Share))
	}
	if d := s.Driver; d != nil && d.H2DBytes == s.H2DBytes && d.D2HBytes == s.D2HBytes {
		e.say("", "The sums of bytes equal the driver's own, to the byte.")
	}
	for _, l := range e.r.Limits {
		e.say("", "Mind that %s.", strings.TrimSuffix(l, "."))
	}
	if e.r.Damage != "" {
		e.say("", "Only the intact part of the recording was read: %s.", e.r.Damage)
	}
}

// WriteFindings writes findings as text.
func WriteFindings(w io.Writer, all []Finding) error {
	var b strings.Builder
	for _, f := range all {
		b.WriteString(Plain(f.What, 1200) + "\n")
		if f.Do != "" {
			b.WriteString("  -> " + Plain(f.Do, 600) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
