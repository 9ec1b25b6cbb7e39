package um

import "fmt"

// DebugLate is called at a late operation.
var DebugLate func(string)

func (r *Runtime) DebugHead() string {
	x := r.head()
	if x == nil {
		return "no head"
	}
	p := &r.plan
	s := fmt.Sprintf("head %d now %d pending0 %d room %d resident %d arriving %d leaving %d doomed %d fod %d idlefod %d flying %d ghosts %d\n", x.position, r.history.Now(), r.pending[0].position, r.room(), r.arena.resident, r.arriving, r.leaving, r.displacing, r.arena.freeOnDevice, r.idleOnDevice(), r.flying, len(r.ghosts))
	for _, t := range x.tensors {
		a, b := r.away(t)
		s += fmt.Sprintln("  t", t.first, t.n, "freed", t.freed, t.released, "present", t.present, "missing", a, b, "queued", len(t.queued), "open", t.open)
	}
	pinned, live, cand := int32(0), int32(0), int32(0)
	for _, t := range r.slots {
		if t == nil {
			continue
		}
		live += t.present
		if t.pinned() {
			pinned += t.present
		} else if t.leaves != p.serial {
			cand += t.present
		}
	}
	var n int32
	for _, t := range p.evict {
		_, k := r.presentPieces(t, 1<<20)
		n += k
	}
	s += fmt.Sprintln("plan fetch", len(p.fetch), "evict", len(p.evict), n, "dry", p.dry, "live on device", live, "pinned", pinned, "unpinned not leaving", cand, "recency", r.countRecency())
	return s
}

func (r *Runtime) countRecency() (n int) {
	if r.recency != nil {
		r.recency.oldest(func(int32) bool { n++; return true })
	}
	return
}
