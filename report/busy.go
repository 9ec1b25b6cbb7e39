package report

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// busy is when something went on: stretches that do not touch, in order.
type busy struct {
	from, to []time.Duration
	before   []time.Duration // busy before each stretch
}

// busyIn is when at least one of some spans went on.
func busyIn(spans []timeline.Span) (b busy) {
	spans = slices.SortedFunc(slices.Values(spans), func(x, y timeline.Span) int { return cmp.Compare(x.From, y.From) })
	var total time.Duration
	for _, s := range spans {
		if last := len(b.to) - 1; last >= 0 && s.From <= b.to[last] {
			longer := max(0, s.To-b.to[last])
			b.to[last] += longer
			total += longer
			continue
		}
		b.from, b.to, b.before = append(b.from, s.From), append(b.to, s.To), append(b.before, total)
		total += s.To - s.From
	}
	return b
}

// until is for how long it went on before a time.
func (b busy) until(t time.Duration) time.Duration {
	i := sort.Search(len(b.from), func(i int) bool { return b.from[i] >= t }) - 1
	if i < 0 {
		return 0
	}
	return b.before[i] + min(t, b.to[i]) - b.from[i]
}

// within is for how long it went on in a window.
func (b busy) within(w window) time.Duration { return b.until(w.to) - b.until(w.from) }

// and is when both went on.
func (b busy) and(other busy) busy {
	var both []timeline.Span
	for i, j := 0, 0; i < len(b.from) && j < len(other.from); {
		if from, to := max(b.from[i], other.from[j]), min(b.to[i], other.to[j]); from < to {
			both = append(both, timeline.Span{From: from, To: to})
		}
		if b.to[i] < other.to[j] {
			i++
		} else {
			j++
		}
	}
	return busyIn(both)
}

// window is a stretch of time, its end not included.
type window struct{ from, to time.Duration }

func (w window) length() time.Duration { return w.to - w.from }

// ends says whether a span ended in the window: each ends in one of several that follow one another.
func (w window) ends(s timeline.Span) bool { return w.from < s.To && s.To <= w.to }

func (w window) ended(spans []timeline.Span) (all []timeline.Span) {
	for _, s := range spans {
		if w.ends(s) {
			all = append(all, s)
		}
	}
	return all
}

// bytes are those of the spans that ended in the window.
func (w window) bytes(spans []timeline.Span) (n int64) {
	for _, s := range spans {
		if w.ends(s) {
			n += s.Bytes
		}
	}
	return n
}
