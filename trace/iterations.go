package trace

import "strconv"

// MarkIterations puts marks around the training iterations of a recording that has none, in
// place, and says whether it has any then. What it takes for an iteration is what the
// launches and copies repeat, at least once and for at least half of the recording: a shorter
// stretch may be the layers of a model. It begins where the fewest bytes are live. A trace with
// iterations stays as it is.
func (t *Trace) MarkIterations() bool {
	if len(t.Iterations()) > 0 {
		return true
	}
	ops, symbols := t.operations()
	s, ok := FindSteady(symbols, 0)
	if !ok || s.Length() < len(ops)/2 {
		return false
	}
	first := t.quietest(ops, s)
	var begins []int
	for ; first <= s.End; first += s.Period {
		begins = append(begins, first)
	}
	t.mark(ops, begins)
	return true
}

// mark puts marks before operations that iterations begin with, the last of which ends the one before it. A mark stands right
// behind an operation: what comes between the last of an iteration and the first of the next may be missing at the end of
// the recording.
func (t *Trace) mark(ops, begins []int) {
	events := make([]Event, 0, len(t.Events)+len(begins))
	from := 0
	for n, op := range begins {
		at := 0
		if op > 0 {
			at = ops[op-1] + 1
		}
		events = append(events, t.Events[from:at]...)
		e := Event{Kind: KindMark, Name: "iter" + strconv.Itoa(n)}
		if n == len(begins)-1 {
			e.Name = MarkEnd
		}
		if at > 0 {
			e.Time = t.Events[at-1].Time
		}
		events = append(events, e)
		from = at
	}
	t.Events = append(events, t.Events[from:]...)
}

// operations are the launches and copies: their events, and numbers that are equal for those that look
// alike. What they touch is not looked at: some parameters hold addresses that were left there.
func (t *Trace) operations() (events []int, symbols []int32) {
	type look struct {
		kind     Kind
		copy     CopyKind
		function uint32
	}
	known := map[look]int32{}
	for i := range t.Events {
		e := &t.Events[i]
		if !e.isOperation() {
			continue
		}
		l := look{e.Kind, e.Copy, e.Function}
		id, ok := known[l]
		if !ok {
			id = int32(len(known))
			known[l] = id
		}
		events, symbols = append(events, i), append(symbols, id)
	}
	return events, symbols
}

// quietest is the first operation of the first iteration. Iterations begin where the fewest
// bytes are live, as the last but one shows, of all places that leave it and the last whole.
func (t *Trace) quietest(ops []int, s Steady) int {
	from, last := max(s.Begin, s.End-3*s.Period+1), s.End-2*s.Period
	best, live := from, t.liveBefore(ops)
	for i := from; i <= last; i++ {
		if live[i] < live[best] {
			best = i
		}
	}
	return best - (best-s.Begin)/s.Period*s.Period
}
