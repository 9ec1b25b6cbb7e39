package analyse

import (
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/trace"
)

// mark handles the marks that mean something.
func (a *Analyser) mark(e *trace.Event) {
	switch {
	case strings.HasPrefix(e.Name, "iter") && isNumber(e.Name[4:]), e.Name == trace.MarkEnd:
		if a.marked {
			a.endIteration(e.Time)
		} else {
			a.iteration, a.rows = iterationRow{begin: e.Time}, nil
		}
		a.marked = true
		a.phases.Begin()
	case strings.HasPrefix(e.Name, MarkLacks):
		if what := clip(e.Name[len(MarkLacks):]); len(a.lacks) < maxLacks && !slices.Contains(a.lacks, what) {
			a.lacks = append(a.lacks, what)
		}
	case strings.HasPrefix(e.Name, markCounters):
		if c, ok := ParseCounters(e.Name); ok {
			a.sum.counters = &c
		}
	}
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

// MarkLacks begins a mark that says what a recorder could not see.
const MarkLacks = "lacks "

const maxLacks = 32

// Counters are the driver's own sums, kept beside its event queue.
type Counters struct {
	H2DBytes  int64 `json:"h2d_bytes"`
	D2HBytes  int64 `json:"d2h_bytes"`
	CPUFaults int64 `json:"cpu_faults"`
	GPUFaults int64 `json:"gpu_faults"`
}

const markCounters = "driver "

// Mark is the name of the mark that keeps the sums in a recording.
func (c Counters) Mark() string {
	return markCounters + "h2d=" + strconv.FormatInt(c.H2DBytes, 10) + " d2h=" + strconv.FormatInt(c.D2HBytes, 10) +
		" cpu_faults=" + strconv.FormatInt(c.CPUFaults, 10) + " gpu_faults=" + strconv.FormatInt(c.GPUFaults, 10)
}

// ParseCounters reads what Mark wrote.
func ParseCounters(mark string) (c Counters, ok bool) {
	rest, ok := strings.CutPrefix(mark, markCounters)
	if !ok {
		return c, false
	}
	for _, word := range strings.Fields(rest) {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return Counters{}, false
		}
		switch name {
		case "h2d":
			c.H2DBytes = n
		case "d2h":
			c.D2HBytes = n
		case "cpu_faults":
			c.CPUFaults = n
		case "gpu_faults":
			c.GPUFaults = n
		}
	}
	return c, true
}
