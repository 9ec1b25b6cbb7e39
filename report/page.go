package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/penstock-gpu/penstock/replay"
)

//go:embed page.html.tmpl
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

// WriteHTML writes the results as one self-contained page. It fails, before
// writing anything, on no results and on results that contradict themselves.
func WriteHTML(w io.Writer, title string, results []replay.Result) error {
	cases, err := group(results)
	if err != nil {
		return err
	}
	if strings.TrimSpace(title) == "" {
		title = "Penstock replay"
	}
	page := pageView{Title: title, Summary: summarise(cases)}
	for i, c := range cases {
		page.Cases = append(page.Cases, viewCase(c, fmt.Sprintf("case%d", i+1)))
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, page); err != nil {
		return fmt.Errorf("report: rendering the page: %w", err)
	}
	_, err = w.Write(b.Bytes())
	return err
}

type pageView struct {
	Title   string
	Summary []summaryRow
	Cases   []caseView
}

// summaryRow is a policy over every point of every case.
type summaryRow struct {
	Label, Class             string
	Points                   int
	Times, Share, WorstShare string
}

type caseView struct {
	ID, Trace, GPU  string
	Facts           []fact
	Cards           []card
	Ratios          []ratioView
	Matrix          []matrixRow
	Points          []pointView
	BytesUnit       string
	TimeUnit        string
	SeveralEngines  bool
	MissingTimeline []string // labels of results without one
}

type fact struct{ Name, Value string }

// card is the headline of one ratio: what Penstock's own policy gains.
type card struct{ Ratio, Times, Share, Label, Target string }

type ratioView struct{ Label, Budget, Target string }

type matrixRow struct {
	Label, Class string
	Bound        bool
	Cells        []matrixCell
}

type matrixCell struct {
	Has         bool
	Time        string
	Beside      string // the bound, in words
	Share       string
	ShareNumber float64 // percent, for the bar
}

type pointView struct {
	ID, Ratio, Budget string
	Rows              []detailRow
	Legend            []legendItem
	Bars              barChart
	Charts            []chart // traffic each way, stalls
	Memory            []chart // one a row
}

type legendItem struct{ Label, Class string }

type detailRow struct {
	Label, Class                           string
	Bound                                  bool
	Time, BoundTime, Share, Times          string
	Stall, ToGPU, ToHost, Faults, Predicts string
}

type barChart struct {
	ID, Description string
	Bars            []bar
	Width, Height   float64
	BoundAt         string // x of the bound; "" without one
	BoundLabel      string
}

type bar struct {
	Label, Value, Class     string
	TextY, Y                string
	ComputeWidth, WaitX     string
	WaitWidth, Title, Right string
}

// policyClass is the CSS class of a policy's colour. Names reach CSS only through this table.
func policyClass(policy string, others map[string]int) string {
	switch policy {
	case replay.PolicyNaive:
		return "p-naive"
	case replay.PolicyLRU:
		return "p-lru"
	case replay.PolicyDeepUM:
		return "p-deepum"
	case replay.PolicyPenstock:
		return "p-penstock"
	case replay.PolicyOracle:
		return "p-oracle"
	}
	if _, known := others[policy]; !known {
		others[policy] = len(others)
	}
	return fmt.Sprintf("p-other%d", others[policy]%3)
}

// classer names the classes of a case's rows: colour by policy, dashes by engine.
type classer struct {
	others  map[string]int
	engines []string
}

func (c classer) of(r row) string {
	class := policyClass(r.Policy, c.others)
	for i, e := range c.engines {
		if e == r.Engine && i > 0 {
			class += fmt.Sprintf(" e%d", min(i, 2))
		}
	}
	return class
}

func newClasser(c benchCase) classer {
	// The managed engine, where there is one, has the plain lines.
	engines := make([]string, 0, len(c.engines))
	for _, e := range c.engines {
		if e == replay.EngineManaged {
			engines = append([]string{e}, engines...)
		} else {
			engines = append(engines, e)
		}
	}
	return classer{others: map[string]int{}, engines: engines}
}

func viewCase(c benchCase, id string) caseView {
	classes := newClasser(c)
	v := caseView{
		ID: id, Trace: c.trace, GPU: c.gpu,
		BytesUnit: c.bytes.name, TimeUnit: c.time.name, SeveralEngines: len(c.engines) > 1,
		Facts: []fact{
			{"GPU profile", c.gpu},
			{"Engine", strings.Join(c.engines, ", ")},
			{"Peak live", c.bytes.format(c.peakLiveBytes)},
			{"Compute an iteration", c.time.format(c.computeSeconds)},
		},
	}
	v.Matrix = viewMatrix(c, classes)
	for i, p := range c.points {
		pid := fmt.Sprintf("%s-%d", id, i+1)
		v.Ratios = append(v.Ratios, ratioView{formatRatio(p.ratio), c.bytes.format(p.budgetBytes), pid})
		if k, ok := viewCard(p, pid); ok {
			v.Cards = append(v.Cards, k)
		}
		v.Points = append(v.Points, viewPoint(c, p, classes, pid))
		for _, r := range p.rows {
			if len(r.Timeline) < 2 {
				v.MissingTimeline = append(v.MissingTimeline, formatRatio(p.ratio)+" "+r.label)
			}
		}
	}
	return v
}

// viewCard is about Penstock's own policy, on the managed engine where it has several.
func viewCard(p point, target string) (card, bool) {
	var best *row
	for i := range p.rows {
		r := &p.rows[i]
		if r.Policy == replay.PolicyPenstock && (best == nil || r.Engine == replay.EngineManaged) {
			best = r
		}
	}
	if best == nil {
		return card{}, false
	}
	k := card{Ratio: formatRatio(p.ratio), Label: best.label, Target: target}
	if t, ok := best.overNaive(); ok {
		k.Times = formatTimes(t)
	}
	if s, ok := best.ofBound(); ok {
		k.Share = formatShare(s)
	}
	return k, k.Times != "" || k.Share != ""
}

func viewMatrix(c benchCase, classes classer) []matrixRow {
	type key struct{ policy, engine string }
	// Rows in the order of a point; a policy that some budgets lack still has its place.
	var all point
	seen := map[key]bool{}
	for _, p := range c.points {
		for _, r := range p.rows {
			if k := (key{r.Policy, r.Engine}); !seen[k] {
				seen[k] = true
				all.rows = append(all.rows, row{Result: r.Result})
			}
		}
	}
	all.finish(len(c.engines) > 1)
	var out []matrixRow
	for _, r := range all.rows {
		m := matrixRow{Label: r.label, Class: classes.of(r), Bound: r.isBound()}
		for _, p := range c.points {
			m.Cells = append(m.Cells, viewCell(c, p, r.Policy, r.Engine))
		}
		out = append(out, m)
	}
	return out
}

func viewCell(c benchCase, p point, policy, engine string) matrixCell {
	for _, r := range p.rows {
		if r.Policy != policy || r.Engine != engine {
			continue
		}
		cell := matrixCell{Has: true, Time: c.time.format(r.IterationSeconds)}
		if share, ok := r.ofBound(); ok {
			cell.Share = formatShare(share)
			cell.ShareNumber = math.Round(min(share, 1) * 100)
			cell.Beside = "bound " + boundText(c, r)
		}
		return cell
	}
	return matrixCell{}
}

// boundText is the time of the bound, and its engine where that is not the row's own.
func boundText(c benchCase, r row) string {
	text := c.time.format(r.bound.IterationSeconds)
	if r.bound.Engine != r.Engine {
		text += " (" + r.bound.Engine + ")"
	}
	return text
}

func viewPoint(c benchCase, p point, classes classer, id string) pointView {
	v := pointView{ID: id, Ratio: formatRatio(p.ratio), Budget: c.bytes.format(p.budgetBytes)}
	for _, r := range p.rows {
		d := detailRow{
			Label: r.label, Class: classes.of(r), Bound: r.isBound(),
			Time: c.time.in(r.IterationSeconds), Stall: c.time.in(r.StallSeconds),
			ToGPU: c.bytes.in(r.H2DBytes), ToHost: c.bytes.in(r.D2HBytes), Faults: formatCount(r.Faults),
			BoundTime: "–", Share: "–", Times: "–", Predicts: "–",
		}
		if r.bound != nil {
			d.BoundTime = strings.Replace(boundText(c, r), " "+c.time.name, "", 1)
		}
		if s, ok := r.ofBound(); ok {
			d.Share = formatShare(s)
		}
		if t, ok := r.overNaive(); ok {
			d.Times = formatTimes(t)
		}
		if r.predicts() {
			d.Predicts = formatShare(r.PredictionHitRate)
		}
		v.Rows = append(v.Rows, d)
		v.Legend = append(v.Legend, legendItem{r.label, classes.of(r)})
	}
	v.Bars = viewBars(c, p, classes, id)
	v.Charts = progressCharts(c, p, classes, id)
	v.Memory = memoryCharts(c, p, classes, id)
	return v
}

// viewBars draws iteration time by policy: compute, then the time the GPU waited.
func viewBars(c benchCase, p point, classes classer, id string) barChart {
	const rowHeight, left, right = 37.0, 2.0, wideWidth - 2
	longest := 0.0
	for _, r := range p.rows {
		longest = max(longest, r.IterationSeconds)
	}
	x := scale{longest, left, right}
	chart := barChart{ID: id + "-bars", Width: wideWidth, Height: rowHeight*float64(len(p.rows)) + 6}
	var words []string
	for i, r := range p.rows {
		top := rowHeight * float64(i)
		compute := min(r.ComputeSeconds, r.IterationSeconds)
		value := c.time.format(r.IterationSeconds)
		if s, ok := r.ofBound(); ok {
			value += ", " + formatShare(s) + " of the bound"
		} else if r.isBound() {
			value += ", the bound"
			chart.BoundAt = position(x.at(r.IterationSeconds))
		}
		words = append(words, r.label+" "+value)
		chart.Bars = append(chart.Bars, bar{
			Label: shorten(r.label, 34), Value: value, Class: classes.of(r),
			TextY: position(top + 14), Y: position(top + 20),
			ComputeWidth: position(x.at(compute) - left),
			WaitX:        position(x.at(compute)),
			WaitWidth:    position(x.at(r.IterationSeconds) - x.at(compute)),
			Title: fmt.Sprintf("%s: %s compute, %s waiting for memory", r.label,
				c.time.format(compute), c.time.format(r.IterationSeconds-compute)),
			Right: position(right),
		})
	}
	chart.Description = "Iteration time by policy: " + strings.Join(words, "; ") + "."
	return chart
}

// progressCharts are the plots that hold every policy: bytes each way and stalls, cumulative over time.
func progressCharts(c benchCase, p point, classes classer, id string) []chart {
	rows := withTimeline(p.rows)
	if len(rows) == 0 {
		return nil
	}
	var longest float64
	var mostBytes int64
	for _, r := range rows {
		last := r.Timeline[len(r.Timeline)-1]
		longest = max(longest, last.Seconds)
		mostBytes = max(mostBytes, last.H2DBytes, last.D2HBytes)
	}
	bytesUnit := unitFor(mostBytes)
	plots := []struct {
		id, title, unit string
		yUnit           float64
		value           func(replay.Sample) float64
		format          func(float64) string
		limit           float64
	}{
		{"gpu", "Traffic to the GPU", bytesUnit.name, bytesUnit.bytes,
			func(s replay.Sample) float64 { return float64(s.H2DBytes) },
			func(v float64) string { return bytesUnit.in(int64(v)) }, float64(mostBytes)},
		{"host", "Traffic to the host", bytesUnit.name, bytesUnit.bytes,
			func(s replay.Sample) float64 { return float64(s.D2HBytes) },
			func(v float64) string { return bytesUnit.in(int64(v)) }, float64(mostBytes)},
		{"stall", "Stalls", c.time.name, c.time.seconds,
			func(s replay.Sample) float64 { return s.StallSeconds },
			c.time.in, 0},
	}
	var out []chart
	for _, plot := range plots {
		limit := plot.limit
		for _, r := range rows {
			limit = max(limit, plot.value(r.Timeline[len(r.Timeline)-1]))
		}
		ch := newChart(plot.title, wideWidth, axis{longest, c.time.seconds, "time (" + c.time.name + ")"}, axis{limit * 1.04, plot.yUnit, plot.unit})
		ch.ID = id + "-" + plot.id
		x, y := xScale(longest, wideWidth), yScale(limit*1.04)
		shares := []float64{0, 0.25, 0.5, 0.75, 1}
		ch.Data.Head = []string{"policy", "start", "25 %", "50 %", "75 %", "end", "iteration"}
		var words []string
		for _, r := range rows {
			samples := thin(r.Timeline, keptMoments, residency)
			last := samples[len(samples)-1]
			total := plot.format(plot.value(last)) + " " + plot.unit
			ch.Lines = append(ch.Lines, line{
				Class: classes.of(r),
				Path:  path(samples, x, y, plot.value),
				EndX:  position(x.at(last.Seconds)), EndY: position(y.at(plot.value(last))),
				Title: fmt.Sprintf("%s: %s after %s", r.label, total, c.time.format(last.Seconds)),
			})
			words = append(words, r.label+" "+total)
			data := []string{r.label}
			for _, s := range moments(r.Timeline, shares) {
				data = append(data, plot.format(plot.value(s))+" "+plot.unit)
			}
			ch.Data.Rows = append(ch.Data.Rows, append(data, c.time.format(last.Seconds)))
		}
		ch.Description = "Cumulative over the iteration, in all: " + strings.Join(words, "; ") + "."
		out = append(out, ch)
	}
	return out
}

// memoryCharts are one plot a policy: residency and live bytes against the budget.
func memoryCharts(c benchCase, p point, classes classer, id string) []chart {
	rows := withTimeline(p.rows)
	most := p.budgetBytes
	for _, r := range rows {
		for _, s := range r.Timeline {
			most = max(most, s.ResidentBytes, s.LiveBytes)
		}
	}
	limit := float64(most) * 1.06
	var out []chart
	for i, r := range rows {
		last := r.Timeline[len(r.Timeline)-1].Seconds
		ch := newChart(r.label, narrowWidth, axis{last, c.time.seconds, "time (" + c.time.name + ")"}, axis{limit, c.bytes.bytes, c.bytes.name})
		ch.ID = fmt.Sprintf("%s-memory%d", id, i+1)
		x, y := xScale(last, narrowWidth), yScale(limit)
		samples := thin(r.Timeline, keptMoments, residency)
		resident := path(samples, x, y, func(s replay.Sample) float64 { return float64(s.ResidentBytes) })
		live := path(samples, x, y, func(s replay.Sample) float64 { return float64(s.LiveBytes) })
		ch.Lines = []line{
			{Class: classes.of(r), Path: resident, Area: areaUnder(resident, samples, x), Title: r.label + ": resident bytes"},
			{Class: "live", Path: live, Title: r.label + ": live bytes"},
		}
		budget := y.at(float64(p.budgetBytes))
		ch.Rules = []rule{{
			At: position(budget), LabelAt: position(budget - 4), Class: "budget",
			Label: "budget " + c.bytes.format(p.budgetBytes),
		}}
		var peakResident, peakLive int64
		for _, s := range r.Timeline {
			peakResident, peakLive = max(peakResident, s.ResidentBytes), max(peakLive, s.LiveBytes)
		}
		ch.Description = fmt.Sprintf("Residency peaks at %s of a budget of %s; live bytes peak at %s. The iteration takes %s.",
			c.bytes.format(peakResident), c.bytes.format(p.budgetBytes), c.bytes.format(peakLive), c.time.format(last))
		ch.Data.Head = []string{"time", "resident", "live"}
		for _, s := range moments(r.Timeline, []float64{0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1}) {
			ch.Data.Rows = append(ch.Data.Rows, []string{
				c.time.format(s.Seconds), c.bytes.format(s.ResidentBytes), c.bytes.format(s.LiveBytes),
			})
		}
		out = append(out, ch)
	}
	return out
}

func withTimeline(rows []row) []row {
	var out []row
	for _, r := range rows {
		if len(r.Timeline) >= 2 {
			out = append(out, r)
		}
	}
	return out
}

func shorten(s string, runes int) string {
	r := []rune(s)
	if len(r) <= runes {
		return s
	}
	return string(r[:runes-1]) + "…"
}
