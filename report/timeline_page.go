package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/um/live/timeline"
)

//go:embed timeline.html.tmpl
var timelineSource string

// timelineTemplate shares the page's styles.
var timelineTemplate = template.Must(template.Must(pageTemplate.Clone()).New("timeline").Parse(timelineSource))

// Geometry of a picture, in SVG user units: a row is a name above a band.
const (
	pictureWidth = 1000.0
	bandHeight   = 22.0
	bandTop      = 15.0 // below the name
	rowPitch     = bandTop + bandHeight + 7
	axisHeight   = 32.0
	tickMargin   = 24.0 // half a label
)

const (
	// overviewColumns and closeColumns are how many stretches of time a picture tells apart.
	overviewColumns = 1000
	closeColumns    = 600
	// closeUps are how many pictures of a part of the window there are.
	closeUps = 8
	// mostMarked are the marks that are drawn: more would hide what they divide.
	mostMarked = 200
	// mostRows of moves are drawn, those with the most time.
	mostRows = 12
)

type timelineView struct {
	Title    string
	Facts    []fact
	Notes    []string
	Overview picture
	Closer   []closeUp
	Tables   []timeTable
}

// closeUp is a part of the window.
type closeUp struct {
	Label   string
	Open    bool // shown at once: the one with the most waiting
	Picture picture
}

// picture draws what went on in a window: a band is in each column as high as the part of its time in which it went on.
type picture struct {
	Description   string
	Width, Height float64
	Top, Bottom   float64
	Rows          []pictureRow
	Marks         []pictureMark
	Ticks         []tick
}

// Mid is where the name of the axis is centred.
func (p picture) Mid() float64 { return p.Width / 2 }

type pictureRow struct {
	Title       string
	NameY, Base string
	Keys        []legendItem
	Areas       []pictureArea // the last one on top
}

type pictureArea struct{ Class, Path, Title string }

type pictureMark struct{ Class, At, Title string }

// band is a row: series that lie on top of one another.
type band struct {
	title  string
	series []bandSeries
}

type bandSeries struct {
	name, class string
	busy        busy
}

// classesOf are the colours by name of span.
var classesOf = map[string]string{
	"for room": "budget", "for new memory": "p-lru", "for a copy or a making": "p-penstock",
	"fetch": "p-penstock", "make": "p-other0", "map": "p-lru", "copy out": "p-deepum",
	"evict": "p-deepum", "leaves clean": "p-naive", "verify": "p-other1",
	"lock": "budget", "plan": "p-lru", "draft": "p-lru", "begin": "p-penstock", "finish": "p-deepum", "rest": "p-naive",
}

func classOf(name string) string {
	if class, ok := classesOf[name]; ok {
		return class
	}
	return "p-other2"
}

// bands are the rows of every picture, from the top. Those of the moves with the least time are left out where there are many.
func (t *Timeline) bands() (rows []band) {
	var times []time.Duration
	for _, k := range t.tracks {
		if k.track == timeline.In || k.track == timeline.Out {
			times = append(times, k.busy.within(t.window))
		}
	}
	slices.Sort(times)
	least := time.Duration(1)
	if len(times) > mostRows {
		least = max(least, times[len(times)-mostRows])
	}
	for _, k := range t.tracks {
		s := bandSeries{k.name, classOf(k.name), k.busy}
		in := k.busy.within(t.window)
		switch {
		case k.track == timeline.In || k.track == timeline.Out:
			if in >= least {
				if words := doing[k.track][k.name]; words != "" {
					s.name += ": " + words
				}
				rows = append(rows, band{series: []bandSeries{s}})
			}
		case in == 0 || k.name == "idle": // which is what is left of a thread's time
		default:
			if n := len(rows); n == 0 || rows[n-1].title != string(k.track) {
				rows = append(rows, band{title: string(k.track)})
			}
			last := &rows[len(rows)-1]
			last.series = append(last.series, s)
		}
	}
	return rows
}

// picture draws a part of the window.
func (t *Timeline) picture(rows []band, w window, columns int) picture {
	p := picture{Width: pictureWidth, Top: bandTop, Bottom: rowPitch * float64(len(rows))}
	p.Height = p.Bottom + axisHeight
	for i, r := range rows {
		top := rowPitch * float64(i)
		row := pictureRow{Title: r.title, NameY: position(top + bandTop - 4), Base: position(top + bandTop + bandHeight)}
		heights := make([]float64, columns)
		for _, s := range r.series {
			for c := range heights {
				column := w.part(c, columns)
				heights[c] = min(1, heights[c]+share(s.busy.within(column), column.length()))
			}
			row.Keys = append(row.Keys, legendItem{s.name, s.class})
			row.Areas = append(row.Areas, pictureArea{s.class, skyline(heights, top+bandTop+bandHeight),
				fmt.Sprintf("%s: %.4f s of these %.3f s", s.name, s.busy.within(w).Seconds(), w.length().Seconds())})
		}
		slices.Reverse(row.Areas) // each is what lies below it as well
		p.Rows = append(p.Rows, row)
	}
	x := func(at time.Duration) float64 { return pictureWidth * share(at-w.from, w.length()) }
	for _, m := range t.marks {
		if w.from <= m.At && m.At < w.to {
			class := "phase"
			if beginsIteration(m) {
				class = "iteration"
			}
			p.Marks = append(p.Marks, pictureMark{class, position(x(m.At)), fmt.Sprintf("%s at %.4f s", m.Name, m.At.Seconds())})
		}
	}
	if len(p.Marks) > mostMarked {
		p.Marks = nil
	}
	step := niceStep(w.length().Seconds(), 8)
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	for n := math.Ceil(w.from.Seconds() / step); n*step <= w.to.Seconds(); n++ {
		at := x(time.Duration(n * step * float64(time.Second)))
		if at >= tickMargin && at <= pictureWidth-tickMargin {
			p.Ticks = append(p.Ticks, tick{At: position(at), Label: strconv.FormatFloat(n*step, 'f', decimals, 64)})
		}
	}
	p.Description = fmt.Sprintf("From %.4f s to %.4f s.", w.from.Seconds(), w.to.Seconds())
	return p
}

// part is one of n equal parts of a window; none is empty.
func (w window) part(i, n int) window {
	at := func(i int) time.Duration { return w.from + time.Duration(float64(w.length())*float64(i)/float64(n)) }
	from := at(i)
	return window{from, max(at(i+1), from+1)}
}

// skyline draws columns of a height from 0 to 1 upon a line.
func skyline(heights []float64, base float64) string {
	var b strings.Builder
	ground := position(base)
	b.WriteString("M0 " + ground)
	last := ground
	for c, h := range heights {
		y := position(base - h*bandHeight)
		if y == last {
			continue
		}
		b.WriteString("H" + position(pictureWidth*float64(c)/float64(len(heights))) + "V" + y)
		last = y
	}
	b.WriteString("H" + position(pictureWidth) + "V" + ground + "Z")
	return b.String()
}

// WriteHTML writes the report as one self-contained page.
func (t *Timeline) WriteHTML(w io.Writer) error {
	v := timelineView{Title: "Time line of " + t.File, Notes: t.notes(), Tables: t.tables(), Facts: []fact{
		{"Shown", fmt.Sprintf("%.3f s", t.Seconds)},
		{"GPU waits for memory", fmt.Sprintf("%.0f %% of the time", 100*t.Waits.Share)},
		{"Copies to the device", fmt.Sprintf("%.0f %%, %s", 100*t.In.Share, t.In.rate())},
		{"Copies to the host", fmt.Sprintf("%.0f %%, %s", 100*t.Out.Share, t.Out.rate())},
	}}
	rows := t.bands()
	v.Overview = t.picture(rows, t.window, overviewColumns)
	waiting, most := busyIn(t.spansOf(timeline.Waits, "")), time.Duration(-1)
	worst := 0
	for i := range closeUps {
		part := t.window.part(i, closeUps)
		waits := waiting.within(part)
		if waits > most {
			worst, most = i, waits
		}
		v.Closer = append(v.Closer, closeUp{
			Label:   fmt.Sprintf("%.3f s to %.3f s: the GPU waits for %.0f %%", part.from.Seconds(), part.to.Seconds(), 100*share(waits, part.length())),
			Picture: t.picture(rows, part, closeColumns),
		})
	}
	v.Closer[worst].Open = true
	var b bytes.Buffer
	if err := timelineTemplate.Execute(&b, v); err != nil {
		return fmt.Errorf("report: rendering the page: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}
