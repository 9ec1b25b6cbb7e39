package planned

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/follow"
)

// record notes a request while an iteration is looked for, and has a plan made when an iteration is complete.
func (p *Pool) record(at cuda.Ptr, bytes int64, stream uint64) {
	s := &p.service
	steps := s.recorder.Alloc(at, bytes, stream)
	if steps == nil {
		return
	}
	s.recorder = nil
	s.plans, s.revisions, s.attempts = s.plans+1, 0, 0
	s.steps = steps
	p.plan(steps.Begins, stream)
}

// plan has a plan made for the steps, in the background. If an iteration begins just
// now, memory is chosen for it meanwhile, and mapped too.
func (p *Pool) plan(begins bool, stream uint64) {
	s := &p.service
	steps := s.steps
	var a *area
	if begins {
		bytes := steps.LiveBytes() // which plans nearly always reach
		a = p.prepare(bytes, stream, newBytes(bytes))
		s.attempts = 0
	}
	s.phase, s.why = planning, "it is being made"
	p.work.Go(func() {
		share, err := steps.Plan(context.Background(), planningLimit)
		fits := a != nil && err == nil && share >= leastShare && steps.Bytes <= a.ran.Bytes()
		var unmapped error
		if fits {
			unmapped = mapArea(a)
		}
		p.above.Lock()
		defer p.above.Unlock()
		if s.phase != planning || s.steps != steps {
			err, fits = errGone, false
		}
		if a != nil && !fits {
			p.below.Close(a.ran, a.stream)
		}
		switch {
		case err == errGone:
		case err != nil:
			s.again(err.Error())
		case share < leastShare:
			s.again(fmt.Sprintf("only %.0f %% of the bytes come again", 100*share))
		default:
			s.phase, s.why = ready, "no iteration has begun since it was made"
			if s.follow(); fits {
				s.current = a
				p.noteMapped(a, unmapped)
			}
		}
	})
}

// errGone says that nobody waits for a plan any more.
var errGone = errors.New("nobody waits for this plan any more")

// newBytes is how much of a plan's memory may be new.
func newBytes(planned int64) int64 { return max(planned/mostCreated, alwaysCreated) }

// prepare chooses memory for so many planned bytes, of which some may be new.
func (p *Pool) prepare(bytes int64, stream uint64, mostCreated int64) *area {
	s := &p.service
	r, err := p.below.Prepare(bytes, stream, mostCreated)
	if err != nil { // not now
		s.why = err.Error()
		if s.attempts++; s.attempts == mostAttempts || s.file { // what lives across iterations lies everywhere in between: stitching does better here
			s.plans += mostPlans / 2
			s.again(err.Error())
		}
		return nil
	}
	return &area{ran: r, stream: stream}
}

// mapInBackground has chosen memory mapped.
func (p *Pool) mapInBackground(a *area) {
	s := &p.service
	s.current, s.phase, s.why, s.attempts = a, mapping, "memory is being mapped for it", 0
	p.work.Go(func() {
		err := mapArea(a)
		p.above.Lock()
		defer p.above.Unlock()
		p.noteMapped(a, err)
	})
}

// mapArea maps an area, on a thread to which the driver's context may be bound.
func mapArea(a *area) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return a.ran.Map()
}

// noteMapped goes on when chosen memory is mapped, or cannot be.
func (p *Pool) noteMapped(a *area, err error) {
	s := &p.service
	switch {
	case s.current != a: // given up meanwhile
		p.below.Close(a.ran, a.stream)
	case err != nil:
		p.drop()
		s.phase, s.why = off, err.Error()
	default:
		s.phase, s.why = mapped, "no iteration has begun since its memory was mapped"
	}
}

// activate takes the mapped memory, and follows the plan from now on.
func (p *Pool) activate() {
	s := &p.service
	if !p.below.Activate(s.current.ran, s.current.stream) {
		s.why = "the memory chosen for it is in use"
		if s.attempts++; s.attempts == mostAttempts {
			p.drop()
			s.phase, s.attempts = ready, 0
		}
		return
	}
	a := s.current
	a.layout = follow.NewLayout(a.ran.Bytes(), a.stream, p.below.NoteFree(a.stream), p.below.Done)
	s.areas = append(s.areas, a)
	reserved := p.below.ReservedBytes()
	s.mostReserved = reserved + max(reserved/mostGrowth, alwaysCreated)
	s.phase, s.why, s.attempts = active, "", 0
	s.hits, s.misses, s.badTurns, s.followed = 0, 0, 0, 0
}

// beginAtOnce takes memory for the plan of a whole job, at its first request.
func (p *Pool) beginAtOnce(stream uint64) {
	s := &p.service
	a := p.prepare(s.steps.Bytes, stream, s.steps.Bytes)
	if a == nil {
		return
	}
	s.current = a
	if p.noteMapped(a, a.ran.Map()); s.phase == mapped {
		p.activate()
	}
}

// drop gives up addresses that were never taken.
func (p *Pool) drop() {
	a := p.service.current
	p.service.current = nil
	p.below.Close(a.ran, a.stream)
}
