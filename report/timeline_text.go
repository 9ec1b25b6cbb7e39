package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/penstock-gpu/penstock/internal/size"
)

// WriteText writes the report for a terminal.
func (t *Timeline) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", plain(t.File), t.stretch())
	for _, n := range t.notes() {
		fmt.Fprintf(&b, "%s\n", n)
	}
	for _, table := range t.tables() {
		fmt.Fprintf(&b, "\n%s\n", table.Title)
		columns := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{table.Head}, table.Rows...) {
			for i, cell := range row {
				row[i] = plain(cell)
			}
			fmt.Fprintf(columns, "  %s\n", strings.Join(row, "\t"))
		}
		columns.Flush()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// stretch says what time the report is of.
func (t *Timeline) stretch() string {
	return fmt.Sprintf("%.3f s, from %.3f s to %.3f s after the engine's start", t.Seconds, t.FromSeconds, t.ToSeconds)
}

// notes are what a reader has to know of this time line.
func (t *Timeline) notes() (all []string) {
	if t.Iterations > 0 {
		all = append(all, fmt.Sprintf("%d whole iterations, of %s on average.", t.Iterations, milliseconds(t.IterationSeconds)))
	}
	if t.LostSpans > 0 {
		all = append(all, fmt.Sprintf("The time line was full: %s spans of the job's end are missing.", formatCount(int64(t.LostSpans))))
	}
	return all
}

// timeTable is one table of the report, as text. The last column of those with Words has sentences.
type timeTable struct {
	Title, Note string
	Words       bool
	dataTable
}

// IsWords says whether a column has sentences.
func (t timeTable) IsWords(column int) bool { return t.Words && column == len(t.Head)-1 }

// perSecond is a share of the time, as seconds of each second.
func perSecond(share float64) string { return fmt.Sprintf("%.3f", share) }

func milliseconds(s float64) string { return fmt.Sprintf("%.3f ms", s*1e3) }

// rate is bytes over the time in which they moved.
func (a Activity) rate() string {
	if a.Bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f GB/s", a.Rate)
}

func (a Activity) bytes() string {
	if a.Bytes == 0 {
		return "-"
	}
	return size.Text(a.Bytes)
}

// ends says what came as the waits ended. Who ended little is left out.
func (w Wait) ends() string {
	var all []string
	for _, e := range w.EndedBy {
		if e.Seconds >= w.Seconds/100 {
			all = append(all, fmt.Sprintf("%s %.3f", e.Move, e.Seconds))
		}
	}
	return strings.Join(all, ", ")
}

// row is what every table of activities begins with.
func (a Activity) row(more ...string) []string {
	return append([]string{a.Name, fmt.Sprintf("%.3f", a.Seconds), perSecond(a.Share)}, more...)
}

func (a Activity) times() string { return formatCount(int64(a.Count)) }

func (t *Timeline) tables() []timeTable {
	all := []timeTable{t.waitsTable(), t.busTable()}
	if len(t.Phases) > 0 {
		all = append(all, t.phasesTable())
	}
	all = append(all, t.movesTable())
	for _, th := range t.Threads {
		all = append(all, th.table())
	}
	if len(t.Largest) > 0 {
		all = append(all, t.largestTable())
	}
	return all
}

func (t *Timeline) waitsTable() timeTable {
	x := timeTable{Title: "The GPU waits for memory", Words: true}
	x.Head = []string{"why", "s", "a second", "times", "what came as they ended (s)"}
	for _, c := range t.Causes {
		x.Rows = append(x.Rows, c.row(c.times(), c.ends()))
	}
	all := t.Waits
	all.Name = "in all"
	x.Rows = append(x.Rows, all.row(all.times(), ""))
	return x
}

func (t *Timeline) busTable() timeTable {
	x := timeTable{Title: "Copies over the bus", Note: "To the device: with the mapping before each copy."}
	x.Head = []string{"direction", "s", "a second", "bytes", "while under way"}
	for _, a := range []Activity{t.In, t.Out} {
		x.Rows = append(x.Rows, a.row(a.bytes(), a.rate()))
	}
	x.Rows = append(x.Rows, t.Both.row("", ""))
	return x
}

func (t *Timeline) phasesTable() timeTable {
	x := timeTable{Title: "By phase, seconds a second"}
	x.Head = []string{"phase", "each", "GPU waits", "copies in", "copies out", "bytes in", "bytes out"}
	for _, p := range t.Phases {
		each := func(bytes int64) string { return size.Text(bytes / int64(p.Count)) }
		x.Rows = append(x.Rows, []string{p.Name, milliseconds(p.Mean), perSecond(p.Waits), perSecond(p.In), perSecond(p.Out), each(p.BytesIn), each(p.BytesOut)})
	}
	return x
}

func (t *Timeline) movesTable() timeTable {
	x := timeTable{Title: "Moves", Words: true}
	x.Head = []string{"move", "s", "a second", "times", "each", "bytes", "what it is"}
	for _, a := range t.Moves {
		x.Rows = append(x.Rows, a.row(a.times(), milliseconds(a.Mean), a.bytes(), a.Doing))
	}
	return x
}

func (th ThreadTime) table() timeTable {
	x := timeTable{Title: "Engine's " + th.Name, Words: true}
	x.Head = []string{"part", "s", "a second", "times", "each", "what it does"}
	for _, a := range th.Parts {
		x.Rows = append(x.Rows, a.row(a.times(), milliseconds(a.Mean), a.Doing))
	}
	return x
}

func (t *Timeline) largestTable() timeTable {
	x := timeTable{Title: "The longest waits", Words: true}
	x.Head = []string{"at (s)", "took", "why", "ended by", "of"}
	for _, l := range t.Largest {
		of := l.Of
		if l.Kernel != "" {
			of += ", " + shorten(l.Kernel, 48)
		}
		x.Rows = append(x.Rows, []string{fmt.Sprintf("%.4f", l.At), milliseconds(l.Seconds), l.Cause, l.EndedBy, of})
	}
	return x
}
