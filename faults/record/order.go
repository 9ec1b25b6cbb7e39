package record

import "time"

// place is where an event of a batch is. Events are large: their places are sorted.
type place struct {
	time  time.Duration
	index int
}

// inOrder sorts places by time; what has one time stays as it was. They come in a few
// runs that are in order already, one for each turn of each reader, and these are
// merged. Both slices may be used again: sorted is one of them, other is the other.
func inOrder(places, spare []place) (sorted, other []place) {
	for {
		spare = spare[:0]
		merges := 0
		for rest := places; len(rest) > 0; merges++ {
			a := firstRun(rest)
			b := firstRun(rest[len(a):])
			rest = rest[len(a)+len(b):]
			spare = merge(spare, a, b)
		}
		places, spare = spare, places
		if merges <= 1 {
			return places, spare
		}
	}
}

// firstRun is the longest beginning that is in order.
func firstRun(p []place) []place {
	n := min(1, len(p))
	for n < len(p) && p[n].time >= p[n-1].time {
		n++
	}
	return p[:n]
}

func merge(to, a, b []place) []place {
	for len(a) > 0 && len(b) > 0 {
		if b[0].time < a[0].time {
			to, b = append(to, b[0]), b[1:]
		} else {
			to, a = append(to, a[0]), a[1:]
		}
	}
	return append(append(to, a...), b...)
}
