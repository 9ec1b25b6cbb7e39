package managed

// begin enters a move into the ledger.
func (r *Runtime) begin(m *Move) {
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

func (r *Runtime) leave(t *tensor) {
	if t.leaving == 0 && !t.Freed {
		r.process.SetResident(t.Slot, false)
	}
	t.leaving++
}

// Done reports that a move has been carried out.
func (r *Runtime) Done(m *Move) {
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

// settle puts a run of blocks on one side.
func (r *Runtime) settle(x run, onDevice bool) {
	a := r.arena
	for b := x.first; b < x.end(); b++ {
		a.moving[b] = false
		t := a.owner[b]
		if t != nil {
			if onDevice {
				t.arriving--
			} else {
				t.leaving--
			}
			if a.onDevice[b] != onDevice {
				if onDevice {
					t.present++
				} else {
					t.present--
				}
			}
		}
		a.setOnDevice(b, 1, onDevice)
		r.note(b, onDevice)
		if t != nil {
			r.settled(t)
		}
	}
}

// settled follows the end of a move of one of a tensor's blocks.
func (r *Runtime) settled(t *tensor) {
	switch {
	case t.Freed:
		if t.arriving+t.leaving == 0 {
			r.freeMoving -= t.n
			r.release(t)
		}
	case t.present == t.n && t.leaving == 0:
		r.process.SetResident(t.Slot, true)
	}
}

// release gives a dead tensor's blocks back.
func (r *Runtime) release(t *tensor) {
	a := r.arena
	for b := t.first; b < t.first+t.n; b++ {
		a.owner[b] = nil
		if t.Busy() {
			a.deferred[b] = t
		}
		if !a.onDevice[b] && t.ran {
			a.stale[b] = true
		}
	}
	t.released = true
	a.give(t.first, t.n, t.Stream, t.freeSeq, t.freeOthers)
}

func (r *Runtime) account(m *Move) {
	bytes := int64(m.blocks()) * BlockBytes
	switch m.Kind {
	case MoveFetch:
		r.stats.Fetches++
		r.stats.FetchedBytes += m.Bytes
	case MoveEvict:
		r.stats.Evictions++
		r.stats.EvictedBytes += m.Bytes
	case MovePopulate:
		r.stats.Populates++
		r.stats.PopulatedBytes += bytes
	case MoveDiscard:
		r.stats.Discards++
		r.stats.DiscardedBytes += bytes
	}
	r.stats.EvictedBytes += m.OutBytes
}

func (r *Runtime) notePeak() {
	resident := r.residentBytes()
	r.stats.ResidentPeakBytes = max(r.stats.ResidentPeakBytes, resident)
	r.NotePeak(resident)
}

// residentBytes are those of managed blocks on the device.
func (r *Runtime) residentBytes() int64 { return int64(r.arena.resident) * BlockBytes }
