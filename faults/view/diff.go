package view

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/faults/analyse"
)

// Diff sets two reports beside each other: tables, and sentences about what changed.
type Diff struct {
	A, B     string
	Tables   []Table
	Findings []Finding
}

// Compare compares two reports, the second against the first.
func Compare(a, b *analyse.Report) Diff {
	d := Diff{A: a.Trace, B: b.Trace}
	d.Tables = []Table{totals(a, b), byCause(a, b), byKernel(a, b)}
	d.Findings = changes(a, b)
	return d
}

var diffColumns = []Column{{"quantity", "", Text}, {"a", "A", Text}, {"b", "B", Text}, {"change", "Change", Text}}

func diffTable(name, title string) Table {
	return Table{Name: name, Title: title, Columns: append(slices.Clone(diffColumns), Column{"raw", "", Number})}
}

// line adds a row; values are int64 or float64.
func (t *Table) line(name string, u Unit, a, b float64) {
	show := func(v float64) string {
		if u == Bytes || u == Count {
			return Cell(int64(v), u)
		}
		return Cell(v, u)
	}
	t.Rows = append(t.Rows, []any{name, show(a), show(b), change(a, b), b - a})
}

func change(a, b float64) string {
	switch {
	case a == b:
		return "="
	case a == 0:
		return "new"
	case b == 0:
		return "gone"
	case b > 10*a:
		return fmt.Sprintf("x%.0f", b/a)
	}
	return fmt.Sprintf("%+.1f %%", 100*(b-a)/a)
}

func totals(a, b *analyse.Report) Table {
	t := diffTable("diff_summary", "Totals")
	x, y := a.Summary, b.Summary
	t.line("duration", Seconds, a.Seconds, b.Seconds)
	if p, q := perIteration(a), perIteration(b); p > 0 && q > 0 {
		t.line("an iteration, median", Seconds, p, q)
	}
	t.line("GPU faults", Count, float64(x.Faults), float64(y.Faults))
	t.line("CPU faults", Count, float64(x.CPUFaults), float64(y.CPUFaults))
	t.line("moved to the device", Bytes, float64(x.H2DBytes), float64(y.H2DBytes))
	t.line("moved to the host", Bytes, float64(x.D2HBytes), float64(y.D2HBytes))
	t.line("brought in by faults", Bytes, float64(x.FaultedBytes), float64(y.FaultedBytes))
	t.line("fetched ahead", Bytes, float64(a.Predictor.PrefetchedBytes), float64(b.Predictor.PrefetchedBytes))
	t.line("migration amplification", Number, x.Amplification, y.Amplification)
	t.line("stalled by faults", Seconds, x.StallSeconds, y.StallSeconds)
	t.line("launches", Count, float64(x.Launches), float64(y.Launches))
	return t
}

func perIteration(r *analyse.Report) float64 {
	var all []float64
	for _, i := range r.Iterations[len(r.Iterations)/2:] {
		all = append(all, i.Seconds)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func byCause(a, b *analyse.Report) Table {
	t := diffTable("diff_causes", "Faults by cause")
	for i := range min(len(a.Causes), len(b.Causes)) {
		t.line(a.Causes[i].Cause, Count, float64(a.Causes[i].Faults), float64(b.Causes[i].Faults))
	}
	return t
}

func byKernel(a, b *analyse.Report) Table {
	t := diffTable("diff_kernels", "Faults by kernel, largest change first")
	t.Columns[0].Unit = Kernel
	type pair struct{ a, b int64 }
	all := map[string]*pair{}
	for _, k := range a.Kernels {
		all[k.Kernel] = &pair{a: k.Faults}
	}
	for _, k := range b.Kernels {
		if all[k.Kernel] == nil {
			all[k.Kernel] = &pair{}
		}
		all[k.Kernel].b = k.Faults
	}
	var names []string
	for n, p := range all {
		if p.a != p.b {
			names = append(names, n)
		}
	}
	away := func(n string) int64 { return max(all[n].a-all[n].b, all[n].b-all[n].a) }
	slices.SortFunc(names, func(x, y string) int { return cmp.Or(cmp.Compare(away(y), away(x)), cmp.Compare(x, y)) })
	for _, n := range names {
		t.line(n, Count, float64(all[n].a), float64(all[n].b))
	}
	return t
}

// changes are the sentences.
func changes(a, b *analyse.Report) []Finding {
	var out []Finding
	say := func(format string, args ...any) { out = append(out, Finding{What: fmt.Sprintf(format, args...)}) }
	x, y := a.Summary, b.Summary
	// Runs of different length are compared by iteration, or else by launch.
	scale, per := 1.0, ""
	switch {
	case len(a.Iterations) > 0 && len(b.Iterations) > 0 && len(a.Iterations) != len(b.Iterations):
		scale, per = float64(len(a.Iterations))/float64(len(b.Iterations)), " in as many iterations"
	case x.Launches > 0 && y.Launches > 0 && share(max(x.Launches, y.Launches)-min(x.Launches, y.Launches), x.Launches) > 0.02:
		scale, per = float64(x.Launches)/float64(y.Launches), " for as many launches"
	}
	scaled := func(n int64) int64 { return int64(float64(n) * scale) }
	compare := func(what string, u Unit, p, q int64) {
		q = scaled(q)
		switch {
		case p == 0 && q == 0:
		case p == q:
			say("%s: %s in both.", what, Cell(p, u))
		case q == 0:
			say("%s: gone, from %s.", what, Cell(p, u))
		case p == 0:
			say("%s: new, %s%s.", what, Cell(q, u), per)
		case q < p:
			say("%s: down %.1f %%, from %s to %s%s.", what, 100*(1-float64(q)/float64(p)), Cell(p, u), Cell(q, u), per)
		default:
			say("%s: up %.1f %%, from %s to %s%s.", what, 100*(float64(q)/float64(p)-1), Cell(p, u), Cell(q, u), per)
		}
	}
	if p, q := perIteration(a), perIteration(b); p > 0 && q > 0 {
		word, times := "faster", p/q
		if q > p {
			word, times = "slower", q/p
		}
		if times < 1.005 {
			say("An iteration takes %s in both.", seconds(p))
		} else {
			say("An iteration takes %s instead of %s: %.2f times %s.", seconds(q), seconds(p), times, word)
		}
	}
	compare("GPU faults", Count, x.Faults, y.Faults)
	compare("Bytes to the device", Bytes, x.H2DBytes, y.H2DBytes)
	compare("Bytes to the host", Bytes, x.D2HBytes, y.D2HBytes)
	if p, q := a.Predictor.Coverage, b.Predictor.Coverage; p != q && (x.H2DBytes > 0 || y.H2DBytes > 0) {
		say("Fetched ahead of need: %s of what came in, before %s.", Cell(q, Share), Cell(p, Share))
	}
	worst, most := -1, int64(0)
	for i := range min(len(a.Causes), len(b.Causes)) {
		if d := a.Causes[i].Faults - scaled(b.Causes[i].Faults); max(d, -d) > most {
			worst, most = i, max(d, -d)
		}
	}
	if worst >= 0 && x.Faults+y.Faults > 0 {
		p, q := a.Causes[worst].Faults, scaled(b.Causes[worst].Faults)
		say("The largest change is in %q: %s before, %s now%s.", a.Causes[worst].Cause, count(p), count(q), per)
	}
	if len(out) == 0 {
		say("Nothing changed that these recordings show.")
	}
	return out
}
