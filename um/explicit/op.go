package explicit

import (
	"fmt"
	"iter"
	"slices"
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
		if t.rested(x.Position) && t.rest.until-t.rest.from >= shortRest && r.hasRecipe(t) {
			t.lasting = t.remake != nil || r.inputsLast(t)
		}
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

// LookAgain has everything looked at again that might move. What was seen to be impossible is not looked at until something
// happens: this is for what happens unseen.
func (r *Runtime) LookAgain() {
	r.stats.LooksAgain++
	r.plan.valid = false
	r.Happened()
}

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
