package managed

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// gates is the floor of operations: which may run, and what those wait for that may not.
type gates struct {
	evictionOrder
	gated []([]*op) // by stream: gated operations whose gate is closed, in order
}

// ready says whether every tensor of an operation is on the device and stays.
func (r *gates) ready(x *op) bool {
	for _, t := range x.Tensors {
		if missing, _ := r.away(t); missing > 0 {
			return false
		}
	}
	return true
}

// missingBlocks are the blocks of an operation that are not on the device.
func (r *gates) missingBlocks(x *op) (n int32) {
	for _, t := range x.Tensors {
		missing, _ := r.away(t)
		n += missing
	}
	return n
}

// openGates lets every stream run as far as it can.
func (r *gates) openGates() {
	for s := range r.gated {
		for len(r.gated[s]) > 0 {
			x := r.gated[s][0]
			if !r.ready(x) {
				if r.config.Policy.Fetch != um.FetchOnFault || !r.roomToFault(x) {
					break
				}
				r.arriveByFault(x)
			}
			r.gated[s] = r.gated[s][1:]
			r.letGo(x)
			r.process.OpenGate(s, x.Seq)
		}
	}
	r.accountStall()
}

// HeldOn says whether an operation of a stream is held back.
func (r *gates) HeldOn(stream int) bool { return stream < len(r.gated) && len(r.gated[stream]) > 0 }

// head is the first operation in order whose gate is closed, or nil.
func (r *gates) head() (h *op) {
	for s := range r.gated {
		if q := r.gated[s]; len(q) > 0 && (h == nil || q[0].Position < h.Position) {
			h = q[0]
		}
	}
	return h
}

func (r *gates) dropGated(x *op) {
	q := r.gated[x.Stream]
	for i := range q {
		if q[i] == x {
			r.gated[x.Stream] = append(q[:i:i], q[i+1:]...)
			return
		}
	}
}

// letLate opens the gate of an operation that cannot be served: it faults for
// what is missing, which is slow and correct.
func (r *gates) letLate(x *op) {
	r.stats.LateOps++
	r.dropGated(x)
	r.letGo(x)
	if !r.config.EvictionsSeen { // nobody will report the faults
		r.arriveByFault(x)
	}
	r.process.OpenGate(x.Stream, x.Seq)
	r.Happened()
	r.accountStall()
}

// OpenAll opens every gate and keeps no operation back any more: the engine has failed.
func (r *gates) OpenAll() {
	for h := r.head(); h != nil; h = r.head() {
		r.letLate(h)
	}
}

// roomToFault says whether an operation's missing blocks fit, or nothing more
// can be done about it.
func (r *gates) roomToFault(x *op) bool {
	return r.room() >= r.missingBlocks(x) || r.leaving == 0 && !r.unfinishedBefore(x) && !r.oldestExists(x)
}

// unfinishedBefore says whether operations before x are still to finish, after
// which what they use may leave.
func (r *gates) unfinishedBefore(x *op) bool {
	first, ok := r.Pending.First()
	return ok && first.Position < x.Position
}

// AwaitsWork says whether, before the operation that has been held back longest, another is still running. Nobody
// may have said of one that it is finished: it counts if its stream will say so, or stands at that operation's gate after it.
func (r *gates) AwaitsWork() bool {
	h := r.head()
	if h == nil {
		return false
	}
	if first, _ := r.Pending.FirstOn(h.Stream); first != h {
		return true
	}
	for x := range r.Pending.All() {
		if x == h {
			break
		}
		if x.reports {
			return true
		}
	}
	return false
}

// arriveByFault enters an operation's missing blocks into the ledger: the kernel
// brings them in itself.
func (r *gates) arriveByFault(x *op) {
	for _, t := range x.Tensors {
		for b := t.first; b < t.first+t.n; b++ {
			r.enter(b, true)
		}
	}
	r.notePeak()
}

// Migrated reports what the driver did on its own (demand faults, its own
// evictions), so that the ledger follows the truth.
func (r *gates) Migrated(x cuda.Range, toDevice bool) {
	if !r.arena.contains(x.Base) {
		return
	}
	for b := r.arena.block(x.Base); b < r.arena.blocks && r.arena.ptr(b) < x.End(); b++ {
		r.enter(b, toDevice)
	}
	r.notePeak()
	r.Happened()
}

// enter puts one block on a side of the ledger, without a move of ours.
func (r *gates) enter(b int32, onDevice bool) {
	a := r.arena
	if a.driverVictim[b] && !onDevice {
		r.depart(b) // as asked for
		return
	}
	if a.moving[b] || a.onDevice[b] == onDevice {
		return
	}
	if !onDevice {
		r.stats.UnforeseenEvictions++
	}
	r.note(b, onDevice)
	t := a.owner[b]
	if t == nil { // free: its extent changes with it
		for _, e := range a.take(b, 1) {
			a.setOnDevice(b, 1, onDevice)
			a.stale[b] = !onDevice
			a.give(b, 1, e.stream, e.seq, e.others)
		}
		return
	}
	a.setOnDevice(b, 1, onDevice)
	if onDevice {
		t.present++
	} else {
		t.present--
	}
	if !t.Freed {
		r.process.SetResident(t.Slot, t.present == t.n && t.leaving == 0)
	}
}

// accountStall measures how long the operation that has been held back longest has been
// so with nothing before it on its stream left to run.
func (r *gates) accountStall() {
	x := r.head()
	if x != nil {
		if first, _ := r.Pending.FirstOn(x.Stream); first != x {
			x = nil
		}
	}
	r.Stalls.Wait(x, um.ForFetch)
}

// Held says whether any operation is held back.
func (r *gates) Held() bool { return r.head() != nil }

// LetHeadGo opens the gate of the operation that has been held back longest,
// although it misses memory: it faults for that, which is slow and right. It is
// the way out when no move can help it.
func (r *gates) LetHeadGo() {
	if x := r.head(); x != nil {
		r.letLate(x)
	}
}
