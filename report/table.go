package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/penstock-gpu/penstock/replay"
)

// WriteTable writes the results as an aligned text table, the bound beside
// each. It fails, before writing anything, on no results and on results that
// contradict themselves.
func WriteTable(w io.Writer, results []replay.Result) error {
	cases, err := group(results)
	if err != nil {
		return err
	}
	var b strings.Builder
	for i, c := range cases {
		if i > 0 {
			b.WriteByte('\n')
		}
		writeCase(&b, c)
	}
	b.WriteString("\nAll numbers are simulated: last full iteration, virtual time. ")
	b.WriteString("bound: the oracle, which knows the future; 100 % of it cannot be beaten.\n")
	_, err = io.WriteString(w, b.String())
	return err
}

func writeCase(b *strings.Builder, c benchCase) {
	fmt.Fprintf(b, "%s on %s (simulated)", plain(c.trace), plain(c.gpu))
	if len(c.engines) == 1 {
		fmt.Fprintf(b, ", %s engine", plain(c.engines[0]))
	}
	fmt.Fprintf(b, ": peak live %s, compute %s an iteration\n", c.bytes.format(c.peakLiveBytes), c.time.format(c.computeSeconds))

	lines := [][]string{{"policy", "iteration", "bound", "of bound", "over naive", "stalls", "to GPU", "to host", "faults", "predicted"}}
	heads := map[int]string{}
	for _, p := range c.points {
		heads[len(lines)] = fmt.Sprintf("%s, budget %s", formatRatio(p.ratio), c.bytes.format(p.budgetBytes))
		for _, r := range p.rows {
			lines = append(lines, textRow(c, r))
		}
	}
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, line := range lines {
		if head, ok := heads[n]; ok {
			fmt.Fprintf(b, "%s\n", head)
		}
		b.WriteString("  ")
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			switch {
			case i == 0:
				b.WriteString(cell + pad)
			default:
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteByte('\n')
	}
}

func textRow(c benchCase, r row) []string {
	bound, share, times, predicted := "-", "-", "-", "-"
	switch {
	case r.isBound():
		bound, share = "itself", "100 %"
	case r.bound != nil:
		bound = c.time.format(r.bound.IterationSeconds)
		if r.bound.Engine != r.Engine {
			bound += " (" + plain(r.bound.Engine) + ")"
		}
		if s, ok := r.ofBound(); ok {
			share = formatShare(s)
		}
	}
	if t, ok := r.overNaive(); ok {
		times = formatTimes(t)
	}
	if r.predicts() {
		predicted = formatShare(r.PredictionHitRate)
	}
	return []string{
		plain(r.label), c.time.format(r.IterationSeconds), bound, share, times, c.time.format(r.StallSeconds),
		c.bytes.format(r.H2DBytes), c.bytes.format(r.D2HBytes), formatCount(r.Faults), predicted,
	}
}
