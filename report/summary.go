package report

import (
	"math"
	"slices"
)

// summarise gives each policy's geometric means over all points of all cases.
// One case needs no summary beside its own table.
func summarise(cases []benchCase) []summaryRow {
	if len(cases) < 2 {
		return nil
	}
	engines := map[string]bool{}
	for _, c := range cases {
		for _, e := range c.engines {
			engines[e] = true
		}
	}
	type total struct {
		row                          row
		class                        string
		points, timesCount, shares   int
		logTimes, logShare, minShare float64
	}
	var totals []*total
	others := map[string]int{}
	for _, c := range cases {
		for _, p := range c.points {
			for _, r := range p.rows {
				i := slices.IndexFunc(totals, func(t *total) bool { return t.row.Policy == r.Policy && t.row.Engine == r.Engine })
				if i < 0 {
					totals = append(totals, &total{row: r, class: policyClass(r.Policy, others), minShare: math.Inf(1)})
					i = len(totals) - 1
				}
				t := totals[i]
				t.points++
				if times, ok := r.overNaive(); ok && times > 0 {
					t.logTimes += math.Log(times)
					t.timesCount++
				}
				if share, ok := r.ofBound(); ok && share > 0 {
					t.logShare += math.Log(share)
					t.shares++
					t.minShare = min(t.minShare, share)
				}
			}
		}
	}
	var order point
	for _, t := range totals {
		order.rows = append(order.rows, row{Result: t.row.Result})
	}
	order.finish(len(engines) > 1)
	var out []summaryRow
	for _, r := range order.rows {
		i := slices.IndexFunc(totals, func(t *total) bool { return t.row.Policy == r.Policy && t.row.Engine == r.Engine })
		t := totals[i]
		s := summaryRow{Label: r.label, Class: t.class, Points: t.points, Times: "–", Share: "–", WorstShare: "–"}
		if t.timesCount > 0 {
			s.Times = formatTimes(math.Exp(t.logTimes / float64(t.timesCount)))
		}
		if t.shares > 0 {
			s.Share = formatShare(math.Exp(t.logShare / float64(t.shares)))
			s.WorstShare = formatShare(t.minShare)
		}
		out = append(out, s)
	}
	return out
}
