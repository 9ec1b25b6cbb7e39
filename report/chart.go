package report

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/replay"
)

// Geometry of a plot, in SVG user units. The view box is narrow enough for its
// text to be readable on a telephone.
const (
	wideWidth   = 440.0 // of plots that hold every policy
	narrowWidth = 350.0 // of plots of one policy, more of which stand in a line
	chartHeight = 230.0
	plotLeft    = 46.0
	rightMargin = 14.0
	plotTop     = 16.0
	plotBottom  = chartHeight - 34
)

// keptMoments is about how many samples of a timeline a plot keeps.
const keptMoments = 360

// chart is one plot, ready for the template: everything in it is either a
// position in user units or a text.
type chart struct {
	ID             string
	Title          string
	Note           string // in brackets behind the title of the table
	Description    string // the plot in words, for those who do not see it
	XLabel, YLabel string
	XTicks, YTicks []tick
	Rules          []rule
	Lines          []line
	Data           dataTable
	Width, Height  float64
	Left, Right    float64
	Top, Bottom    float64
}

// Mid is where a label of the x axis is centred.
func (c chart) Mid() float64 { return (c.Left + c.Right) / 2 }

type tick struct {
	At    string
	Label string
}

// rule is a horizontal line at a named value.
type rule struct {
	At, LabelAt string
	Label       string
	Class       string
}

// line is one series.
type line struct {
	Class      string // CSS classes: colour and dashes
	Path       string // of the stroke
	Area       string // of the filled area below it; "" for none
	EndX, EndY string // the last point; "" when it is not marked
	Title      string // shown on hovering
}

// dataTable is what a plot shows, as text.
type dataTable struct {
	Head []string
	Rows [][]string
}

// scale maps values to positions: [0, limit] to [from, to].
type scale struct{ limit, from, to float64 }

func (s scale) at(v float64) float64 {
	if s.limit <= 0 {
		return s.from
	}
	return s.from + (s.to-s.from)*min(max(v/s.limit, 0), 1)
}

func xScale(limit, width float64) scale { return scale{limit, plotLeft, width - rightMargin} }
func yScale(limit float64) scale        { return scale{limit, plotBottom, plotTop} }

func position(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// niceStep is the smallest of 1, 2, 5 times a power of ten that cuts limit into at most n steps.
func niceStep(limit float64, n int) float64 {
	if limit <= 0 {
		return 1
	}
	rough := limit / float64(n)
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= rough*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// ticks places labels on an axis; values are divided by unit for the label.
func ticks(s scale, unit float64, n int) []tick {
	limit := s.limit / unit
	if limit <= 0 {
		return []tick{{At: position(s.from), Label: "0"}}
	}
	step := niceStep(limit, n)
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	var out []tick
	for i := 0; float64(i)*step <= limit*(1+1e-9); i++ {
		v := float64(i) * step
		out = append(out, tick{At: position(s.at(v * unit)), Label: groupDigits(strconv.FormatFloat(v, 'f', decimals, 64))})
	}
	return out
}

// axis is one dimension of a plot: from 0 to limit, labelled in a unit.
type axis struct {
	limit float64
	unit  float64
	label string
}

// newChart is an empty plot.
func newChart(title string, width float64, x, y axis) chart {
	return chart{
		Title: title, Note: "simulated", XLabel: x.label, YLabel: y.label,
		XTicks: ticks(xScale(x.limit, width), x.unit, 6), YTicks: ticks(yScale(y.limit), y.unit, 5),
		Width: width, Height: chartHeight, Left: plotLeft, Right: width - rightMargin, Top: plotTop, Bottom: plotBottom,
	}
}

// thin picks the samples a plot shows: in each stretch of time the first, the
// last, and those of the least and the most of two values, so that no peak is lost.
func thin[S any](samples []S, keep int, values func(S) (a, b int64)) []S {
	if len(samples) <= keep {
		return samples
	}
	const perStretch = 6
	stretches := max(keep/perStretch, 1)
	chosen := make([]int, 0, keep+perStretch)
	for s := range stretches {
		from, to := s*len(samples)/stretches, (s+1)*len(samples)/stretches
		if from == to {
			continue
		}
		lowA, highA, lowB, highB := from, from, from, from
		for i := from + 1; i < to; i++ {
			a, b := values(samples[i])
			if v, _ := values(samples[lowA]); a < v {
				lowA = i
			}
			if v, _ := values(samples[highA]); a > v {
				highA = i
			}
			if _, v := values(samples[lowB]); b < v {
				lowB = i
			}
			if _, v := values(samples[highB]); b > v {
				highB = i
			}
		}
		chosen = append(chosen, from, lowA, highA, lowB, highB, to-1)
	}
	slices.Sort(chosen)
	chosen = slices.Compact(chosen)
	out := make([]S, len(chosen))
	for i, at := range chosen {
		out[i] = samples[at]
	}
	return out
}

// residency is what plots of replays must not lose.
func residency(s replay.Sample) (resident, live int64) { return s.ResidentBytes, s.LiveBytes }

// path draws a value of the samples.
func path(samples []replay.Sample, x, y scale, value func(replay.Sample) float64) string {
	var b strings.Builder
	for i, s := range samples {
		b.WriteByte("ML"[min(i, 1)])
		b.WriteString(position(x.at(s.Seconds)))
		b.WriteByte(' ')
		b.WriteString(position(y.at(value(s))))
	}
	return b.String()
}

// areaUnder closes a path along the axis.
func areaUnder(stroke string, samples []replay.Sample, x scale) string {
	if len(samples) == 0 {
		return ""
	}
	bottom := position(plotBottom)
	return stroke + "L" + position(x.at(samples[len(samples)-1].Seconds)) + " " + bottom +
		"L" + position(x.at(samples[0].Seconds)) + " " + bottom + "Z"
}

// moments are the samples at about the given shares of the timeline's span.
func moments(samples []replay.Sample, shares []float64) []replay.Sample {
	if len(samples) == 0 {
		return nil
	}
	first, last := samples[0].Seconds, samples[len(samples)-1].Seconds
	out := make([]replay.Sample, 0, len(shares))
	for _, share := range shares {
		want := first + share*(last-first)
		// The last sample at or before the wanted time.
		i, _ := slices.BinarySearchFunc(samples, want, func(s replay.Sample, t float64) int {
			if s.Seconds <= t {
				return -1
			}
			return 1
		})
		out = append(out, samples[max(i-1, 0)])
	}
	return out
}
