package planned

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/follow"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// phase is how far the service of a plan has come.
type phase int

const (
	off       phase = iota
	recording       // an iteration is being looked for
	planning        // its plan is being made
	ready           // there is a plan; memory is chosen for it when an iteration begins
	mapping         // which is being mapped
	mapped          // and is taken when an iteration begins
	active          // the plan is followed
)

func (p phase) String() string {
	return [...]string{"off", "recording", "planning", "ready", "mapping", "mapped", "followed"}[p]
}

const (
	unitBytes     = 512         // requests are rounded up to it
	plannedAbove  = 1 << 20     // smaller requests lie among small ones, unless a plan's file has them
	planningLimit = time.Second // of one thread's time, in the background
	leastShare    = 0.5         // of the requested bytes that must repeat for a plan to be worth its addresses
	mostAttempts  = 4           // to take memory for a plan
	mostCreated   = 256         // one part in so many of the planned bytes may be new memory
	alwaysCreated = 32 << 20    // bytes that may be in any case
	enoughHits    = 4           // bytes that come as planned for each that does not
	stepsAhead    = 256         // that are looked at for a place between them
	mostGrowth    = 100         // of reserved memory, one part in so many, while a plan is followed
	mostEarlyEnds = 3           // that a plan was given up early
	provenTurns   = 8           // that were followed: not early any more
	mostRevisions = 3           // of a plan
	mostPlans     = 16          // made for one process
	mostWaiting   = 4           // times the requests of an iteration, without one beginning: the job has none like it any more
	leftOver      = 64 << 20    // bytes live, of workspaces, when a job is over and its process goes on
	suspendAfter  = 64          // unexpected requests in a row: the job is doing something else
	trimEachTime  = 256 << 20   // bytes given back at the begin of an iteration
)

// area is planned addresses and what lies in them.
type area struct {
	ran    *stitch.Range
	layout *follow.Layout
	stream uint64 // whose work the memory was taken for
	left   bool   // nothing new is placed there
}

// service follows a plan, and makes one first.
type service struct {
	phase        phase
	file         bool  // the plan is for the whole job, and not for an iteration
	least        int64 // requests above it are followed
	recorder     *follow.Recorder
	steps        *follow.Steps
	follower     *follow.Follower
	current      *area   // mapping, mapped or active
	areas        []*area // those in use, left ones too
	attempts     int
	plans        int
	revisions    int  // of the plan, for what varies
	observed     int  // turns, for a revision
	inRow        int  // unexpected requests
	lasting      bool // the request that is being served lives on in later iterations
	turns        int  // of the follower, that were noticed
	waited       int  // requests since
	coming       []follow.Gap
	mostReserved int64  // while the plan is followed
	earlyEnds    int    // how often it was given up early
	followed     int    // turns since it was taken
	why          string // the plan is not followed; "" while it is
	hits         int64
	misses       int64 // in this iteration, by bytes
	badTurns     int
	script       script // of the plan, for the front
}

func (s *service) start(c Config) (err error) {
	s.why = "planning is switched off"
	switch {
	case c.Plan != nil:
		if s.steps, err = follow.FromPlan(c.Plan); err != nil {
			return err
		}
		s.follower = follow.NewFollowerFromStart(s.steps)
		s.file, s.phase, s.why = true, ready, "nothing was asked for yet"
	case !c.Off:
		s.again("")
	}
	return nil
}

// again looks for an iteration from now on. why says what was wrong with the plan before.
func (s *service) again(why string) {
	s.recorder, s.steps, s.follower, s.earlyEnds = follow.NewRecorder(), nil, nil, 0
	s.least, s.file = plannedAbove, false
	s.phase = recording
	if s.why = "no two iterations were alike yet"; why != "" {
		s.why += ", after a plan was given up: " + why
	}
	if s.plans >= mostPlans {
		s.phase, s.why = off, fmt.Sprintf("no plan is made any more, after several: %s", why)
	}
}

func (s *service) follow() {
	s.follower, s.inRow, s.turns, s.waited, s.observed = follow.NewFollower(s.steps), 0, 0, 0, 0
}

// areaOf finds the planned addresses that an address is in.
func (s *service) areaOf(at cuda.Ptr) (*area, int64) {
	for _, a := range s.areas {
		if at >= a.ran.Base() && at < a.ran.Base()+cuda.Ptr(a.ran.Bytes()) {
			return a, int64(at - a.ran.Base())
		}
	}
	return nil, 0
}

// fromPlan serves a request from the plan, if it is in it and its place is free.
func (p *Pool) fromPlan(bytes int64, stream uint64) (cuda.Ptr, bool) {
	s := &p.service
	s.lasting = false
	if s.waited++; s.phase == ready && !s.file && s.waited > mostWaiting*len(s.steps.List) {
		s.again("its iteration did not come again")
		return 0, false
	}
	i, ok := s.follower.Next(bytes, stream)
	if !ok {
		if s.misses += bytes; s.phase == active {
			p.stats.Other++
			if s.inRow++; s.inRow == suspendAfter { // the memory serves what the job does now
				p.leave(fmt.Sprintf("%d requests in a row were not in it", suspendAfter))
			}
		}
		return 0, false
	}
	s.inRow = 0
	switch {
	case i == 0 && p.stats.Served == 0 && s.file: // the job's first request
		p.beginAtOnce(stream)
	case s.follower.Turns() != s.turns && s.follower.AtBegin():
		s.turns, s.waited = s.follower.Turns(), 0
		p.begin(stream)
	}
	if s.phase != active {
		return 0, false
	}
	s.lasting = s.steps.List[i].Lasting
	at, ok := s.place(i, bytes, stream)
	if ok {
		s.hits += bytes
		p.stats.Served++
		p.stats.ServedBytes += bytes
	} else {
		p.stats.Other++
		if x := &s.steps.List[i]; !x.Varies && !x.Lasting {
			s.misses += bytes
		}
	}
	return at, ok
}

// place puts a request where its step belongs.
func (s *service) place(i int, bytes int64, stream uint64) (cuda.Ptr, bool) {
	x, a := &s.steps.List[i], s.current
	size := roundUp(bytes, unitBytes)
	if x.Offset >= 0 {
		return a.ran.Base() + cuda.Ptr(x.Offset), a.layout.Place(x.Offset, size, bytes, stream)
	}
	for _, g := range x.Gaps {
		if g.Hi-g.Lo < size {
			continue
		}
		if offset, ok := a.layout.FitIn(g.Lo, g.Hi, size, stream); ok {
			return a.ran.Base() + cuda.Ptr(offset), a.layout.Place(offset, size, bytes, stream)
		}
	}
	return 0, false
}

// fromGaps serves a request that the plan has no place for without more memory
// being taken: from what is free in the pool, or else between planned places.
func (p *Pool) fromGaps(bytes int64, stream uint64) (cuda.Ptr, bool) {
	s := &p.service
	if at, ok := p.below.MallocFree(bytes, stream); ok {
		return at, true
	}
	if s.lasting { // it would be in the way of the next iteration
		return 0, false
	}
	s.coming = s.follower.Coming(stepsAhead, s.coming)
	a, size := s.current, roundUp(bytes, unitBytes)
	offset, ok := a.layout.Fit(size, stream, s.coming)
	if !ok || !a.layout.Place(offset, size, bytes, stream) {
		return 0, false
	}
	return a.ran.Base() + cuda.Ptr(offset), true
}

// begin is called when an iteration begins.
func (p *Pool) begin(stream uint64) {
	s := &p.service
	switch s.phase {
	case ready:
		if seen := min(s.follower.Requests(), len(s.steps.List)); s.follower.Longest() < seen/2 { // something varies: one whole turn says what
			s.why = "iterations differ, and it is not known yet in what"
			if s.observed++; s.observed == 1 {
				s.follower.Forget()
				return
			}
			if s.revisions < mostRevisions && s.steps.Revise(s.follower) {
				s.revisions++
				p.plan(true, stream)
				return
			}
		}
		if a := p.prepare(s.steps.Bytes, stream, newBytes(s.steps.Bytes)); a != nil {
			p.mapInBackground(a)
		}
	case mapped:
		p.activate()
	case active:
		s.followed++
		if s.badTurns++; s.hits >= enoughHits*s.misses {
			s.badTurns = 0
		}
		s.hits, s.misses = 0, 0
		if s.badTurns == 3 { // the job has changed for good
			p.leave("")
			s.again("the job does something else now")
			return
		}
		s.script.due = p.scriptDue(p.below.TrimUnused(trimEachTime))
	}
}

// leave gives up the planned addresses: nothing new is placed there, what is free is
// for others. The plan is taken up again when an iteration begins. It says whether
// there was something to give up.
func (p *Pool) leave(why string) bool {
	p.EndScript()
	s := &p.service
	switch s.phase {
	case mapping:
		s.current = nil // the one that maps closes it
		s.phase, s.why = ready, why
		return true
	case mapped:
		p.drop()
		s.phase, s.why = ready, why
		return true
	case active:
		s.current.left = true
		s.current = nil
		p.releaseLeft(false)
		s.phase, s.why = ready, why
	default:
		return len(s.areas) > 0
	}
	if s.earlyEnds++; s.followed >= provenTurns {
		s.earlyEnds = 0
	}
	switch {
	case s.earlyEnds == mostEarlyEnds: // such a job is better off without
		s.plans += mostPlans / 2
		s.again(why)
	case s.file: // its plan has places for what lies elsewhere now
		s.again(why)
	}
	return true
}

// releaseLeft frees what is free in addresses that were left.
func (p *Pool) releaseLeft(wait bool) {
	s := &p.service
	kept := s.areas[:0]
	for _, a := range s.areas {
		if !a.left {
			kept = append(kept, a)
			continue
		}
		p.below.Shed(a.ran, a.stream, func(offset, bytes int64) bool { return !a.layout.Idle(offset, bytes, a.stream, wait) })
		if a.layout.Used() > 0 || !a.layout.Idle(0, a.ran.Bytes(), a.stream, wait) {
			kept = append(kept, a)
		} else {
			p.below.Close(a.ran, a.stream)
		}
	}
	clear(s.areas[len(kept):])
	s.areas = kept
}

func roundUp(x, to int64) int64 { return (x + to - 1) / to * to }
