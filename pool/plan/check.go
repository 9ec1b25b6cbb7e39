package plan

import (
	"fmt"
	"slices"
)

// Check verifies a placement: no two requests that are alive together overlap,
// alignments and pins are kept, and everything ends at or below limitBytes. It
// sweeps over time and keeps what is alive in order of offset, so that only
// neighbours need comparing; it shares nothing with the search.
func Check(requests []Request, offsets []int64, limitBytes int64) error {
	if len(offsets) != len(requests) {
		return fmt.Errorf("%d offsets for %d requests", len(offsets), len(requests))
	}
	type moment struct {
		time   int64
		begins bool
		i      int
	}
	var moments []moment
	for i, r := range requests {
		if r.Bytes == 0 {
			continue
		}
		switch at := offsets[i]; {
		case at < 0 || at > limitBytes-r.Bytes:
			return fmt.Errorf("request %d of %d bytes at offset %d does not lie within %d bytes", i, r.Bytes, at, limitBytes)
		case r.AlignBytes > 1 && at%r.AlignBytes != 0:
			return fmt.Errorf("request %d at offset %d is not aligned to %d", i, at, r.AlignBytes)
		case r.Pinned && at != r.Offset:
			return fmt.Errorf("request %d at offset %d is pinned to %d", i, at, r.Offset)
		}
		moments = append(moments, moment{r.Lower, true, i}, moment{r.Upper, false, i})
		if r.Again.Lower < r.Again.Upper {
			moments = append(moments, moment{r.Again.Lower, true, i}, moment{r.Again.Upper, false, i})
		}
	}
	// At one time, ends come before beginnings: lifetimes are half-open.
	slices.SortFunc(moments, func(a, b moment) int {
		switch {
		case a.time != b.time:
			if a.time < b.time {
				return -1
			}
			return 1
		case a.begins == b.begins:
			return 0
		case a.begins:
			return 1
		}
		return -1
	})
	var alive []int // requests, by offset
	for _, m := range moments {
		at, found := slices.BinarySearchFunc(alive, offsets[m.i], func(i int, offset int64) int {
			switch {
			case offsets[i] < offset:
				return -1
			case offsets[i] > offset:
				return 1
			}
			return 0
		})
		if !m.begins {
			alive = slices.Delete(alive, at, at+1)
			continue
		}
		if found {
			return overlap(requests, offsets, alive[at], m.i, m.time)
		}
		if at > 0 && offsets[alive[at-1]]+requests[alive[at-1]].Bytes > offsets[m.i] {
			return overlap(requests, offsets, alive[at-1], m.i, m.time)
		}
		if at < len(alive) && offsets[m.i]+requests[m.i].Bytes > offsets[alive[at]] {
			return overlap(requests, offsets, alive[at], m.i, m.time)
		}
		alive = slices.Insert(alive, at, m.i)
	}
	return nil
}

func overlap(requests []Request, offsets []int64, i, j int, time int64) error {
	return fmt.Errorf("requests %d (%d bytes at %d) and %d (%d bytes at %d) overlap at time %d",
		i, requests[i].Bytes, offsets[i], j, requests[j].Bytes, offsets[j], time)
}

// Check verifies a whole plan: start-up and two periods after it, played as they
// will come. What fits twice fits for ever.
func (p *Plan) Check() error {
	if p.PrologueEvents < 0 || p.PeriodEvents < 0 || p.ArenaBytes < 0 || p.ArenaBytes > maxBytes ||
		p.PrologueEvents > maxEvents || p.PeriodEvents > maxEvents {
		return fmt.Errorf("impossible sizes: %d and %d events, %d bytes", p.PrologueEvents, p.PeriodEvents, p.ArenaBytes)
	}
	end := p.PrologueEvents + 2*p.PeriodEvents
	var requests []Request
	var offsets []int64
	add := func(c Call, begin, events int64, repeats bool) string {
		switch {
		case c.Bytes < 0 || c.Bytes > maxBytes:
			return "has an impossible size"
		case c.Stream < 0:
			return "has an impossible stream"
		case c.Lower < 0 || c.Lower >= events || c.Upper <= c.Lower:
			return "has an impossible lifetime"
		case c.Offset == Unplanned:
			return ""
		case repeats && c.Upper-c.Lower > events:
			return "meets itself in the next period"
		case c.Offset%AlignBytes != 0:
			return "is not aligned"
		}
		upper := end
		if c.Upper < end-begin {
			upper = begin + c.Upper
		}
		requests = append(requests, Request{Span: Span{begin + c.Lower, upper}, Bytes: RoundUp(c.Bytes)})
		offsets = append(offsets, c.Offset)
		return ""
	}
	for i, c := range p.Prologue {
		if text := add(c, 0, p.PrologueEvents, false); text != "" {
			return fmt.Errorf("call %d of the start-up %s", i, text)
		}
	}
	for n := range int64(2) {
		for i, c := range p.Period {
			if text := add(c, p.PrologueEvents+n*p.PeriodEvents, p.PeriodEvents, true); text != "" {
				return fmt.Errorf("call %d of the period %s", i, text)
			}
		}
	}
	return Check(requests, offsets, p.ArenaBytes)
}

// maxEvents keeps times far from overflow.
const maxEvents = 1 << 40
