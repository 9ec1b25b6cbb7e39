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
