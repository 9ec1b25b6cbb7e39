package plan

import (
	"context"
	"fmt"

	"github.com/penstock-gpu/penstock/trace"
)

// mostIterations is how many iterations a period may have so that what lives
// longer than one still has its own place each time.
const mostIterations = 4

// FromTrace plans a recorded run: its start-up is the prologue, its steady
// iteration the period. Where no two iterations are the same but marked ones are
// alike (a mixture of experts, an extra tensor now and then), the last of them is
// the period, and who follows the plan must expect other sizes in places. When
// nothing in it repeats, all of it is the prologue. What comes after the last repetition (an evaluation, the end) is not planned.
func FromTrace(ctx context.Context, t *trace.Trace, o Options) (*Plan, error) {
	r := newRun(t.Events)
	b := &builder{run: r, cut: len(r.ops), end: len(r.ops)}
	s, ok := r.steady()
	if chain := r.alike(); len(chain) > 0 && (!ok || s.Length() < 3*s.Period && s.End < chain[0].end) {
		b.modelAlike(chain) // nothing repeats, or hardly and not to the end
	} else if ok {
		b.model(s, r.quietest(s))
	}
	b.addPeriod()
	b.addPrologue()
	p, err := b.place(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", t.Name, err)
	}
	p.Job = Job{Command: t.Header.Command, GPU: t.Header.GPU}
	return p, nil
}

// FromRecent plans what comes after events: the plan has no prologue, its first
// call is the next one to come, and what is live at the end of events is not in
// it. It is false when no iteration repeats up to the end of events.
func FromRecent(ctx context.Context, events []trace.Event, o Options) (*Plan, bool, error) {
	r := newRun(events)
	s, ok := r.steady()
	if !ok || s.End != len(r.ops) {
		return nil, false, nil
	}
	b := &builder{run: r}
	b.model(s, s.End-2*s.Period) // a whole number of periods before the end
	b.addPeriod()
	p, err := b.place(ctx, o)
	return p, err == nil, err
}

// quietest is where the period is best begun: where the fewest bytes that will be
// freed are alive, of all places in the first period that two whole ones follow.
func (r *run) quietest(s trace.Steady) int {
	last := min(s.Begin+s.Period-1, s.End-2*s.Period)
	best, fewest := s.Begin, int64(maxTotalBytes)
	var alive int64
	for i := 0; i <= last; i++ {
		// Alive is now what was allocated before operation i, and will be freed.
		if i >= s.Begin && alive < fewest {
			best, fewest = i, alive
		}
		switch c := &r.calls[r.ops[i].call]; {
		case c.upper == stillLive || c.upper-c.lower > mostIterations*s.Period:
		case r.ops[i].alloc:
			alive += c.bytes
		default:
			alive -= c.bytes
		}
	}
	return best
}

// builder turns a run into requests, and their offsets into a plan. The clock of
// the requests is that of the run up to the cut; the period follows from there.
type builder struct {
	run       *run
	steady    trace.Steady
	cut       int         // where the prologue ends and the period begins
	end       int         // of what is planned
	repeat    int         // training iterations in a period, so that no call meets its own next one
	iteration []modeled   // the calls of one iteration
	nextOf    map[int]int // calls of the prologue, and the operation of the period at which their like comes first; nil: as far on as in all repetitions

	prologue, period []Call
	requests         []Request
	owners           []owner     // by request
	requestAt        map[int]int // requests of the period, by the operation in it that allocates
	endingAt         map[int]int // those that wrap around, by the operation that frees
}

// owner is who has a request's place: calls of the prologue and of the period, -1 for none.
type owner struct{ prologue, period int }

// modeled is a call of the steady iteration.
type modeled struct {
	call      int32
	at        int // operations after the iteration's beginning
	lifetime  int
	unplanned bool
}

// model takes the iteration that begins at cut as it is in all its repetitions:
// where lifetimes differ, the longest counts.
func (b *builder) model(s trace.Steady, cut int) {
	r := b.run
	b.steady, b.cut, b.end, b.repeat = s, cut, s.End, 1
	first := cut - (cut-s.Begin)/s.Period*s.Period
	for at := range s.Period {
		if !r.ops[cut+at].alloc {
			continue
		}
		m := modeled{call: r.ops[cut+at].call, at: at}
		seen := false
		for i := first + at; i < s.End; i += s.Period {
			c := &r.calls[r.ops[i].call]
			if c.upper <= s.End {
				m.lifetime, seen = max(m.lifetime, c.upper-c.lower), true
			} else if s.End-c.lower > m.lifetime {
				m.lifetime, m.unplanned = s.End-c.lower, true
			}
		}
		m.unplanned = m.unplanned || !seen || m.lifetime > mostIterations*s.Period
		if !m.unplanned {
			b.repeat = max(b.repeat, (m.lifetime+s.Period-1)/s.Period)
		}
		b.iteration = append(b.iteration, m)
	}
}

// periodOps is the length of the period.
func (b *builder) periodOps() int { return b.steady.Period * b.repeat }

func (b *builder) addPeriod() {
	b.requestAt, b.endingAt = map[int]int{}, map[int]int{}
	for n := range b.repeat {
		for _, m := range b.iteration {
			c := &b.run.calls[m.call]
			at := n*b.steady.Period + m.at
			call := Call{Bytes: c.bytes, Offset: Unplanned, Stream: int(c.stream),
				Lower: int64(at), Upper: int64(at + m.lifetime)}
			if !m.unplanned {
				lower, upper, end := b.cut+at, b.cut+at+m.lifetime, b.cut+b.periodOps()
				q := Request{Span: Span{int64(lower), int64(min(upper, end))}, Bytes: RoundUp(c.bytes)}
				if upper > end {
					q.Again = Span{int64(b.cut), int64(b.cut + upper - end)}
					b.endingAt[b.cut+upper-end] = len(b.requests)
				}
				b.requestAt[at] = len(b.requests)
				b.requests = append(b.requests, q)
				b.owners = append(b.owners, owner{-1, len(b.period)})
			}
			b.period = append(b.period, call)
		}
	}
}

func (b *builder) addPrologue() {
	end := b.cut + b.periodOps()
	for i := range b.run.calls {
		c := &b.run.calls[i]
		if c.lower >= b.cut {
			break
		}
		call := Call{Bytes: c.bytes, Stream: int(c.stream), Lower: int64(c.lower), Upper: int64(c.upper)}
		if c.upper > end || c.upper == stillLive {
			call.Upper = Forever
		}
		b.prologue = append(b.prologue, call)
		if b.joinNext(i) {
			continue
		}
		b.requests = append(b.requests, Request{Span: Span{int64(c.lower), min(call.Upper, int64(end))}, Bytes: RoundUp(c.bytes)})
		b.owners = append(b.owners, owner{i, -1})
	}
}

// joinNext gives a call of the prologue that is alive when the period begins the
// place of the call that stands for it there from then on: the one that comes at
// the same place in the iteration, or is freed where this one is. Both would
// otherwise need a place at once.
func (b *builder) joinNext(i int) bool {
	c := &b.run.calls[i]
	if c.upper <= b.cut {
		return false
	}
	n, ok := b.likeOf(i)
	if !ok {
		n, ok = b.endingAt[c.upper]
	}
	if !ok || b.owners[n].prologue >= 0 {
		return false
	}
	q := &b.requests[n]
	if q.Again.empty() || q.Bytes != RoundUp(c.bytes) {
		return false
	}
	if c.upper > b.end {
		b.prologue[i].Upper = q.Again.Upper // the recording ends before its free
	} else if int64(c.upper) > q.Again.Upper {
		return false
	}
	q.Again.Lower = int64(c.lower)
	b.owners[n].prologue = i
	return true
}

// likeOf finds the request of the period's first call like one of the prologue.
func (b *builder) likeOf(i int) (request int, ok bool) {
	if b.nextOf != nil {
		at, ok := b.nextOf[i]
		if !ok {
			return 0, false
		}
		request, ok = b.requestAt[at]
		return request, ok
	}
	c := &b.run.calls[i]
	if c.lower < b.steady.Begin || c.upper > b.end {
		return 0, false
	}
	request, ok = b.requestAt[c.lower+b.periodOps()-b.cut]
	return request, ok
}

// place finds the offsets and finishes the plan.
func (b *builder) place(ctx context.Context, o Options) (*Plan, error) {
	placement, err := Place(ctx, b.requests, o)
	if err != nil {
		return nil, err
	}
	for n, o := range b.owners {
		if o.prologue >= 0 {
			b.prologue[o.prologue].Offset = placement.Offsets[n]
		}
		if o.period >= 0 {
			b.period[o.period].Offset = placement.Offsets[n]
		}
	}
	p := &Plan{ArenaBytes: placement.Bytes, Prologue: b.prologue, Period: b.period}
	p.PrologueEvents, p.PeriodEvents, p.Iterations = int64(b.cut), int64(b.periodOps()), b.repeat
	p.PeakLiveBytes, p.UnplannedBytes = b.peaks()
	p.finish()
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("the plan contradicts itself (please report this): %w", err)
	}
	return p, nil
}

// peaks are the most bytes alive at once in the recording: of all that the plan is
// about, and of what it has no place for.
func (b *builder) peaks() (all, unplanned int64) {
	var homeless []bool // by operation of the iteration
	if len(b.iteration) > 0 {
		homeless = make([]bool, b.steady.Period)
		for _, m := range b.iteration {
			homeless[m.at] = m.unplanned
		}
	}
	var live, liveUnplanned int64
	for _, o := range b.run.ops[:b.end] {
		c := &b.run.calls[o.call]
		if c.lower < b.cut && len(b.prologue) == 0 {
			continue
		}
		sign := int64(-1)
		if o.alloc {
			sign = 1
		}
		live += sign * c.bytes
		all = max(all, live)
		if c.lower >= b.cut && homeless[(c.lower-b.cut)%b.steady.Period] {
			liveUnplanned += sign * RoundUp(c.bytes)
			unplanned = max(unplanned, liveUnplanned)
		}
	}
	return all, unplanned
}
