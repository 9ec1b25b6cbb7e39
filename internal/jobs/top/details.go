package top

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock-gpu/penstock/faults/view"
	"github.com/penstock-gpu/penstock/internal/screen"
	"github.com/penstock-gpu/penstock/internal/size"
)

// unknown stands for a figure that there is none of.
const unknown = "n/a"

// labelWidth is what the labels of lines take.
const labelWidth = 10

func bytesText(n float64) string { return size.Text(int64(max(0, min(n, math.MaxInt64/2)))) }

func rateText(bytesPerSecond float64) string {
	switch gb := bytesPerSecond / 1e9; {
	case gb == 0:
		return "0"
	case gb < 0.1:
		return fmt.Sprintf("%.1f MB/s", gb*1e3)
	default:
		return fmt.Sprintf("%.1f GB/s", gb)
	}
}

func shareText(share float64) string { return strconv.FormatFloat(100*share, 'f', 0, 64) + " %" }

func secondsText(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.1f ms", 1e3*s)
	}
	return fmt.Sprintf("%.2f s", s)
}

func countText(n float64) string { return view.Cell(int64(max(0, min(n, 1e18))), view.Count) }

// speed is the share of the speed in memory.
func (x seen) speed() string {
	if s := x.Shown.InMemoryShare; s > 0 {
		return shareText(s)
	}
	return unknown
}

func (x seen) iteration() string {
	if s := x.Shown.IterationSeconds; s > 0 {
		return secondsText(s)
	}
	return unknown
}

func (x seen) predicted() string {
	if p := x.Shown.PredictionHitRate; p >= 0 {
		return strconv.FormatFloat(100*p, 'f', 1, 64) + " %"
	}
	return unknown
}

// of is a rate in words, where rates are known.
func (x seen) of(get func(r *Rates) float64, text func(float64) string) string {
	if x.rates == nil {
		return unknown
	}
	return text(get(x.rates))
}

// details are all figures of a job, in lines of a width.
func (x seen) details(width int) (lines []string) {
	s := x.Shown
	line := func(label string, parts ...string) {
		lines = append(lines, flow(width, label, parts)...)
	}
	bar := func(part, whole float64) string { return screen.Bar(part, whole, min(30, width-labelWidth-44)) }
	title := "job " + strconv.Itoa(x.PID)
	if s.Process != "" {
		title += " (" + view.Plain(s.Process, 20) + ")"
	}
	line(title+":", view.Plain(s.Engine, 20)+" engine", view.Plain(s.Policy, 20)+" policy", view.Plain(x.Command, max(20, width-labelWidth)))
	if s.Failure != "" {
		line("FAILED", view.Plain(s.Failure, 500))
	}
	line("device", joined(bar(s.ResidentBytes, s.BudgetBytes), bytesText(s.ResidentBytes)+" of a budget of "+bytesText(s.BudgetBytes)),
		"peak "+bytesText(s.ResidentPeakBytes), bytesText(s.AllocatedBytes)+" allocated")
	e := s.Explicit
	explicit := s.Engine == "explicit"
	if explicit {
		line("host", joined(bar(e.HostBytes, s.HostBudgetBytes), bytesText(e.HostBytes)+" of a budget of "+bytesText(s.HostBudgetBytes)), bytesText(e.HostPinnedBytes)+" pinned")
	} else {
		line("host", unknown+" of a budget of "+bytesText(s.HostBudgetBytes))
	}
	line("to GPU", x.of(func(r *Rates) float64 { return r.In }, rateText)+" now", bytesText(s.H2DBytes)+" in all")
	out := []string{x.of(func(r *Rates) float64 { return r.Out }, rateText) + " now", bytesText(s.D2HBytes) + " in all"}
	if e.CleanBytes > 0 {
		out = append(out, bytesText(e.CleanBytes)+" left without a copy")
	}
	line("from GPU", out...)
	line("waits", x.waits(explicit)...)
	if e.DroppedBytes+e.MadeBytes > 0 {
		line("replay", fmt.Sprintf("dropped %s now, %s in all", x.of(func(r *Rates) float64 { return r.Dropped }, rateText), bytesText(e.DroppedBytes)),
			fmt.Sprintf("made again %s now, %s in all", x.of(func(r *Rates) float64 { return r.Made }, rateText), bytesText(e.MadeBytes)),
			x.of(func(r *Rates) float64 { return r.Guards }, countText)+" launches a second waited for it")
	}
	if s.Faults > 0 {
		line("faults", countText(s.Faults)+" in all")
	}
	learned := "no iteration known"
	if s.IterationLaunches > 0 {
		learned = countText(s.IterationLaunches) + " operations an iteration"
	}
	line("predicted", x.predicted()+" of operations", learned)
	speed := unknown
	if s.InMemoryShare > 0 {
		speed = "about " + x.speed() + " of the speed in memory (an estimate)"
	}
	line("speed", speed, x.iteration()+" an iteration")
	return lines
}

// waits says for which part of the time the job's launches wait, and for what.
func (x seen) waits(explicit bool) (parts []string) {
	if x.rates == nil {
		return []string{unknown + " now", secondsText(x.Shown.StallSeconds) + " in all"}
	}
	r := x.rates
	parts = append(parts, shareText(r.Stalled)+" of the time now", secondsText(x.Shown.StallSeconds)+" in all")
	for _, cause := range []struct {
		share float64
		what  string
	}{{r.ForData, "for data on its way"}, {r.ForSpace, "for room"}, {r.ForMap, "for mapping"}, {r.ForGrants, "for a search for addresses"}, {r.Lock, "for the engine's lock"}} {
		if cause.share >= 0.005 {
			parts = append(parts, shareText(cause.share)+" "+cause.what)
		}
	}
	return parts
}

// joined puts a space between what there is.
func joined(parts ...string) string {
	text := ""
	for _, p := range parts {
		if p != "" && text != "" {
			text += " "
		}
		text += p
	}
	return text
}

// flow puts parts behind a label, with semicolons, and as many lines as they take.
func flow(width int, label string, parts []string) (lines []string) {
	indent := strings.Repeat(" ", labelWidth)
	at := fmt.Sprintf("%-*s", labelWidth, label)
	if utf8.RuneCountInString(label) >= labelWidth {
		at = label + " "
	}
	begun := false
	for i, p := range parts {
		if p == "" {
			continue
		}
		if i < len(parts)-1 && parts[len(parts)-1] != "" {
			p += ";"
		}
		if begun && utf8.RuneCountInString(at)+1+utf8.RuneCountInString(p) > width {
			lines = append(lines, at)
			at, begun = indent, false
		}
		if begun {
			at += " "
		}
		at, begun = at+p, true
	}
	return append(lines, at)
}
