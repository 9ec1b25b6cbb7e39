package explicit

import (
	"cmp"
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for recipes: how a tensor was made.
//
// A recipe is the launches that wrote a tensor since it was allocated, where these were recorded ([um.Op].Again). It is
// given up when anything else is known to write there. When something dies that a recipe reads, the recipe takes in how
// that was made, if it had a recipe itself (inline): the launches then have scratch memory where it lay.

// step is a launch of a recipe.
type step struct {
	launch   *cuda.RecordedLaunch
	function uint32
	name     string // of the function
	product  bool
	trying   bool // it is to be tried what it writes to
	position int64
	inputs   []input
	temps    []Temp // that it names
	touches  uint64 // of these, by operations of which it is not known what they did: see proven.go
}

// Temp is memory that a launch names and that the job has freed since: where it lay, and where it is among the memory that
// the engine has for such.
type Temp struct {
	At      cuda.Range
	Offset  int64
	Scratch bool // what is there means nothing before the launch, and is zero
	Copy    bool // what is there is copied
}

// input is what a step reads besides the tensor that it writes.
type input struct {
	tensor   *tensor
	instance correlate.InstanceID // a range may be another's later
	touches  uint64               // the tensor's then
	parts    []int                // of a pack, which it reads; none: any
}

// recipe is how a tensor was made, as far as that is known.
type recipe struct {
	steps   []step // in the order of their positions
	temps   int64  // bytes that it needs for what the job has freed
	touched bool   // by any operation since it was allocated
	over    bool   // it was made by something else, too, or has been found wrong
	wrong   bool   // that
	written int64  // position of the last operation that is known to write to it
	touches uint64 // the tensor's at its last step
}

// mostSteps is how many launches a recipe has at most.
const mostSteps = 12

// learn notes what an operation does with the allocations that it names.
func (r *recipes) learn(x *op, o *um.Op) {
	for i, s := range o.Slots {
		t := r.LiveAt(s)
		if t == nil {
			continue
		}
		m, a := &t.recipe, o.AccessOf(s)
		if a == um.AccessUnknown {
			t.touch(o.Work, i, len(o.Slots))
		}
		t.products.note(o)
		if a == um.AccessWrites && o.Product && !o.Trying && !m.touched {
			t.products.made = true
		}
		switch {
		case a == um.AccessReads:
		case t.parts != nil && (a == um.AccessWrites || a == um.AccessScratch):
			t.write(o.Written, x.Position)
		case a == um.AccessScratch:
			m.over, m.written = m.over || len(m.steps) > 0, x.Position
		case a == um.AccessWrites && o.Again != nil && !m.over && len(m.steps) < mostSteps && (len(m.steps) > 0 || !m.touched):
			if !t.away() {
				r.release(t) // it becomes another one
			}
			s := r.stepOf(x, o, t)
			m.steps, m.written, m.touches = append(m.steps, s), x.Position, t.touches
			for _, at := range s.temps {
				m.temps = max(m.temps, at.Offset+wholeUnits(at.At.Bytes))
			}
			for _, u := range t.inputs() {
				if !slices.Contains(u.users, t) {
					u.users = append(u.users, t)
				}
			}
		case a == um.AccessWrites, !m.touched:
			*m = recipe{over: true, written: x.Position}
		}
		m.touched = true
	}
}

// stepOf is an operation as a step that makes a tensor.
func (r *recipes) stepOf(x *op, o *um.Op, makes *tensor) step {
	made := step{launch: o.Again, function: o.Work, name: o.Name, product: o.Product, trying: o.Trying, position: x.Position}
	offset := makes.recipe.temps
	for _, s := range o.Slots {
		t := r.LiveAt(s)
		switch {
		case t == nil || t == makes:
		case o.AccessOf(s) == um.AccessScratch:
			made.temps = append(made.temps, Temp{At: cuda.Range{Base: t.base, Bytes: t.size}, Offset: offset, Scratch: true})
			offset += wholeUnits(t.bytes)
		default:
			made.inputs = append(made.inputs, input{t, t.Instance, t.touches, t.partsNamed(o.Again)})
		}
	}
	return made
}

// partsNamed are the parts of a pack that a launch names.
func (t *tensor) partsNamed(l *cuda.RecordedLaunch) (all []int) {
	if t.parts == nil {
		return nil
	}
	for _, offset := range l.Addresses {
		at := l.Address(offset)
		k := slices.IndexFunc(t.parts, func(p part) bool { return at >= t.place(&p).Base && at < t.place(&p).End() })
		if k >= 0 && !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return all
}

// written is the position of the last operation that is known to write to it.
func (in *input) written() int64 {
	last := in.tensor.recipe.written
	for k := range in.tensor.parts {
		if len(in.parts) == 0 || slices.Contains(in.parts, k) {
			last = max(last, in.tensor.parts[k].written)
		}
	}
	return last
}

// hasRecipe says whether all that has written to a tensor could be issued again.
func (r *recipes) hasRecipe(t *tensor) bool {
	return len(t.recipe.steps) > 0 && !t.recipe.over && t.parts == nil
}

// leastStateOps is the least age of a job's state, in operations: an iteration may be taken for one of the loops in it.
const leastStateOps = 2048

// isState says whether a tensor was made longer than an iteration ago: operations will have written to it that are not known to, as an optimizer's do.
func (r *recipes) isState(t *tensor) bool {
	n, period := len(t.recipe.steps), r.History.Period()
	return n > 0 && period > 0 && r.History.Now()-t.recipe.steps[n-1].position > max(2*period, leastStateOps)
}

// inline has recipes that read a tensor make it anew, for it dies: what they read beside what it was made of itself.
func (r *recipes) inline(u *tensor) {
	for _, t := range u.users {
		if t != u && !t.Freed && !t.away() && r.hasRecipe(t) {
			r.inlineInto(t, u)
		}
	}
}

func (r *recipes) inlineInto(t, u *tensor) {
	reading := func(s step) int { // which of its inputs that is
		return slices.IndexFunc(s.inputs, func(in input) bool { return in.tensor == u && in.instance == u.Instance })
	}
	first := slices.IndexFunc(t.recipe.steps, func(s step) bool { return reading(s) >= 0 })
	if first < 0 || !r.hasRecipe(u) || len(t.recipe.steps)+len(u.recipe.steps) > mostSteps {
		return
	}
	if last := u.recipe.steps[len(u.recipe.steps)-1]; last.position > t.recipe.steps[first].position {
		return // it was written to after it had been read
	}
	r.release(t)
	at := Temp{At: cuda.Range{Base: u.base, Bytes: u.size}, Offset: t.recipe.temps}
	shift := at.Offset + wholeUnits(u.bytes)
	var steps []step
	for _, s := range u.recipe.steps {
		s.inputs, s.temps = slices.Clone(s.inputs), slices.Clone(s.temps)
		for i := range s.temps {
			s.temps[i].Offset += shift
		}
		s.temps = append(s.temps, at)
		steps = append(steps, s)
	}
	for _, s := range t.recipe.steps {
		if i := reading(s); i >= 0 {
			s.touches += s.inputs[i].touches - u.recipe.touches
			s.temps = append(slices.Clone(s.temps), at)
			s.inputs = slices.DeleteFunc(slices.Clone(s.inputs), func(in input) bool { return in.tensor == u })
		}
		steps = append(steps, s)
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.position, b.position) })
	t.recipe.steps, t.recipe.temps = steps, shift+u.recipe.temps
	for _, x := range t.inputs() {
		if !slices.Contains(x.users, t) {
			x.users = append(x.users, t)
		}
	}
}

// makeable says whether a tensor could be made again from what is alive, as far as is known.
func (r *recipes) makeable(t *tensor) bool {
	return r.config.Replay != um.ReplayOff && r.hasRecipe(t) && !r.isState(t) && r.makesNow(t) && !t.Freed && !t.retained && !t.borrowed && len(t.chunks) == 1 && !r.distrusts(t) && r.inputsLast(t)
}

// makesNow says whether what a tensor's recipe takes is made again at this level.
func (r *recipes) makesNow(t *tensor) bool {
	switch r.levels.at {
	case LevelNothing:
		return false
	case LevelPlain:
		return !slices.ContainsFunc(t.recipe.steps, func(s step) bool { return s.product })
	}
	return true
}

// distrusts says whether a function of a tensor's recipe has been wrong too often.
func (r *recipes) distrusts(t *tensor) bool {
	return slices.ContainsFunc(t.recipe.steps, func(s step) bool { return r.again.distrusts(s.function) })
}

// inputsLast says whether what a tensor is made of is as it was, as far as is known.
func (r *recipes) inputsLast(t *tensor) bool {
	for i := range t.recipe.steps {
		s := &t.recipe.steps[i]
		for _, in := range s.inputs {
			u := in.tensor
			if u.Freed || u.retained || u.Instance != in.instance || u != t && in.written() > s.position {
				return false
			}
		}
	}
	return true
}

// inputs are what a tensor's recipe reads.
func (t *tensor) inputs() (all []*tensor) {
	for i := range t.recipe.steps {
		for _, in := range t.recipe.steps[i].inputs {
			if in.tensor != t && !slices.Contains(all, in.tensor) {
				all = append(all, in.tensor)
			}
		}
	}
	return all
}

// ForgetLaunches gives all recipes up: functions that they launch may be gone. What has a copy on the host is fetched.
func (r *recipes) ForgetLaunches() {
	for _, t := range r.Slots.All() {
		if t == nil {
			continue
		}
		if len(t.recipe.steps) > 0 {
			t.recipe.over, t.recipe.steps = true, nil
		}
		if !t.away() {
			r.release(t)
		}
	}
}
