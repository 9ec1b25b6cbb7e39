package um

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// DebugDiverge compares the ledger with the truth.
func (r *Runtime) DebugDiverge(onDevice func(cuda.Range) int64) (only, missing, moving int) {
	for b := int32(0); b < r.arena.blocks; b++ {
		if r.arena.moving[b] {
			moving++
			continue
		}
		truth := onDevice(cuda.Range{Base: r.arena.ptr(b), Bytes: BlockBytes}) > 0
		if truth && !r.arena.onDevice[b] {
			only++
		}
		if !truth && r.arena.onDevice[b] {
			missing++
		}
	}
	return
}
func (r *Runtime) DebugRoom() (int32, int32, int32) { return r.room(), r.arena.resident, r.arriving }

func (r *Runtime) DebugHead() string {
	x := r.head()
	if x == nil {
		return "no head"
	}
	s := fmt.Sprintf("head %d now %d pending0 %d room %d resident %d arriving %d leaving %d fod %d idlefod %d\n", x.position, r.history.Now(), r.pending[0].position, r.room(), r.arena.resident, r.arriving, r.leaving, r.arena.freeOnDevice, r.idleOnDevice())
	for _, t := range x.tensors {
		a, b := r.away(t)
		s += fmt.Sprintln("  t", t.first, t.n, "freed", t.freed, "present", t.present, "missing", a, b, "queued", len(t.queued), "open", t.open)
	}
	r.plan.valid = false
	p := r.planned()
	s += fmt.Sprintln("plan fetch", len(p.fetch), "evict", len(p.evict), "stuck", r.stuck(x))
	for _, t := range p.evict {
		s += fmt.Sprintln("   victim", t.first, t.n, t.present, t.open, t.queued)
	}
	return s
}
