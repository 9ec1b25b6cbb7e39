package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// byteUnit is what a set of byte counts is shown in, so that numbers that
// stand beside each other share a unit.
type byteUnit struct {
	name  string
	bytes float64
}

var byteUnits = []byteUnit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// unitFor is the largest unit of which n is at least one.
func unitFor(n int64) byteUnit {
	for _, u := range byteUnits {
		if float64(n) >= u.bytes {
			return u
		}
	}
	return byteUnits[len(byteUnits)-1]
}

// in gives n in the unit. Something is never shown as nothing.
func (u byteUnit) in(n int64) string {
	v := float64(n) / u.bytes
	switch {
	case n == 0 || u.bytes == 1:
		return groupDigits(strconv.FormatInt(n, 10))
	case math.Abs(v) < 0.005:
		return "<0.01"
	case math.Abs(v) >= 100:
		return groupDigits(strconv.FormatFloat(v, 'f', 1, 64))
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// format gives n in the unit, with its name.
func (u byteUnit) format(n int64) string { return u.in(n) + " " + u.name }

func formatBytes(n int64) string { return unitFor(n).format(n) }

// groupDigits puts commas between thousands.
func groupDigits(number string) string {
	whole, rest, hasRest := strings.Cut(number, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	var b strings.Builder
	for i, d := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	if hasRest {
		return sign + b.String() + "." + rest
	}
	return sign + b.String()
}

// timeUnit is what a set of durations is shown in.
type timeUnit struct {
	name     string
	seconds  float64
	decimals int
}

var timeUnits = []timeUnit{{"s", 1, 3}, {"ms", 1e-3, 2}, {"us", 1e-6, 1}}

// timeUnitFor fits durations of which the longest is s: seconds from a tenth of one.
func timeUnitFor(s float64) timeUnit {
	for _, u := range timeUnits {
		if s >= u.seconds/10 {
			return u
		}
	}
	return timeUnits[len(timeUnits)-1]
}

// in gives s in the unit.
func (u timeUnit) in(s float64) string {
	if s == 0 {
		return "0"
	}
	return groupDigits(strconv.FormatFloat(s/u.seconds, 'f', u.decimals, 64))
}

// format gives s in the unit, with its name.
func (u timeUnit) format(s float64) string { return u.in(s) + " " + u.name }

func formatCount(n int64) string { return groupDigits(strconv.FormatInt(n, 10)) }

// formatShare rounds down, so that only the bound itself is 100 %; over 100 it rounds up.
func formatShare(share float64) string {
	percent := share * 100
	// Forgive what floating point did to a ratio of equal times.
	if math.Abs(percent-math.Round(percent)) < 1e-6 {
		percent = math.Round(percent)
	}
	if percent > 100 {
		percent = math.Ceil(percent)
	}
	return fmt.Sprintf("%.0f %%", math.Floor(percent))
}

func formatTimes(times float64) string {
	if times < 100 {
		return strconv.FormatFloat(times, 'f', 2, 64) + "x"
	}
	return groupDigits(strconv.FormatFloat(times, 'f', 0, 64)) + "x"
}

// formatRatio gives 1.5x, 2x, 1.25x: budgets are whole bytes, so ratios are a hair off.
func formatRatio(ratio float64) string {
	s := strconv.FormatFloat(ratio, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") + "x"
}

// plain makes a name safe for a terminal: what does not print is escaped.
func plain(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
	}
	return b.String()
}
