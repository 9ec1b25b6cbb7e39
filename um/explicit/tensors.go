package explicit

import (
	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// tensors is the lowest floor: what there is, where it lies, on the device, on the host or nowhere, and what the launch hook
// knows of it; and the budget (budget.go), host memory (clean.go), and what the job may take again (held.go).
type tensors struct {
	um.Base[*tensor, *op]
	config    Config
	process   Process
	addresses *addresses
	physical  physical
	dead      deadRanges
	kept      kept
	trial     trial
	lives     lives
	held      map[cuda.Ptr]*tensor // dead, and the job may take them again: see held.go
	whole     map[int64]bool       // sizes of tensors that had recipes: see cut
	plan      plan                 // made by planning; below it is told that something is otherwise

	plainNeed   int64 // of plain memory, wanted and not taken yet
	lastStream  int   // that something was allocated for
	liveSize    int64 // in whole pages
	mostLive    int64 // of liveSize
	looseExcess int64 // bytes that loose packs take, less what their live parts would in whole pages
	incoming    int64 // bytes of chunks on the way in
	outgoing    int64 // bytes of chunks on the way out
	placed      int64 // bytes in place
	stats       Stats
}

// takeSlot makes a tensor known to the launch hook.
func (r *tensors) takeSlot(t *tensor) {
	t.Slot = r.Slots.Take(t)
	r.publish(t)
}

// publish tells the launch hook where a tensor lies.
func (r *tensors) publish(t *tensor) {
	var ticket uint32
	t.state, ticket = t.usable()
	r.process.Publish(t.Slot, cuda.Range{Base: t.base, Bytes: t.size})
	r.process.SetState(t.Slot, t.state, ticket)
}

// live enters a tensor among the living.
func (r *tensors) live(t *tensor) {
	instance := r.History.Alloc(t.size)
	r.History.Asked(instance, t.bytes)
	r.liveAs(t, instance)
}

// liveAs enters it, where the history has a name for it already.
func (r *tensors) liveAs(t *tensor, instance correlate.InstanceID) {
	t.Instance, t.recipe, t.users, t.products = instance, recipe{}, nil, products{}
	t.rest, t.lasting, t.copied = rest{}, false, false
	r.lastStream = t.Stream
	r.liveSize += t.size
	r.mostLive = max(r.mostLive, r.liveSize)
	r.Happened()
}

// follows says whether a stream may use a dead tensor's memory.
func (r *tensors) follows(g *tensor, stream int) bool {
	return g.Stream == stream && len(g.Others) == 0 && g.pins == 0 || r.idle(g)
}

// idle says whether nothing that was queued before a tensor died is unfinished, nor a making that reads it.
func (r *tensors) idle(t *tensor) bool {
	if t.Busy() || t.pins > 0 {
		return false
	}
	for len(t.freedAt) > 0 {
		if !r.Passed(t.freedAt[0]) {
			return false
		}
		t.freedAt = t.freedAt[1:]
	}
	return true
}

// noteFreed notes what has to pass before a tensor's memory is idle that is dead from now on.
func (r *tensors) noteFreed(t *tensor) { t.freedAt = append(t.freedAt, r.reported(t)...) }

// reported is how far the streams that use a tensor have got in what was reported.
func (r *tensors) reported(t *tensor) (marks []um.Mark) {
	for _, s := range append([]int{t.Stream}, t.Others...) {
		marks = append(marks, um.Mark{Stream: s, Seq: r.ReportedOn(s)})
	}
	return marks
}

// giveSlot ends what the launch hook knows of a tensor.
func (r *tensors) giveSlot(t *tensor) {
	r.Slots.Give(t.Slot)
	r.process.Withdraw(t.Slot, cuda.Range{Base: t.base, Bytes: t.size})
}

// retire puts a dead tensor of which nothing is in flight among the dead ranges, or
// gives its addresses back when nothing is mapped there.
func (r *tensors) retire(t *tensor) {
	for i := range t.chunks {
		c := &t.chunks[i]
		r.giveHost(c)
		c.learned = learned{}
		if c.where == onHost {
			c.where = blank
		}
	}
	if t.deviceBytes()+t.bytesIn(inPlace) == 0 {
		r.addresses.give(t.base, t.size)
		return
	}
	r.dead.add(t)
}

// Owns says whether an address is in the reservation.
func (r *tensors) Owns(p cuda.Ptr) bool { return r.addresses.contains(p) }

// SlotAddress is the address of a slot's tensor.
func (r *tensors) SlotAddress(slot uint32) (cuda.Ptr, bool) {
	if t := r.Slots.At(slot); t != nil {
		return t.base, true
	}
	return 0, false
}

// Range is the live allocation that an address lies in, as asked for.
func (r *tensors) Range(p cuda.Ptr) (cuda.Range, bool) {
	t := r.at(p)
	if t == nil {
		return cuda.Range{}, false
	}
	if t.parts == nil {
		return cuda.Range{Base: t.base, Bytes: t.bytes}, true
	}
	if x := t.partAt(p); x != nil {
		return t.place(x), true
	}
	return cuda.Range{}, false
}

// SlotAt is the slot of the live tensor that an address lies in, 0 for none.
func (r *tensors) SlotAt(p cuda.Ptr) uint32 {
	if t := r.ByPtr[p]; t != nil {
		return t.Slot
	}
	if t := r.at(p); t != nil {
		return t.Slot
	}
	return 0
}

// at is the live tensor that an address lies in, or nil. Only for rare questions.
func (r *tensors) at(p cuda.Ptr) *tensor {
	if !r.addresses.contains(p) {
		return nil
	}
	for _, t := range r.Slots.All() {
		if t != nil && !t.Freed && !t.retained && p >= t.base && p < t.base+cuda.Ptr(t.size) {
			return t
		}
	}
	return nil
}

// Span is the reservation: every tensor's addresses lie in [lo, hi).
func (r *tensors) Span() (lo, hi cuda.Ptr) { return r.addresses.Base, r.addresses.End() }

// setState publishes where a tensor is now.
func (r *tensors) setState(t *tensor) {
	s, ticket := t.usable()
	if len(t.readers) > 0 {
		switch s {
		case Resident:
			s = Guarded
		case Arriving: // until it has come: what waits for it on its stream would pass the guard
			s = Absent
		}
	}
	if t.Freed || s == t.state && s != Arriving {
		return
	}
	t.state = s
	r.process.SetState(t.Slot, s, ticket)
}
