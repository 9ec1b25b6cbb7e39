package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/replay"
)

// writeTable prints seconds an iteration: a line for each trace and ratio, a
// column for each policy, the bounds at the right.
func writeTable(w io.Writer, rows []benchRow) error {
	var series []string
	for _, r := range rows {
		if s := seriesOf(r.Policy, r.Engine); !slices.Contains(series, s) {
			series = append(series, s)
		}
	}
	// Policies first, then the bounds that they are read against.
	slices.SortStableFunc(series, func(a, b string) int { return order(a) - order(b) })

	points := pointsOf(rows)
	fmt.Fprintf(w, "\nSeconds an iteration, simulated on %s: no GPU was used, nothing here is measured.\n\n", rows[0].GPU)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "trace\tratio\tbudget\tcompute\t%s\t", strings.Join(headings(series), "\t"))
	gains := slices.Contains(series, replay.PolicyPenstock) && slices.Contains(series, replay.PolicyNaive)
	bounded := slices.Contains(series, replay.PolicyPenstock) && slices.Contains(series, replay.PolicyOracle)
	if gains {
		fmt.Fprint(table, "over naive\t")
	}
	if bounded {
		fmt.Fprint(table, "of bound\t")
	}
	fmt.Fprintln(table)
	for _, p := range points {
		fmt.Fprintf(table, "%s\t%s\t%s\t%.3f\t", p.trace, ratioText(p.ratio), size.Text(p.budget), p.compute)
		for _, s := range series {
			fmt.Fprintf(table, "%s\t", seconds(p.seconds, s))
		}
		if gains {
			fmt.Fprintf(table, "%s\t", quotient(p.seconds, replay.PolicyNaive, replay.PolicyPenstock))
		}
		if bounded {
			fmt.Fprintf(table, "%s\t", quotient(p.seconds, replay.PolicyPenstock, replay.PolicyOracle))
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return writeVerdict(w, points, series)
}

// writeVerdict sums up in sentences what the table shows about penstock.
func writeVerdict(w io.Writer, points []point, series []string) error {
	var b strings.Builder
	if slices.Contains(series, replay.PolicyOracle) {
		b.WriteString("\nbound: the oracle, which knows the future and costs nothing, with the bytes moved by the same engine.\n")
	}
	replaying := seriesOf(replay.PolicyOracleReplay, replay.EngineExplicit)
	if mean, least, n := compare(points, seriesOf(replay.PolicyOracle, replay.EngineExplicit), replaying); n > 0 {
		fmt.Fprintf(&b, "with replay: what cheap launches made is made again instead of moved; the explicit engine does a part of that where it is asked to (--replay). That bound is %.2fx as fast (geometric mean of %d; %.2fx at least).\n", mean, n, least)
	}
	if !slices.ContainsFunc(series, func(s string) bool { return strings.HasPrefix(s, replay.PolicyPenstock) }) {
		_, err := io.WriteString(w, b.String())
		return err
	}
	for _, other := range []string{replay.PolicyNaive, replay.PolicyLRU, replay.PolicyDeepUM} {
		if mean, least, n := compare(points, other, replay.PolicyPenstock); n > 0 {
			fmt.Fprintf(&b, "penstock runs at %.2fx the speed of %s (geometric mean of %d; %.2fx at least).\n", mean, other, n, least)
		}
	}
	if mean, least, n := compare(points, replay.PolicyOracle, replay.PolicyPenstock); n > 0 {
		fmt.Fprintf(&b, "penstock takes %.2fx as long as the bound (geometric mean of %d; %.2fx at most).\n", 1/mean, n, 1/least)
	}
	explicit := func(policy string) string { return seriesOf(policy, replay.EngineExplicit) }
	if mean, least, n := compare(points, explicit(replay.PolicyPenstock), replay.PolicyPenstock); n > 0 {
		fmt.Fprintf(&b, "the explicit engine takes %.2fx as long as the managed one (geometric mean of %d; %.2fx at least).\n", mean, n, least)
	}
	if mean, least, n := compare(points, explicit(replay.PolicyOracle), explicit(replay.PolicyPenstock)); n > 0 {
		fmt.Fprintf(&b, "the explicit engine takes %.2fx as long as its bound (geometric mean of %d; %.2fx at most).\n", 1/mean, n, 1/least)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// compare divides the times of a by those of b: the geometric mean, the least, and over how many points.
func compare(points []point, a, b string) (mean, least float64, n int) {
	least = math.Inf(1)
	var logs float64
	for _, p := range points {
		x, okX := p.seconds[a]
		y, okY := p.seconds[b]
		if !okX || !okY || x <= 0 || y <= 0 {
			continue
		}
		n++
		logs += math.Log(x / y)
		least = min(least, x/y)
	}
	return math.Exp(logs / float64(max(n, 1))), least, n
}

// point is one trace at one ratio.
type point struct {
	trace   string
	ratio   float64
	budget  int64
	compute float64
	seconds map[string]float64 // by series
}

func pointsOf(rows []benchRow) []point {
	var points []point
	for _, r := range rows {
		i := slices.IndexFunc(points, func(p point) bool { return p.trace == r.Trace && p.ratio == r.Ratio })
		if i < 0 {
			i = len(points)
			points = append(points, point{trace: r.Trace, ratio: r.Ratio, budget: r.BudgetBytes, compute: r.ComputeSeconds, seconds: map[string]float64{}})
		}
		points[i].seconds[seriesOf(r.Policy, r.Engine)] = r.IterationSeconds
	}
	return points
}

func order(series string) int {
	if strings.HasPrefix(series, replay.PolicyOracle) {
		return 1
	}
	return 0
}

func headings(series []string) []string {
	names := make([]string, len(series))
	for i, s := range series {
		names[i] = s
		if rest, ok := strings.CutPrefix(s, replay.PolicyOracle); ok {
			names[i] = "bound" + rest
		}
	}
	return names
}

func seconds(by map[string]float64, series string) string {
	if v, ok := by[series]; ok {
		return fmt.Sprintf("%.3f", v)
	}
	return "-"
}

func quotient(by map[string]float64, a, b string) string {
	x, okX := by[a]
	y, okY := by[b]
	if !okX || !okY || y <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fx", x/y)
}
