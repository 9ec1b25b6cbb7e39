package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/penstock-gpu/penstock/faults/view"
	"github.com/penstock-gpu/penstock/internal/screen"
)

// Model is the state of the view.
type Model struct {
	sample  Sample
	jobs    []seen
	follow  follower
	past    map[int][]Rates // of each job, the newest last
	looked  bool
	width   int
	height  int
	chosen  int // the process whose figures are shown; 0: the first
	paused  bool
	help    bool
	colour  bool
	nothing string // what to say when no job is found
}

// NoJobs is said when no job is found.
const NoJobs = "no running job was found: start one with `penstock run`; it is seen from its first allocation on the GPU on"

// New is a model that has seen nothing yet.
func New() Model { return Model{width: 100, height: 30, colour: screen.Colour(), nothing: NoJobs} }

// Init implements tea.Model.
func (m Model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch x := msg.(type) {
	case Sample:
		if m.paused {
			return m, nil
		}
		if len(m.jobs) > 0 && len(x.Jobs) == 0 {
			m.nothing = "no job runs any more; q quits"
		}
		m.sample, m.jobs, m.looked = x, m.follow.follow(x), true
		m.past = remember(m.past, m.jobs)
	case tea.WindowSizeMsg:
		m.width, m.height = max(x.Width, 20), max(x.Height, 8)
	case tea.KeyMsg:
		switch x.String() {
		case "q", "ctrl+c":
			return m, tea.Quit
		case "j", "down", "tab":
			m.choose(+1)
		case "k", "up", "shift+tab":
			m.choose(-1)
		case "p", " ":
			m.paused = !m.paused
		case "?":
			m.help = !m.help
		case "esc":
			m.help = false
		}
	}
	return m, nil
}

// at is the place of the job that is chosen, or of the first.
func (m Model) at() int {
	return max(0, slices.IndexFunc(m.jobs, func(x seen) bool { return x.PID == m.chosen }))
}

func (m *Model) choose(step int) {
	if n := len(m.jobs); n > 0 {
		m.chosen = m.jobs[(m.at()+step+n)%n].PID
	}
}

// View implements tea.Model.
func (m Model) View() string {
	lines := []string{m.title()}
	switch {
	case m.sample.Err != nil:
		lines = append(lines, "", view.Plain(m.sample.Err.Error(), 500), "q quits")
	case !m.looked:
		lines = append(lines, "", "looking; q quits")
	case m.help:
		lines = append(lines, "", "j, k, tab  another job", "p          pause", "?          this help", "q          quit", "")
		lines = append(lines, flow(m.width, "to GPU", []string{"what is copied over the bus to the device", "from GPU is the other way"})...)
		lines = append(lines, flow(m.width, "waits", []string{"the part of the time in which launches wait for memory"})...)
		lines = append(lines, flow(m.width, "speed", []string{"of the speed with everything in memory", "an estimate", "n/a until the job has been learned", "and where nothing has to move"})...)
	case len(m.jobs) == 0:
		lines = append(lines, append([]string{""}, flow(m.width, "", strings.SplitAfter(m.nothing, ": "))...)...)
		lines = append(lines, m.problems()...)
	default:
		chosen := m.jobs[m.at()]
		details := chosen.details(m.width)
		room := max(1, m.height-len(details)-4-len(m.sample.Problems)) // for rows of the table
		lines = append(lines, m.table(room)...)
		lines = append(lines, m.problems()...)
		lines = append(lines, "")
		lines = append(lines, details...)
		if past := m.history(chosen); len(lines)+len(past) < m.height {
			lines = append(append(lines, ""), past...)
		}
	}
	return screen.Fit(lines, m.width, m.height, m.colour)
}

// mostPast is how many looks are drawn, where there is room for so many.
const mostPast = 120

// remember adds the jobs' rates to those of before; a job that has gone is forgotten.
func remember(before map[int][]Rates, now []seen) map[int][]Rates {
	past := map[int][]Rates{}
	for _, x := range now {
		all := before[x.PID]
		if x.rates != nil {
			all = append(all[max(0, len(all)-mostPast+1):len(all):len(all)], *x.rates)
		}
		past[x.PID] = all
	}
	return past
}

// history draws what moved and what waited at the last looks.
func (m Model) history(x seen) (lines []string) {
	past := m.past[x.PID]
	if len(past) < 2 {
		return nil
	}
	for _, row := range []struct {
		label string
		get   func(r Rates) float64
		text  func(most float64) string
	}{
		{"to GPU", func(r Rates) float64 { return r.In }, rateText}, {"from GPU", func(r Rates) float64 { return r.Out }, rateText},
		{"waits", func(r Rates) float64 { return r.Stalled }, shareText},
	} {
		values, most := make([]float64, len(past)), 0.0
		for i, r := range past {
			values[i] = row.get(r)
			most = max(most, values[i])
		}
		scale := most
		if row.label == "waits" {
			scale = 1
		}
		end := " at most " + row.text(most)
		lines = append(lines, fmt.Sprintf("%-*s%s%s", labelWidth, row.label, screen.Spark(values, scale, m.width-labelWidth-len(end)), end))
	}
	return lines
}

func (m Model) title() string {
	title := "penstock top"
	if m.looked {
		title += fmt.Sprintf("  %s  %d job%s", m.sample.At.Format("15:04:05"), len(m.jobs), map[bool]string{true: "", false: "s"}[len(m.jobs) == 1])
	}
	if m.paused {
		title += "  paused"
	}
	return title + "  ? help"
}

func (m Model) problems() (lines []string) {
	for _, p := range m.sample.Problems {
		lines = append(lines, fmt.Sprintf("process %d: %s", p.PID, view.Plain(p.Err.Error(), 300)))
	}
	return lines
}

// column is one of the table.
type column struct {
	title string
	rank  int // those of the lowest ranks go where there is no room
	cell  func(x seen) string
}

var columns = []column{
	{"process", 9, func(x seen) string { return strconv.Itoa(x.PID) }},
	{"rank", 7, func(x seen) string { return view.Plain(x.Shown.Process, 10) }},
	{"engine", 1, func(x seen) string { return view.Plain(x.Shown.Engine, 10) }},
	{"on device", 8, func(x seen) string { return bytesText(x.Shown.ResidentBytes) }},
	{"budget", 5, func(x seen) string { return bytesText(x.Shown.BudgetBytes) }},
	{"on host", 3, func(x seen) string {
		if x.Shown.Engine != "explicit" {
			return unknown
		}
		return bytesText(x.Shown.Explicit.HostBytes)
	}},
	{"to GPU", 8, func(x seen) string { return x.of(func(r *Rates) float64 { return r.In }, rateText) }},
	{"from GPU", 8, func(x seen) string { return x.of(func(r *Rates) float64 { return r.Out }, rateText) }},
	{"waits", 6, func(x seen) string { return x.of(func(r *Rates) float64 { return r.Stalled }, shareText) }},
	{"predicted", 2, seen.predicted},
	{"iteration", 3, seen.iteration},
	{"speed", 7, seen.speed},
}

const leastCommand = 12 // characters of the command line

// table is one row for each job: around the one that is chosen where there is no room for all.
func (m Model) table(room int) []string {
	shown := slices.Clone(columns)
	if !slices.ContainsFunc(m.jobs, func(x seen) bool { return x.Shown.Process != "" }) {
		shown = slices.DeleteFunc(shown, func(c column) bool { return c.title == "rank" })
	}
	var cells [][]string
	var widths []int
	for {
		cells, widths = nil, make([]int, len(shown))
		used := 2
		for _, x := range append([]seen{{}}, m.jobs...) {
			var row []string
			for i, c := range shown {
				text := c.title
				if x.PID != 0 {
					text = c.cell(x)
				}
				row = append(row, text)
				widths[i] = max(widths[i], utf8.RuneCountInString(text))
			}
			cells = append(cells, row)
		}
		for _, w := range widths {
			used += w + 2
		}
		if used+leastCommand <= m.width || len(shown) == 1 {
			break
		}
		least := slices.MinFunc(shown, func(a, b column) int { return a.rank - b.rank })
		shown = slices.DeleteFunc(shown, func(c column) bool { return c.title == least.title })
	}
	first := max(0, min(m.at()-room/2, len(m.jobs)-room))
	lines := []string{}
	for i, row := range cells {
		if i > 0 && (i-1 < first || i-1 >= first+room) {
			continue
		}
		line := "  "
		if i > 0 && i-1 == m.at() {
			line = "> "
		}
		for k, text := range row {
			line += strings.Repeat(" ", widths[k]-utf8.RuneCountInString(text)) + text + "  "
		}
		if i == 0 {
			line += "command"
		} else {
			line += view.Plain(m.jobs[i-1].Command, max(leastCommand, m.width-utf8.RuneCountInString(line)-1))
		}
		lines = append(lines, line)
	}
	return lines
}
