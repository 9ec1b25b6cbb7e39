package stitch

// streamState is what the pool knows of a stream: how much was freed in its
// order, and how much of that its work is known to have left behind.
type streamState struct {
	frees  uint64 // how often memory was freed in the stream's order
	fence  any    // outstanding; nil: none
	marked uint64 // frees when the fence was made
	passed uint64 // frees that the stream's work is known to have passed
	broken bool   // fences cannot be made on it: it may have been destroyed
}

func (p *Pool) stream(id uint64) *streamState {
	s := p.streams[id]
	if s == nil {
		s = &streamState{}
		p.streams[id] = s
	}
	return s
}

// done says whether a stream's work is known to have passed its free number n.
func (p *Pool) done(id, n uint64, wait bool) bool {
	s := p.stream(id)
	p.settleFence(s, wait)
	if s.passed >= n {
		return true
	}
	if p.Mark(id); s.fence != nil {
		p.settleFence(s, wait)
	}
	return s.passed >= n
}

// Mark makes a fence on a stream behind what is queued now, unless an earlier one is
// still outstanding.
func (p *Pool) Mark(id uint64) {
	s := p.stream(id)
	if s.fence != nil || s.broken {
		return
	}
	f, err := p.fences.Fence(id)
	if err != nil {
		s.broken = true
		return
	}
	s.fence, s.marked = f, s.frees
}

// settleFence looks whether an outstanding fence was passed.
func (p *Pool) settleFence(s *streamState, wait bool) {
	if s.fence == nil {
		return
	}
	if wait {
		if p.fences.Wait(s.fence) != nil {
			return
		}
	} else if !p.fences.Passed(s.fence) {
		return
	}
	s.fence, s.passed = nil, s.marked
}

// adopt gives a stream the free memory of others whose work is known to be done
// with it. It says whether there was any.
func (p *Pool) adopt(a *arena, stream uint64, wait bool) (any bool) {
	for id, l := range a.free {
		if id == stream || len(l.blocks) == 0 {
			continue
		}
		last := uint64(0)
		for _, b := range l.blocks {
			last = max(last, b.freed)
		}
		p.done(id, last, wait) // what an earlier fence covers is taken even if this says no
		passed := p.stream(id).passed
		var idle []*block
		for _, b := range l.blocks {
			if b.freed <= passed {
				idle = append(idle, b)
			}
		}
		for _, b := range idle {
			a.unindex(b)
			b.stream, b.freed = stream, 0
			a.settle(b)
			any = true
		}
	}
	return any
}

// waitForAll waits until recorded streams are done with what was freed. What
// cannot be waited for stays where it is.
func (p *Pool) waitForAll() {
	for _, b := range p.waiting {
		for len(b.fences) > 0 && b.fences[0] != never && p.fences.Wait(b.fences[0]) == nil {
			b.fences = b.fences[1:]
		}
	}
	p.reclaim()
}

// NoteFree counts a free in a stream's order that the pool itself does not see: of
// something in a Range. Done takes the number.
func (p *Pool) NoteFree(stream uint64) uint64 {
	s := p.stream(stream)
	s.frees++
	return s.frees
}

// Done says whether a stream's work has passed its free of that number; it may look
// at the stream, and waits for it if asked to.
func (p *Pool) Done(stream, number uint64, wait bool) bool { return p.done(stream, number, wait) }
