package plan

import (
	"context"
	"time"
)

// Options say how hard to try.
type Options struct {
	CapacityBytes int64         // stop when everything lies below it; 0: as low as can be
	TimeLimit     time.Duration // 0: until nothing better is to be expected
}

// Placement is where everything goes.
type Placement struct {
	Offsets    []int64 // by request
	Bytes      int64   // the highest end of a request: what the placement needs
	BoundBytes int64   // no placement can need less
}

// Place gives every request an offset. It returns the best placement found when it
// reaches the capacity or the bound, when the time is up or when ctx ends, which
// is no error. A request that cannot be is an *InputError.
func Place(ctx context.Context, requests []Request, o Options) (Placement, error) {
	p, err := newProblem(requests)
	if err != nil {
		return Placement{}, err
	}
	var deadline time.Time
	if o.TimeLimit > 0 {
		deadline = time.Now().Add(o.TimeLimit)
	}
	stop := func() bool {
		return ctx.Err() != nil || !deadline.IsZero() && time.Now().After(deadline)
	}
	best := Placement{Offsets: make([]int64, len(requests)), BoundBytes: p.boundBytes}
	offsets := make([]int64, len(p.buffers))
	for i, ordering := range orderings() {
		// The first is cheap, and without it there is no placement at all.
		first := i == 0
		if !first && (best.Bytes <= max(p.boundBytes, o.CapacityBytes) || stop()) {
			break
		}
		height, ok := p.pack(p.order(ordering), ordering.fit, best.Bytes, offsets, func() bool { return !first && stop() })
		if !ok {
			continue
		}
		best.Bytes = height
		for k, i := range p.index {
			best.Offsets[i] = offsets[k]
		}
	}
	if err := Check(requests, best.Offsets, best.Bytes); err != nil {
		return Placement{}, err
	}
	return best, nil
}
