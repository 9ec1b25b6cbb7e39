package correlate

import "github.com/penstock-gpu/penstock/trace"

// Asked says how many bytes of an allocation were asked for, where that is not what was recorded.
func (h *History) Asked(id InstanceID, bytes int64) { h.instance(id).asked = bytes }

// Events are what the log remembers from a position on, and from which position it does: first the
// allocations that were alive then, then in order the allocations and frees, of as many bytes as were asked for, and
// each operation as a launch of function 0. What it touched is not in the order in which it was named.
func (h *History) Events(from int64) ([]trace.Event, int64) {
	from = min(max(from, h.base), h.now)
	touched := make([][]trace.Access, h.now-from)
	name := func(id InstanceID) uint64 { return uint64(h.instance(id).gen)<<32 | uint64(id) }
	var events []trace.Event
	for id := InstanceID(firstInstance); int64(id) < h.instances.end; id++ {
		in := h.instance(id)
		if !in.used || in.stands {
			continue
		}
		for k := len(in.uses) - 1; k >= 0 && in.uses[k] >= from; k-- {
			at := in.uses[k] - from
			if !in.live && in.uses[k] >= in.died {
				continue // it was kept for what is to be made of it (um/explicit): to the job it is gone
			}
			touched[at] = append(touched[at], trace.Access{Alloc: name(id)})
		}
		if in.born < from && (in.live || in.died >= from) {
			events = append(events, trace.Event{Kind: trace.KindAlloc, Alloc: name(id), Bytes: in.asked})
		}
	}
	for at := range touched {
		s := h.steps.at(from + int64(at))
		for i := s.turns; i < s.turnsEnd; i++ {
			t := h.turns.at(i)
			in := h.instance(t.id)
			switch {
			case in.gen != t.gen: // no operation knows of it
			case t.death:
				events = append(events, trace.Event{Kind: trace.KindFree, Alloc: name(t.id)})
			default:
				events = append(events, trace.Event{Kind: trace.KindAlloc, Alloc: name(t.id), Bytes: in.asked})
			}
		}
		events = append(events, trace.Event{Kind: trace.KindLaunch, Accesses: touched[at]})
	}
	return events, from
}
