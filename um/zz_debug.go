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

var DebugUnforeseen func(string)

func (r *Runtime) debugBlock(b int32) string {
	rank, doomedBefore, i := -1, 0, 0
	r.recency.oldest(func(x int32) bool {
		if x == b {
			rank = i
			return false
		}
		if r.arena.doomed[x] {
			doomedBefore++
		}
		i++
		return true
	})
	t := r.holder(b)
	s := fmt.Sprintf("%v block %d rank %d doomed before %d doomed %d room %d resident %d arriving %d discarding %d touching %v flying %d", r.process.Now(), b, rank, doomedBefore, r.displacing, r.room(), r.arena.resident, r.arriving, r.discarding, r.touching, r.flying)
	if t != nil {
		s += fmt.Sprint(" holder ", t.first, t.n, " freed ", t.freed, " leaves ", t.leaves == r.plan.serial)
	}
	return s
}
