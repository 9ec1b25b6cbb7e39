package explicit

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
)

// op is an operation that has been reported and not finished.
type op struct {
	um.Operation[*tensor]
	at      time.Duration // it was reported
	waiting bool          // something that it names was not usable when it was last looked at
	reads   []bool        // of each tensor, that it does not write to it
	target  *tensor       // that has to be made before it can go: see aim
	held    []*tensor     // for that, beside what it names
}

// does notes of the next tensor that it names whether it only reads it.
func (x *op) does(t *tensor, reads bool) {
	x.reads = append(x.reads, reads)
	if !reads {
		t.writing++
	}
}

// needs are the tensors that have to be there before it can go. Not what it was to go with that the job has freed meanwhile, on
// another thread: an operation that reaches it, as one may of which nobody knows what it touches, cannot want it.
func (x *op) needs() iter.Seq[*tensor] {
	return func(yield func(*tensor) bool) {
		for _, t := range x.held {
			if !yield(t) {
				return
			}
		}
		for _, t := range x.Tensors {
			if !t.Freed && !yield(t) {
				return
			}
		}
	}
}

// bytes are what an operation names.
func (x *op) bytes() (n int64) {
	for _, t := range x.Tensors {
		n += t.size
	}
	return n
}

// asked are the bytes in whole pages that were asked for: not what is borrowed beyond.
func (x *op) asked() (n int64) {
	for _, t := range x.Tensors {
		n += WholePages(t.bytes)
	}
	return n
}

// lacks are the bytes of what it names that nobody has brought in or is bringing.
func (x *op) lacks() (n int64) {
	for t := range x.needs() {
		n += t.absent
	}
	return n
}

// Op reports an operation, in the order of Seq, before it is launched.
func (r *Runtime) Op(o um.Op) {
	x := &op{}
	r.Begin(&o, &x.Operation)
	x.reads = make([]bool, 0, len(x.Tensors))
	for _, t := range x.Tensors {
		x.does(t, o.AccessOf(t.Slot) == um.AccessReads)
		t.kept = t.kept || o.Keep
		t.rested(x.Position)
		t.lastName = x.Name
		t.UsedOn(o.Stream) // whether or not record_stream said so
	}
	r.mostNamed = max(r.mostNamed, x.asked())
	kind := x.kindOf(&o)
	now := r.process.Now()
	if r.config.Replay != um.ReplayOff {
		if period := r.History.Period(); r.levels.look(x.Position, period, now) {
			r.unpackedUntil = x.Position + period // what is in a pack has no recipe: what has one is to be seen
		}
		r.learn(x, &o)
	}
	if r.again.remakes > 0 {
		r.aim(x)
	}
	r.Enter(x, &x.Operation, uint64(o.Work))
	r.stats.Ops++
	if r.config.Checksums {
		r.trial.look(r.History.Now(), r.History.Period(), now, r.Stalls.Spent[um.ForSpace])
	}
	if x.waiting = !r.ready(x); x.waiting {
		r.noteWait(x)
	}
	x.at = now
	r.recent.launch(x.Position, now, &o, kind, x.waiting)
	r.Happened()
	r.accountStall()
}

// foreachKernel is in the names of PyTorch's kernels for operations on many tensors at once.
const foreachKernel = "multi_tensor_apply_kernel"

// noteWait counts what an operation waits for.
func (r *Runtime) noteWait(x *op) {
	r.stats.WaitedOps++
	for i, t := range x.Tensors {
		if t.state == Guarded && !x.reads[i] {
			r.stats.GuardWaits++
			break
		}
	}
	if strings.Contains(x.Name, foreachKernel) {
		r.stats.WaitedForeach++
	}
	for _, t := range x.Tensors {
		if t.state != Absent {
			continue
		}
		for i := range t.chunks {
			switch t.chunks[i].where {
			case blank:
				r.stats.WaitedForMap++
				return
			case leaving:
				r.stats.WaitedForLeaving++
				return
			case onHost, dropped:
				r.stats.WaitedForFetch++
				return
			}
		}
	}
}

// ready says whether an operation may be launched.
func (r *Runtime) ready(x *op) bool {
	for i, t := range x.Tensors {
		if !t.Freed && (t.state == Absent || t.state == Guarded && !x.reads[i]) {
			return false
		}
	}
	return true
}

// Ready says whether an operation that was reported may be launched.
func (r *Runtime) Ready(seq uint64) bool {
	x := r.find(seq)
	return x == nil || r.ready(x)
}

// Settled says whether everything that an operation names is on the device, with
// no copy left to wait for.
func (r *Runtime) Settled(seq uint64) bool {
	x := r.find(seq)
	if x == nil {
		return true
	}
	for i, t := range x.Tensors {
		if !t.Freed && t.state != Resident && (t.state != Guarded || !x.reads[i]) {
			return false
		}
	}
	return true
}

// awaits says whether copies of what an operation names are under way. What the job has freed since counts as well.
func (x *op) awaits() bool {
	return slices.ContainsFunc(x.Tensors, func(t *tensor) bool {
		if t.flying == 0 {
			return false
		}
		s, _ := t.usable()
		return s == Arriving
	})
}

func (r *Runtime) find(seq uint64) *op {
	if x, ok := r.Pending.From(seq); ok && x.Seq == seq {
		return x
	}
	return nil
}

// Extend adds to an operation that has not been launched the tensors that
// addresses lie in, and answers how many those are.
func (r *Runtime) Extend(seq uint64, addresses []cuda.Ptr) (n int) {
	x := r.find(seq)
	if x == nil {
		return 0
	}
	for _, p := range addresses {
		t := r.at(p)
		if t == nil || slices.Contains(x.Tensors, t) {
			continue
		}
		r.join(x, t)
		n++
	}
	return n
}

// ExtendAll adds every live tensor to an operation that has not been launched,
// because nobody knows what it touches; it fails when they do not fit together.
func (r *Runtime) ExtendAll(seq uint64) error {
	x := r.find(seq)
	if x == nil {
		return nil
	}
	if r.liveSize+r.PlainBytes > r.config.BudgetBytes {
		return fmt.Errorf("what %s reaches cannot be told, as its parameters cannot be read or name memory with too many words that look like addresses, so that everything has to be on the device for it: %s are live, the budget is %s; raise --budget to that, or use --engine managed",
			nameOf(x.Name), size.Text(r.liveSize+r.PlainBytes), size.Text(r.config.BudgetBytes))
	}
	for _, t := range r.Slots.All() {
		if t != nil && !t.Freed && !t.retained && !slices.Contains(x.Tensors, t) {
			r.join(x, t)
		}
	}
	return nil
}

func nameOf(name string) string {
	if name == "" {
		return "a launch"
	}
	return name
}

// join adds a tensor to an operation.
func (r *Runtime) join(x *op, t *tensor) {
	if i := slices.Index(x.held, t); i >= 0 {
		x.held = slices.Delete(x.held, i, i+1)
		t.Queued.Remove(x.Position)
	}
	x.Tensors = append(x.Tensors, t)
	x.does(t, false)
	t.Named = true
	t.Queued.Add(x.Position)
	r.aim(x)
	r.History.Touch(t.Instance, x.Position) // so that it is there before it is asked for next time
	r.mostNamed = max(r.mostNamed, x.asked())
	x.waiting = x.waiting || !r.ready(x)
	r.plan.valid = false
	r.Happened()
}

// head is the oldest operation that cannot be launched yet, or nil.
func (r *Runtime) head() *op {
	for x := range r.Pending.All() {
		if x.waiting {
			if x.waiting = !r.ready(x); x.waiting {
				return x
			}
		}
	}
	return nil
}

// Held says whether any operation waits.
func (r *Runtime) Held() bool { return r.head() != nil }

// Running says for how long an operation has been unfinished that has been launched: when it ends, what it uses may
// leave. One that waits here does not run, nor does the one with the number asking, which waits for something else.
func (r *Runtime) Running(asking uint64) time.Duration {
	for x := range r.Pending.All() {
		if x.Seq != asking && (!x.waiting || r.ready(x)) {
			return r.process.Now() - x.at
		}
	}
	return 0
}

// LookAgain has everything looked at again that might move. What was seen to be impossible is not looked at until something
// happens: this is for what happens unseen.
func (r *Runtime) LookAgain() {
	r.stats.LooksAgain++
	r.plan.valid = false
	r.Happened()
}

// WantsPlain says whether room is waited for by plain memory.
func (r *Runtime) WantsPlain() bool { return r.plainNeed > 0 }

// Progress reports that a stream has finished every operation up to seq. Those have been
// reported: what is told of the end of one before the operation never learns of it.
func (r *Runtime) Progress(stream int, seq uint64) {
	if !r.Finished(stream, seq) {
		return
	}
	var last int64
	finished := r.Pending.Finish(stream, seq, func(x *op) {
		last = x.Position
		for i, t := range x.Tensors {
			t.Queued.Remove(x.Position)
			if !x.reads[i] {
				t.writing--
			}
		}
		for _, t := range x.held {
			t.Queued.Remove(x.Position)
		}
	})
	if !finished {
		r.nothing = [2]uint64{} // what died there may be idle now
		return
	}
	if len(r.recent.seen) > 0 {
		r.recent.finish(stream, last, r.process.Now())
	}
	r.Happened()
	r.accountStall()
}

// Explain says what the oldest operation that waits is waiting for.
func (r *Runtime) Explain() string {
	x := r.head()
	if x == nil {
		return "no operation waits"
	}
	var used, fresh, kept, idle, dead, deadBusy, held int64 // of device memory
	for _, t := range r.Slots.All() {
		switch {
		case t == nil || t.Freed:
		case t.Busy():
			used += t.deviceBytes()
		case !t.Named:
			fresh += t.deviceBytes()
		case t.kept:
			kept += t.deviceBytes()
		default:
			idle += t.deviceBytes()
		}
	}
	for _, t := range r.graves.order {
		if r.idle(t) {
			dead += t.deviceBytes()
		} else {
			deadBusy += t.deviceBytes()
		}
		if t.held {
			held += t.deviceBytes()
		}
	}
	text := fmt.Sprintf("%s touches %s, %s of it absent; of the budget of %s plain memory has %s and asks for %s, %d unfinished operations use %s, %s were never used, %s stay because their addresses were copied to memory of others, %s could leave, "+
		"%s are freed (%s of all that the job may take again, %d ranges were not taken back when last looked at) and %s freed and in use, %s are spare, %s on their way in, %s out, %s being released",
		nameOf(x.Name), size.Text(x.bytes()), size.Text(x.lacks()), size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes), size.Text(r.plainNeed), r.Pending.Len(), size.Text(used), size.Text(fresh), size.Text(kept),
		size.Text(idle), size.Text(dead), size.Text(held), r.notRecalled, size.Text(deadBusy), size.Text(r.physical.spares), size.Text(r.incoming), size.Text(r.outgoing), size.Text(r.physical.limbo))
	for s := range r.Streams() { // one that stands still is what the others wait for
		if first, ok := r.Pending.FirstOn(s); ok && first != x {
			text += fmt.Sprintf("; stream %d was given operations up to %d and has not finished %d, %s", s, r.ReportedOn(s), first.Seq, nameOf(first.Name))
		}
	}
	return text
}

// Hopeless is why the oldest operation that waits can never run: beside plain
// memory there is no room for a single chunk of what it lacks. nil when it can,
// or when none waits.
func (r *Runtime) Hopeless() error {
	x := r.head()
	if x == nil {
		return nil
	}
	needs := x.bytes()
	var chunk int64
	for _, t := range x.Tensors {
		for i := range t.chunks {
			if c := &t.chunks[i]; c.where == blank || c.where == onHost || c.where == dropped {
				chunk = max(chunk, c.bytes)
			}
		}
	}
	if chunk <= r.config.BudgetBytes-r.PlainBytes {
		return nil
	}
	return fmt.Errorf("%w: %s touches %s, and of the device budget of %s plain memory takes %s: give --budget %dMiB or more",
		um.ErrOutOfMemory, nameOf(x.Name), size.Text(needs), size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes), (needs+r.PlainBytes+1<<20-1)>>20)
}
