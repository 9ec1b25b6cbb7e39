package view

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/internal/size"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"cell": func(t Table, row []any, i int) string { return Plain(Cell(row[i], t.Columns[i].Unit), 200) },
}).Parse(pageText))

// page is what the template shows.
type page struct {
	Title    string
	Facts    [][2]string
	Findings []Finding
	Plots    []plot
	Heat     *heatPlot
	Tables   []pageTable
	Shades   []int
}

type pageTable struct {
	Table
	Shown   [][]any
	Cut     int
	Columns []pageColumn
}

type pageColumn struct {
	At     int
	Title  string
	Number bool
}

const (
	plotWidth  = 1100
	plotHeight = 130
)

// plot is one line over time, as an SVG path of an area, with its text equivalent.
type plot struct {
	Title, Most, Text string
	Path              string
	Class             string
}

// heatPlot is a grid of cells; shade is 0 to 9.
type heatPlot struct {
	Width, Height int
	Cells         []heatCell
	Text          string
}

type heatCell struct {
	X, Y, W, H float64
	Shade      int
	Title      string
}

// WriteHTML writes everything about a report as one page that needs no network and no script.
func WriteHTML(w io.Writer, r *analyse.Report) error {
	p := page{Title: Plain(r.Trace, 200), Shades: []int{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	if p.Title == "" {
		p.Title = "recording"
	}
	for _, f := range Explain(r) {
		p.Findings = append(p.Findings, Finding{What: Plain(f.What, 1200), Do: Plain(f.Do, 600)})
	}
	h := r.Header
	for _, f := range [][2]string{{"command", h.Command}, {"GPU", h.GPU}, {"driver", h.Driver}, {"policy", h.Policy}} {
		if f[1] != "" {
			p.Facts = append(p.Facts, [2]string{f[0], Plain(f[1], 300)})
		}
	}
	if h.BudgetBytes > 0 {
		p.Facts = append(p.Facts, [2]string{"budget", size.Text(h.BudgetBytes)})
	}
	if !h.Started.IsZero() {
		p.Facts = append(p.Facts, [2]string{"recorded", h.Started.Format("2006-01-02 15:04:05 MST")})
	}
	p.Plots = plots(r)
	p.Heat = heatOf(r)
	for _, v := range Views {
		if v.Name == "timeline" || v.Name == "heatmap" {
			continue // drawn above
		}
		t, _ := Make(v.Name, r)
		t.Note = Plain(t.Note, 1000)
		if len(t.Rows) == 0 {
			continue
		}
		x := pageTable{Table: t}
		x.Shown, x.Cut = t.shown()
		for _, i := range t.visible() {
			x.Columns = append(x.Columns, pageColumn{At: i, Title: t.Columns[i].Title, Number: !t.Columns[i].named() || i > 0 && t.Columns[0].ID == "quantity"})
		}
		p.Tables = append(p.Tables, x)
	}
	return pageTemplate.Execute(w, p)
}

func plots(r *analyse.Report) []plot {
	b := r.Timeline.Buckets
	if len(b) == 0 {
		return nil
	}
	width := r.Timeline.BucketSeconds
	rate := func(n int64) float64 { return float64(n) / width }
	var out []plot
	for _, x := range []struct {
		title, class string
		value        func(e analyse.TimelineEntry) float64
		show         func(v float64) string
	}{
		{"GPU faults a second", "faults", func(e analyse.TimelineEntry) float64 { return rate(e.Faults) }, func(v float64) string { return count(int64(v)) + " a second" }},
		{"To the device (HtoD)", "in", func(e analyse.TimelineEntry) float64 { return rate(e.H2DBytes) }, func(v float64) string { return size.Text(int64(v)) + "/s" }},
		{"To the host (DtoH)", "out", func(e analyse.TimelineEntry) float64 { return rate(e.D2HBytes) }, func(v float64) string { return size.Text(int64(v)) + "/s" }},
		{"Resident on the device", "resident", func(e analyse.TimelineEntry) float64 { return float64(e.ResidentBytes) }, func(v float64) string { return size.Text(int64(v)) }},
	} {
		most, at, sum := 0.0, 0, 0.0
		for i, e := range b {
			v := x.value(e)
			sum += v
			if v > most {
				most, at = v, i
			}
		}
		if most == 0 {
			continue
		}
		var path strings.Builder
		fmt.Fprintf(&path, "M0 %d", plotHeight)
		step := float64(plotWidth) / float64(len(b))
		for i, e := range b {
			y := plotHeight * (1 - x.value(e)/most)
			fmt.Fprintf(&path, "L%.1f %.1fL%.1f %.1f", float64(i)*step, y, float64(i+1)*step, y)
		}
		fmt.Fprintf(&path, "L%d %dZ", plotWidth, plotHeight)
		out = append(out, plot{Title: x.title, Most: x.show(most), Class: x.class, Path: path.String(),
			Text: fmt.Sprintf("At most %s, at %s; %s on average over %s.", x.show(most), seconds(b[at].Seconds), x.show(sum/float64(len(b))), seconds(float64(len(b))*width))})
	}
	return out
}

// mostHeatRows are drawn; more are merged.
const mostHeatRows = 96

func heatOf(r *analyse.Report) *heatPlot {
	rows := r.Heat.Rows
	if len(rows) == 0 {
		return nil
	}
	each := (len(rows) + mostHeatRows - 1) / mostHeatRows
	columns := 0
	for _, x := range rows {
		columns = max(columns, len(x.Faults))
	}
	n := (len(rows) + each - 1) / each
	grid := make([][]int64, n)
	var most int64
	for i, x := range rows {
		g := grid[i/each]
		if g == nil {
			g = make([]int64, columns)
			grid[i/each] = g
		}
		for c, v := range x.Faults {
			g[c] += int64(v)
			most = max(most, g[c])
		}
	}
	const height = 6
	h := &heatPlot{Width: plotWidth, Height: n * height}
	w := float64(plotWidth) / float64(columns)
	for i, g := range grid {
		for c, v := range g {
			if v == 0 {
				continue
			}
			shade := int(9 * math.Log1p(float64(v)) / math.Log1p(float64(most)))
			h.Cells = append(h.Cells, heatCell{X: float64(c) * w, Y: float64(i * height), W: w, H: height, Shade: min(max(shade, 1), 9),
				Title: fmt.Sprintf("%#x, at %s: %s faults", rows[i*each].Address, seconds(float64(c)*r.Heat.ColumnSeconds), count(v))})
		}
	}
	last := rows[len(rows)-1].Address + r.Heat.RowBytes
	h.Text = fmt.Sprintf("%s stretches of %s between %#x and %#x had faults; each line is %d of them, lowest address first; at most %s faults in one cell of %s. Stretches without faults are left out.",
		count(int64(len(rows))), size.Text(int64(r.Heat.RowBytes)), rows[0].Address, last, each, count(most), seconds(r.Heat.ColumnSeconds))
	return h
}
