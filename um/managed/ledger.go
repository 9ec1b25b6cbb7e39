package managed

// begin enters a move into the ledger.
func (r *evictionOrder) begin(m *Move) {
	a := r.arena
	for _, x := range m.runs {
		for b := x.first; b < x.end(); b++ {
			a.moving[b] = true
			if t := a.owner[b]; t != nil {
				if m.in {
					t.arriving++
				} else {
					r.leave(t)
				}
			}
		}
		switch {
		case m.in:
			r.arriving += x.n
		case a.onDevice[x.first]:
			r.leaving += x.n
			if m.Kind == MoveDiscard {
				r.discarding += x.n
			}
		}
		if m.Kind == MovePopulate {
			r.populating += x.n
		}
	}
	if len(m.displaced) > 0 {
		m.OutBytes = int64(len(m.displaced)) * BlockBytes
		r.markDriverVictims(m.displaced)
	}
	r.flying++
	for _, e := range m.extents {
		r.freeMoving += e.n
	}
	if m.in {
		r.displacers++
	}
}

// Done reports that a move has been carried out.
func (r *scheduler) Done(m *Move) {
	r.flying--
	if m.Kind == MoveTouch {
		r.steered(m)
	}
	if m.in {
		r.displaced(m)
	}
	for _, x := range m.runs {
		switch {
		case m.in:
			r.arriving -= x.n
		case r.arena.onDevice[x.first]:
			r.leaving -= x.n
			if m.Kind == MoveDiscard {
				r.discarding -= x.n
			}
		}
		if m.Kind == MovePopulate {
			r.populating -= x.n
		}
		r.settle(x, m.in)
	}
	if m.Kind == MovePopulate {
		r.populated(m)
	}
	for _, e := range m.extents {
		r.freeMoving -= e.n
		switch {
		case m.Kind == MoveDiscard || m.Kind == MovePrepare:
			for b := e.first; b < e.end(); b++ {
				r.arena.stale[b] = false
			}
			e.stream, e.others = anyStream, nil
		case !m.in:
			for b := e.first; b < e.end(); b++ {
				r.arena.stale[b] = true
			}
		}
		r.arena.give(e.first, e.n, e.stream, e.seq, e.others)
	}
	r.account(m)
	r.notePeak()
	r.Happened()
	r.openGates()
}
