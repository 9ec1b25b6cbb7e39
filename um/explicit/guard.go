package explicit

import "slices"

// This file is for what dropped tensors are made of: it must stay as it is until they are back or dead.
//
// Such a tensor is guarded. The launch hook lets operations pass that are known to only read it; any other one waits there,
// as for something absent, and is reported: the tensors that are to be made of it come first then (aim). That a
// write came before the guard is told as for what leaves: the hook stores the number of the operation before it looks at
// the state, the runtime publishes the state before it looks at the number.
//
// What the job frees while it is guarded is retained: to the job it is gone, to the engine it is a tensor like any other, which may
// leave and come back, until nothing is to be made of it. A range that the job has taken again by then (held.go) is guarded
// all the same: the first operation that writes to it waits.

// guard guards what another tensor is made of; false when an operation that was not reported may be writing to it.
func (r *recipes) guard(u, reader *tensor) bool {
	u.readers = append(u.readers, reader)
	r.again.guards++
	r.setState(u)
	if r.process.LastSeq(u.Slot) > r.Reported() {
		r.stats.TakenBack++
		r.unguard(u, reader)
		return false
	}
	return true
}

// retain keeps what the job has freed for its readers.
func (r *recipes) retain(t *tensor) {
	if !t.retained {
		r.History.Free(t.Instance)
		t.retained = true
		r.Happened()
	}
}

// unguard ends that.
func (r *recipes) unguard(u, reader *tensor) {
	i := slices.Index(u.readers, reader)
	u.readers = slices.Delete(u.readers, i, i+1)
	r.again.guards++
	if len(u.readers) > 0 {
		return
	}
	r.Happened()
	if u.retained {
		r.end(u)
		return
	}
	r.setState(u)
}

// aim finds what has to be made before an operation can go: a dropped tensor that it names, or one that is made of what it may
// write to. That, and what it is made of, stays until it is there. They come one after the other, for all of them need not
// fit at a time.
func (r *recipes) aim(x *op) {
	target := r.nextTarget(x)
	if target == x.target {
		return
	}
	for _, t := range x.held {
		t.Queued.Remove(x.Position)
	}
	x.target, x.held = target, x.held[:0]
	r.plan.changed = true
	if target == nil {
		return
	}
	for _, t := range target.closure(nil) {
		if !slices.Contains(x.Tensors, t) {
			x.held = append(x.held, t)
			t.Queued.Add(x.Position)
		}
	}
}

// closure is a tensor and, before it, all that has to be there for it to be made again if it is away.
func (t *tensor) closure(all []*tensor) []*tensor {
	if slices.Contains(all, t) {
		return all
	}
	if t.away() {
		for _, u := range t.remake.inputs {
			all = u.closure(all)
		}
	}
	return append(all, t)
}

// nextTarget is the first such tensor, nil when there is none, or when a move that reads what is guarded has to land first.
func (r *recipes) nextTarget(x *op) *tensor {
	for i, t := range x.Tensors {
		if t.away() {
			return t
		}
		if x.reads[i] {
			continue
		}
		for _, d := range slices.Clone(t.readers) {
			switch {
			case d.remake == nil: // it is not made any more
			case d.away():
				return d
			default: // it is there, or has a copy
				r.release(d)
			}
		}
	}
	return nil
}

// aimAll aims anew for the operations that wait, when something has come back, or is not to be made any more.
func (r *recipes) aimAll() {
	for x := range r.Pending.All() {
		if x.waiting || x.target != nil {
			r.aim(x)
		}
	}
}
