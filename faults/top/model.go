package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/symbol"
	"github.com/penstock-gpu/penstock/faults/view"
	"github.com/penstock-gpu/penstock/internal/screen"
	"github.com/penstock-gpu/penstock/internal/size"
)

// Sample is a report at a time.
type Sample struct {
	Report  *analyse.Report
	At      time.Time
	Final   bool
	Waiting bool // for CUDA to start in the process
	Err     error
}

// Model is the state of the view.
type Model struct {
	now, before Sample
	width       int
	height      int
	table       int // 0 kernels, 1 allocations, 2 causes
	sort        int
	filter      string
	typing      bool
	paused      bool
	help        bool
	offset      int
	colour      bool
}

// New is a model that has seen nothing yet.
func New() Model { return Model{width: 100, height: 30, colour: screen.Colour()} }

var tables = []string{"kernels", "allocations", "causes"}

// sorts are the columns that each table can be sorted by.
var sorts = [][]string{{"faults", "bytes", "stall"}, {"faults", "HtoD", "DtoH"}, {"faults"}}

// Init implements tea.Model.
func (m Model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch x := msg.(type) {
	case Sample:
		if !m.paused || m.now.Report == nil {
			if x.Report != nil && m.now.Report != nil && x.At.After(m.now.At) {
				m.before = m.now
			}
			m.now = x
		}
	case tea.WindowSizeMsg:
		m.width, m.height = max(x.Width, 20), max(x.Height, 8)
	case tea.KeyMsg:
		return m.key(x)
	}
	return m, nil
}

func (m Model) key(k tea.KeyMsg) (tea.Model, tea.Cmd) {
	if m.typing {
		switch k.Type {
		case tea.KeyEnter:
			m.typing = false
		case tea.KeyEsc, tea.KeyCtrlC:
			m.typing, m.filter = false, ""
		case tea.KeyBackspace:
			if m.filter != "" {
				_, n := utf8.DecodeLastRuneInString(m.filter)
				m.filter = m.filter[:len(m.filter)-n]
			}
		case tea.KeyRunes, tea.KeySpace:
			if len(m.filter) < 100 {
				m.filter += string(k.Runes)
			}
		}
		m.offset = 0
		return m, nil
	}
	switch k.String() {
	case "q", "ctrl+c":
		return m, tea.Quit
	case "tab", "right", "l":
		m.table, m.sort, m.offset = (m.table+1)%len(tables), 0, 0
	case "shift+tab", "left", "h":
		m.table, m.sort, m.offset = (m.table+len(tables)-1)%len(tables), 0, 0
	case "s":
		m.sort = (m.sort + 1) % len(sorts[m.table])
	case "/":
		m.typing, m.filter = true, ""
	case "p", " ":
		m.paused = !m.paused
	case "j", "down":
		m.offset++
	case "k", "up":
		m.offset = max(0, m.offset-1)
	case "?":
		m.help = !m.help
	case "esc":
		m.filter, m.help = "", false
	}
	return m, nil
}

// View implements tea.Model.
func (m Model) View() string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch {
	case m.now.Err != nil:
		add("%s", view.Plain(m.now.Err.Error(), 500))
		add("q quits")
		return m.fit(lines)
	case m.now.Waiting:
		add("waiting for CUDA to start in the process; q quits")
		return m.fit(lines)
	case m.now.Report == nil:
		add("reading; q quits")
		return m.fit(lines)
	}
	lines = append(lines, m.head()...)
	if m.help {
		lines = append(lines, "", "tab, h, l  next table      s  sort by another column", "j, k       move            /  filter by name, Enter keeps it, Esc clears it",
			"p          pause           ?  this help", "q          quit")
		return m.fit(lines)
	}
	lines = append(lines, "", m.tabs())
	rows := m.rows()
	room := max(1, m.height-len(lines)-2)
	if m.offset > max(0, len(rows)-room) {
		m.offset = max(0, len(rows)-room)
	}
	lines = append(lines, m.line(heads[m.table]))
	for _, r := range rows[m.offset:min(len(rows), m.offset+room)] {
		lines = append(lines, m.line(r.cells))
	}
	if len(rows) == 0 {
		add("  nothing%s", map[bool]string{true: " matches the filter", false: " yet"}[m.filter != ""])
	}
	return m.fit(lines)
}

// fit cuts lines to the terminal.
func (m Model) fit(lines []string) string { return screen.Fit(lines, m.width, m.height, m.colour) }

// Rates are what happened a second between two samples.
type Rates struct {
	Known                     bool
	Faults, In, Out, Stall    float64
	Evicted, Prefetched, Lost float64
}

// RatesOf compares two samples.
func RatesOf(a, b Sample) (r Rates) {
	if a.Report == nil || b.Report == nil || !b.At.After(a.At) {
		return r
	}
	d := b.At.Sub(a.At).Seconds()
	x, y := a.Report.Summary, b.Report.Summary
	per := func(p, q int64) float64 { return max(0, float64(q-p)/d) }
	return Rates{Known: true, Faults: per(x.Faults, y.Faults), In: per(x.H2DBytes, y.H2DBytes), Out: per(x.D2HBytes, y.D2HBytes),
		Evicted: per(x.EvictedBytes, y.EvictedBytes), Prefetched: per(a.Report.Predictor.PrefetchedBytes, b.Report.Predictor.PrefetchedBytes),
		Lost: per(x.LostEvents, y.LostEvents), Stall: max(0, (y.StallSeconds-x.StallSeconds)/d)}
}

func bytesText(n float64) string { return size.Text(int64(n)) }

func countText(n float64) string { return view.Cell(int64(n), view.Count) }

// head are the lines above the table.
func (m Model) head() []string {
	r := m.now.Report
	s := r.Summary
	state := "live"
	switch {
	case m.paused:
		state = "paused"
	case m.now.Final:
		state = "ended"
	}
	rates := RatesOf(m.before, m.now)
	show := func(f string, v ...any) string {
		if !rates.Known {
			return "n/a"
		}
		return fmt.Sprintf(f, v...)
	}
	stall := show("%.0f %%", 100*min(1, rates.Stall))
	return []string{
		fmt.Sprintf("%s  %s  %.0f s  %s faults in all  %s events lost", view.Plain(r.Trace, 60), state, r.Seconds, countText(float64(s.Faults)), countText(float64(s.LostEvents))),
		"resident " + m.bar(s),
		fmt.Sprintf("faults/s %-12s HtoD/s %-12s DtoH/s %-12s stalled %s", show("%s", countText(rates.Faults)), show("%s", bytesText(rates.In)), show("%s", bytesText(rates.Out)), stall),
		fmt.Sprintf("prefetched/s %-8s evicted/s %-9s moved in all %s in, %s out", show("%s", bytesText(rates.Prefetched)), show("%s", bytesText(rates.Evicted)), bytesText(float64(s.H2DBytes)), bytesText(float64(s.D2HBytes))),
	}
}

// bar is the residency against the budget, or else against its own peak.
func (m Model) bar(s analyse.Summary) string {
	whole, name := m.now.Report.Header.BudgetBytes, "budget"
	if whole == 0 {
		whole, name = s.ResidentPeakBytes, "peak"
	}
	text := fmt.Sprintf(" %s of %s (%s)", bytesText(float64(s.ResidentBytes)), bytesText(float64(whole)), name)
	return screen.Bar(float64(s.ResidentBytes), float64(whole), min(50, m.width-len(text)-12)) + text
}

func (m Model) tabs() string {
	var parts []string
	for i, t := range tables {
		if i == m.table {
			t = "[" + t + "]"
		}
		parts = append(parts, t)
	}
	line := strings.Join(parts, " ") + "   by " + sorts[m.table][m.sort]
	switch {
	case m.typing:
		line += "   filter: " + view.Plain(m.filter, 40) + "_"
	case m.filter != "":
		line += "   filter: " + view.Plain(m.filter, 40)
	}
	return line + "   ? help"
}

type tableRow struct {
	name  string
	keys  [3]float64
	cells []string
}

var heads = [][]string{{"faults", "share", "brought in", "stalled", "mostly", "kernel"}, {"faults", "HtoD", "DtoH", "size", "mostly", "allocation"}, {"faults", "share", "", "", "", "cause"}}

// rows are those of the table, filtered and sorted.
func (m Model) rows() []tableRow {
	r := m.now.Report
	total := float64(max(1, r.Summary.Faults))
	share := func(n int64) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/total) }
	var all []tableRow
	switch m.table {
	case 0:
		for _, k := range r.Kernels {
			name := symbol.Readable(k.Kernel)
			all = append(all, tableRow{name, [3]float64{float64(k.Faults), float64(k.FaultedBytes), k.StallSeconds},
				[]string{countText(float64(k.Faults)), share(k.Faults), bytesText(float64(k.FaultedBytes)), fmt.Sprintf("%.2f s", k.StallSeconds), view.MainCause(k.Causes), name}})
		}
	case 1:
		for _, a := range r.Allocations {
			all = append(all, tableRow{a.Name(), [3]float64{float64(a.Faults), float64(a.H2DBytes), float64(a.D2HBytes)},
				[]string{countText(float64(a.Faults)), bytesText(float64(a.H2DBytes)), bytesText(float64(a.D2HBytes)), bytesText(float64(a.Bytes)), view.MainCause(a.Causes), a.Name()}})
		}
	default:
		for _, c := range r.Causes {
			all = append(all, tableRow{c.Cause, [3]float64{float64(c.Faults)}, []string{countText(float64(c.Faults)), share(c.Faults), "", "", "", c.Cause}})
		}
	}
	if f := strings.ToLower(m.filter); f != "" {
		all = slices.DeleteFunc(all, func(x tableRow) bool { return !strings.Contains(strings.ToLower(x.name), f) })
	}
	slices.SortStableFunc(all, func(a, b tableRow) int { return cmp.Compare(b.keys[m.sort], a.keys[m.sort]) })
	return all
}

func (m Model) line(cells []string) string {
	return fmt.Sprintf("%13s %11s %11s %10s  %-19s %s", cells[0], cells[1], cells[2], cells[3], cells[4], view.Plain(cells[5], max(10, m.width-70)))
}
