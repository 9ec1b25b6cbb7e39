package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed fragmentation.html.tmpl
var fragmentationSource string

// fragmentationTemplate shares the page's styles and plots.
var fragmentationTemplate = template.Must(template.Must(pageTemplate.Clone()).New("fragmentation").Parse(fragmentationSource))

// The moments that the text shows, and the width of its bars.
const (
	textMoments = 16
	textBar     = 32
)

// WriteText writes the report for a terminal.
func (f Fragmentation) WriteText(w io.Writer) error {
	u := unitFor(f.PeakReservedBytes)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d allocations; reserved is %s, %s\n", plain(f.Trace), f.Allocations, f.Reserved, f.Allocator)
	fmt.Fprintf(&b, "  requested  %s at most\n", u.format(f.PeakRequestedBytes))
	fmt.Fprintf(&b, "  active     %s at most, in blocks\n", u.format(f.PeakActiveBytes))
	fmt.Fprintf(&b, "  reserved   %s at most, %.3f of the peak requested\n", u.format(f.PeakReservedBytes), f.ReservedOverPeak)
	fmt.Fprintf(&b, "  lost       %s, held and at no time needed (%s at the worst moment)\n\n", u.format(f.LostBytes), u.format(f.MostIdleBytes))
	fmt.Fprintf(&b, "  %12s %10s %10s %10s %s\n", f.timeHead(), "reserved", "active", "lost", "= active, - lost ("+u.name+")")
	for _, m := range f.moments(textMoments) {
		active := int(float64(m.ActiveBytes) / float64(f.PeakReservedBytes) * textBar)
		all := int(float64(max(m.ReservedBytes, m.ActiveBytes)) / float64(f.PeakReservedBytes) * textBar)
		fmt.Fprintf(&b, "  %12s %10s %10s %10s |%s%s\n", f.timeOf(m), u.in(m.ReservedBytes), u.in(m.ActiveBytes), u.in(m.LostBytes()),
			strings.Repeat("=", min(active, textBar)), strings.Repeat("-", max(0, min(all, textBar)-active)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f Fragmentation) timeHead() string {
	if f.HasClock {
		return "seconds"
	}
	return "operation"
}

func (f Fragmentation) timeOf(m UseOfBytes) string {
	if f.HasClock {
		return fmt.Sprintf("%.3f", m.Seconds)
	}
	return formatCount(int64(m.Operation))
}

// at is where a moment lies on the axis of time.
func (f Fragmentation) at(m UseOfBytes) float64 {
	if f.HasClock {
		return m.Seconds
	}
	return float64(m.Operation)
}

// moments are n of the timeline: of each stretch the one with the most reserved
// and, of those, the most active.
func (f Fragmentation) moments(n int) []UseOfBytes {
	n = min(n, len(f.Timeline))
	out := make([]UseOfBytes, 0, n)
	for i := range n {
		stretch := f.Timeline[i*len(f.Timeline)/n : (i+1)*len(f.Timeline)/n]
		best := stretch[0]
		for _, m := range stretch {
			if m.ReservedBytes > best.ReservedBytes || m.ReservedBytes == best.ReservedBytes && m.ActiveBytes > best.ActiveBytes {
				best = m
			}
		}
		out = append(out, best)
	}
	return out
}

type fragmentationView struct {
	Title, Note string
	Simulated   bool
	Facts       []fact
	Charts      []chart
}

// WriteHTML writes the report as one self-contained page.
func (f Fragmentation) WriteHTML(w io.Writer) error {
	u := unitFor(f.PeakReservedBytes)
	simulated := f.Reserved == ReservedSimulated
	v := fragmentationView{Title: "Fragmentation of " + f.Trace, Simulated: simulated, Facts: []fact{
		{"Allocations", formatCount(int64(f.Allocations))},
		{"Requested, at most", u.format(f.PeakRequestedBytes)},
		{"Reserved, at most", fmt.Sprintf("%s (%.3f of that)", u.format(f.PeakReservedBytes), f.ReservedOverPeak)},
		{"Held and at no time needed", u.format(f.LostBytes)},
		{"Allocator", f.Allocator},
	}}
	if f.Source != "" {
		v.Facts = append(v.Facts, fact{"Source", f.Source})
	}
	kept := f.Thinned(keptMoments).Timeline
	v.Charts = []chart{
		f.chart("memory", "Reserved and active memory", kept, u, []series{
			{"p-lru", "reserved", true, func(m UseOfBytes) int64 { return m.ReservedBytes }},
			{"p-penstock", "active", true, func(m UseOfBytes) int64 { return m.ActiveBytes }}}),
		f.chart("lost", "Lost memory: reserved and not active", kept, unitFor(f.MostIdleBytes), []series{
			{"p-deepum", "lost", true, func(m UseOfBytes) int64 { return m.LostBytes() }}}),
	}
	var b bytes.Buffer
	if err := fragmentationTemplate.Execute(&b, v); err != nil {
		return fmt.Errorf("report: rendering the page: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// series is one line of a chart.
type series struct {
	class, name string
	area        bool
	value       func(UseOfBytes) int64
}

func (f Fragmentation) chart(id, title string, kept []UseOfBytes, u byteUnit, all []series) chart {
	var most int64
	for _, s := range all {
		for _, m := range kept {
			most = max(most, s.value(m))
		}
	}
	limit, last := float64(most)*1.06, f.at(kept[len(kept)-1])
	label := "allocations and frees"
	if f.HasClock {
		label = "time (s)"
	}
	const width = 2 * wideWidth
	c := newChart(title, width, axis{last, 1, label}, axis{limit, u.bytes, u.name})
	c.ID, c.Note = id, ""
	if f.Reserved == ReservedSimulated {
		c.Note = "simulated"
	}
	x, y := xScale(last, width), yScale(limit)
	c.Data.Head = []string{f.timeHead()}
	var words []string
	for _, s := range all {
		stroke := steps(kept, x, y, f.at, s.value)
		l := line{Class: s.class, Path: stroke, Title: s.name}
		if s.area {
			l.Area = stroke + "V" + position(plotBottom) + "H" + position(x.at(f.at(kept[0]))) + "Z"
		}
		c.Lines = append(c.Lines, l)
		c.Data.Head = append(c.Data.Head, s.name)
		var top int64
		for _, m := range kept {
			top = max(top, s.value(m))
		}
		words = append(words, s.name+" "+u.format(top))
	}
	c.Description = "At most: " + strings.Join(words, "; ") + "."
	for _, m := range f.moments(12) {
		row := []string{f.timeOf(m)}
		for _, s := range all {
			row = append(row, u.format(s.value(m)))
		}
		c.Data.Rows = append(c.Data.Rows, row)
	}
	return c
}

// steps draws a value that stays as it is until the next moment.
func steps(kept []UseOfBytes, x, y scale, at func(UseOfBytes) float64, value func(UseOfBytes) int64) string {
	var b strings.Builder
	for i, m := range kept {
		px, py := position(x.at(at(m))), position(y.at(float64(value(m))))
		if i == 0 {
			b.WriteString("M" + px + " " + py)
		} else {
			b.WriteString("H" + px + "V" + py)
		}
	}
	return b.String()
}
