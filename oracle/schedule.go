package oracle

import (
	"fmt"
	"math"
	"slices"
)

// gapState is how far a gap has got.
type gapState uint8

const (
	gapAhead   gapState = iota // its item is still in use
	gapQueued                  // waiting for the copy out
	gapLeaving                 // being copied out
	gapKept                    // being copied out, but wanted back before its space was
	gapClean                   // copied out, still present: can be dropped at once
	gapAway                    // gone
	gapComing                  // being copied in
	gapOver                    // present again, dead, or given up
)

// scheduler executes a plan in seconds.
type scheduler struct {
	*program
	plan
	o        Options
	state    []gapState
	opening  []int32 // gaps by the launch that opens them
	openFrom []int32 // per launch: where its gaps begin in opening; one more at the end
	gapOf    []int32 // per item: its open gap, or never
	present  []bool  // per item: occupies space
	saved    []bool  // per item: the host's copy is up to date
	slack    *slack
	now      float64
	turns    bool // only one direction of the bus at a time
	next     int  // the launch to start next
	running  bool
	runEnd   float64
	issued   float64 // when the job comes to the next launch
	used     int64
	pinned   int64
	out, in  link
	outQueue queue // by deadline
	inQueue  queue // by next use
	clean    queue // farthest end first

	ends    []float64 // per launch
	samples []Sample  // after each launch of the iteration
	iterH2D float64   // crossed when the iteration began
	iterD2H float64
	audit   func(action) // told of everything that happens; may be nil
}

// action is one thing that the schedule does at a moment.
type action struct {
	what   actionKind
	now    float64
	item   int32
	launch int
}

type actionKind uint8

const (
	actLaunch actionKind = iota // a launch starts
	actEnd                      // and ends
	actFresh                    // an item takes space for the first time
	actOut                      // a copy out starts
	actLeft                     // and ends; the item is still present
	actDrop                     // an item gives its space back
	actIn                       // an item takes space and its copy in starts
	actCame                     // and ends
)

func (s *scheduler) log(a action) {
	if s.audit != nil {
		a.now = s.now
		s.audit(a)
	}
}

func newScheduler(p *program, pl plan, o Options, turns bool) *scheduler {
	s := &scheduler{program: p, plan: pl, o: o, turns: turns,
		state:    make([]gapState, len(pl.gaps)),
		opening:  make([]int32, len(pl.gaps)),
		openFrom: make([]int32, len(p.launches)+1),
		gapOf:    make([]int32, len(p.items)),
		present:  make([]bool, len(p.items)),
		saved:    make([]bool, len(p.items)),
		slack:    newSlack(pl.free),
		out:      link{alone: o.D2HBytesPerSecond, gap: never},
		in:       link{alone: o.H2DBytesPerSecond, gap: never},
		ends:     make([]float64, len(p.launches)),
	}
	for i := range s.gapOf {
		s.gapOf[i] = never
	}
	for _, g := range pl.gaps {
		s.openFrom[g.after+1]++
	}
	for i := range p.launches {
		s.openFrom[i+1] += s.openFrom[i]
	}
	filled := slices.Clone(s.openFrom)
	for i, g := range pl.gaps {
		s.opening[filled[g.after]] = int32(i)
		filled[g.after]++
	}
	return s
}

// run executes everything up to the end of the last full iteration.
func (s *scheduler) run() error {
	s.arrive()
	for {
		for s.step() {
		}
		at := math.Inf(1)
		if s.running {
			at = min(at, s.runEnd)
		} else if s.issued > s.now {
			at = s.issued
		}
		if !s.out.idle() {
			at = min(at, s.out.end)
		}
		if !s.in.idle() {
			at = min(at, s.in.end)
		}
		if math.IsInf(at, 1) {
			return fmt.Errorf("oracle: the schedule is stuck before launch %d (%s) with %d of %d bytes used: this is a bug",
				s.next, s.launches[s.next].name, s.used+s.pinned, s.o.BudgetBytes)
		}
		s.now = at
		if !s.out.idle() && s.out.end <= s.now {
			s.left()
		}
		if !s.in.idle() && s.in.end <= s.now {
			s.came()
		}
		if s.running && s.runEnd <= s.now {
			if s.finished(); s.next == s.last {
				return nil
			}
		}
	}
}

// step starts one thing that can start now and says whether there was one.
func (s *scheduler) step() bool {
	if !s.running && s.startLaunch() {
		return true
	}
	s.keep()
	if !s.turns {
		return s.out.idle() && s.startOut() || s.in.idle() && s.startIn()
	}
	if !s.out.idle() || !s.in.idle() {
		return false
	}
	// In turn: what is due first goes first.
	coming, incoming := s.head(&s.inQueue)
	leaving, outgoing := s.head(&s.outQueue)
	if incoming && (!outgoing || s.gaps[coming].back <= s.gaps[leaving].deadline) && s.startIn() {
		return true
	}
	return s.startOut() || s.startIn()
}

// arrive is called when the launch at s.next is the next to start: what dies
// before it vanishes.
func (s *scheduler) arrive() {
	for _, k := range s.freesAt[s.next] {
		if g := s.gapOf[k]; g != never {
			s.gapOf[k] = never
			switch s.state[g] {
			case gapLeaving, gapKept:
				s.state[g] = gapOver // its space is given back when the copy ends
				continue
			}
			s.state[g] = gapOver
		}
		if s.present[k] {
			s.present[k] = false
			s.used -= s.items[k].bytes
			s.log(action{what: actDrop, item: k})
		}
	}
}

// startLaunch starts the next launch when everything it touches is present.
func (s *scheduler) startLaunch() bool {
	if s.now < s.issued {
		return false
	}
	l := &s.launches[s.next]
	need := l.pinnedBytes - s.pinned
	for _, k := range l.items {
		g := s.gapOf[k]
		if g == never {
			if !s.present[k] {
				need += s.items[k].bytes
			}
			continue
		}
		switch s.state[g] {
		case gapQueued, gapClean:
			s.state[g] = gapOver // it never had to leave
			s.gapOf[k] = never
		default:
			return false
		}
	}
	if !s.makeRoom(need) {
		return false
	}
	for j, k := range l.items {
		if !s.present[k] {
			s.present[k] = true
			s.used += s.items[k].bytes
			s.saved[k] = false
			s.log(action{what: actFresh, item: k})
		} else if !l.reads[j] {
			s.saved[k] = false
		}
	}
	s.pinned = l.pinnedBytes
	s.running = true
	s.runEnd = s.now + l.seconds
	s.log(action{what: actLaunch, launch: s.next})
	return true
}

// finished is called when the running launch is over.
func (s *scheduler) finished() {
	s.running = false
	s.ends[s.next] = s.now
	s.log(action{what: actEnd, launch: s.next})
	for _, g := range s.opening[s.openFrom[s.next]:s.openFrom[s.next+1]] {
		gap := &s.gaps[g]
		s.state[g] = gapQueued
		s.gapOf[gap.item] = g
		s.outQueue.push(entry{key: float64(gap.deadline), id: g, stamp: gap.after})
		if gap.back != never {
			s.inQueue.push(entry{key: float64(gap.back), id: g})
		}
	}
	if s.next >= s.first-1 {
		s.sample()
	}
	if s.launches[s.next].awaited {
		s.issued = max(s.issued, s.now)
	}
	s.issued += s.o.LaunchCost.Seconds()
	s.next++
	if s.next < len(s.launches) {
		s.arrive()
	}
}

// makeRoom drops copied-out items until so many bytes are free.
func (s *scheduler) makeRoom(bytes int64) bool {
	for s.o.BudgetBytes-s.used-s.pinned < bytes {
		top, ok := s.clean.top()
		if !ok {
			return false
		}
		s.clean.pop()
		if s.state[top.id] != gapClean {
			continue
		}
		k := s.gaps[top.id].item
		s.state[top.id] = gapAway
		s.present[k] = false
		s.log(action{what: actDrop, item: k})
		s.used -= s.items[k].bytes
	}
	return true
}

// head is the first gap of a queue that still waits in it.
func (s *scheduler) head(q *queue) (int32, bool) {
	for {
		top, ok := q.top()
		if !ok {
			return never, false
		}
		state := s.state[top.id]
		if q == &s.outQueue && state == gapQueued ||
			q == &s.inQueue && state != gapOver && state != gapKept && state != gapComing {
			return top.id, true
		}
		q.pop()
	}
}

func (s *scheduler) startOut() bool {
	g, ok := s.head(&s.outQueue)
	if !ok {
		return false
	}
	s.outQueue.pop()
	if s.saved[s.gaps[g].item] { // only read since it was last copied out
		s.saveDone(g)
		return true
	}
	s.state[g] = gapLeaving
	s.log(action{what: actOut, item: s.gaps[g].item})
	s.begin(&s.out, g)
	return true
}

// left is called when a copy out is over.
func (s *scheduler) left() {
	g := s.out.gap
	k := s.gaps[g].item
	s.end(&s.out)
	s.saved[k] = true
	s.log(action{what: actLeft, item: k})
	switch s.state[g] {
	case gapLeaving:
		s.saveDone(g)
	case gapKept:
		s.state[g] = gapOver
		s.gapOf[k] = never
	case gapOver: // died meanwhile
		s.present[k] = false
		s.log(action{what: actDrop, item: k})
		s.used -= s.items[k].bytes
	}
}

// saveDone is called when the host's copy of a gap's item is up to date: its
// space is there for the taking, even before the plan counted on that.
func (s *scheduler) saveDone(g int32) {
	gap := &s.gaps[g]
	s.state[g] = gapClean
	s.clean.push(entry{key: -float64(gap.end), id: g})
	if at := int32(s.next); at < gap.deadline {
		s.slack.take(int(at), int(gap.deadline), -s.items[gap.item].bytes)
		gap.deadline = at
	}
}

// affordable says whether a gap can end now without any position before its
// next use overflowing.
func (s *scheduler) affordable(g int32) bool {
	gap := &s.gaps[g]
	from := max(s.next, int(gap.deadline))
	return s.slack.min(from, int(gap.back)) >= s.items[gap.item].bytes
}

func (s *scheduler) commit(g int32) {
	gap := &s.gaps[g]
	s.slack.take(max(s.next, int(gap.deadline)), int(gap.back), s.items[gap.item].bytes)
}

// keep ends, at no cost, the gaps of items that are still here, as long as
// nothing that is needed sooner waits to come in.
func (s *scheduler) keep() {
	for {
		g, ok := s.head(&s.inQueue)
		if !ok || s.state[g] == gapAway || !s.affordable(g) {
			return
		}
		s.inQueue.pop()
		s.commit(g)
		if s.state[g] == gapLeaving {
			s.state[g] = gapKept
			continue
		}
		s.state[g] = gapOver
		s.gapOf[s.gaps[g].item] = never
	}
}

// startIn starts the copy in of what is needed soonest, if the plan has room
// for it until then.
func (s *scheduler) startIn() bool {
	g, ok := s.head(&s.inQueue)
	if !ok || s.state[g] != gapAway || !s.affordable(g) {
		return false
	}
	k := s.gaps[g].item
	bytes := s.items[k].bytes
	reserve := int64(0)
	if int(s.gaps[g].back) > s.next {
		reserve = s.nextNeed() // the next launch comes first
	}
	if !s.makeRoom(bytes + reserve) {
		return false
	}
	s.inQueue.pop()
	s.commit(g)
	s.state[g] = gapComing
	s.present[k] = true
	s.used += bytes
	s.log(action{what: actIn, item: k})
	s.begin(&s.in, g)
	return true
}

// nextNeed is the space that the next launch takes beyond what is present.
func (s *scheduler) nextNeed() int64 {
	at := s.next
	if s.running {
		at++
	}
	if at >= len(s.launches) {
		return 0
	}
	l := &s.launches[at]
	need := l.pinnedBytes - s.pinned
	for _, k := range l.items {
		if !s.present[k] && s.gapOf[k] == never {
			need += s.items[k].bytes
		}
	}
	return max(0, need)
}

// came is called when a copy in is over.
func (s *scheduler) came() {
	g := s.in.gap
	k := s.gaps[g].item
	s.end(&s.in)
	s.log(action{what: actCame, item: k})
	s.state[g] = gapOver
	s.gapOf[k] = never
}

// sample records the state after a launch; the first one, after the launch
// before the iteration, is where its counting starts.
func (s *scheduler) sample() {
	h2d, d2h := s.in.crossed(s.now), s.out.crossed(s.now)
	if s.next == s.first-1 {
		s.iterH2D, s.iterD2H = h2d, d2h
		return
	}
	s.samples = append(s.samples, Sample{
		Seconds:       s.now,
		ResidentBytes: s.used + s.pinned,
		LiveBytes:     s.launches[s.next].liveBytes,
		H2DBytes:      int64(h2d - s.iterH2D),
		D2HBytes:      int64(d2h - s.iterD2H),
	})
}

// result is the last full iteration of a finished run, or the mean of those that are judged together.
func (s *scheduler) result() Result {
	began := 0.0
	if s.first > 0 {
		began = s.ends[s.first-1]
	}
	r := Result{PeakLiveBytes: s.peakBytes, Repeats: s.repeats}
	for i := range s.samples {
		sample := &s.samples[i]
		r.ComputeSeconds += s.launches[s.first+i].seconds
		sample.Seconds -= began
		sample.StallSeconds = max(0, sample.Seconds-r.ComputeSeconds)
	}
	end, n := s.samples[len(s.samples)-1], int64(s.judged)
	r.IterationSeconds, r.ComputeSeconds = (s.ends[s.last-1]-began)/float64(n), r.ComputeSeconds/float64(n)
	r.H2DBytes, r.D2HBytes, r.StallSeconds = end.H2DBytes/n, end.D2HBytes/n, end.StallSeconds/float64(n)
	if s.o.Timeline {
		r.Timeline = slices.Clone(s.samples)
	}
	return r
}
