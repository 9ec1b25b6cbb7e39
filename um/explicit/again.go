package explicit

import (
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for tensors that come back by being computed again, from what is on the device, instead of over the bus.
//
// A tensor's recipe is the launches that wrote it since it was allocated, as long as all that may have written it are known
// and were recorded ([Op].Again). To make it again is to map memory for it and to issue these launches in their order, on
// a stream of the engine's: they write to nothing else, and read what is where it was. Nothing that anybody computes with
// depends on that being right. What is made has the checksum of what left, or the copy on the host comes in instead: a
// recipe can be wrong, because something was written that nobody knew of, or because a kernel does not repeat itself, but
// then only time is lost, and it is not tried again.
//
// Whether an operation writes to what it names is not known of most kernels. It is found out by trying: an operation that
// named an input of a recipe, or what it makes, after the recipe's launch has not written to it if what was made is the
// same in the end, and may have done so if it is not. That is remembered by function and place among what it names.

// step is a launch of a recipe.
type step struct {
	launch   *cuda.RecordedLaunch
	function uint32
	position int64
	inputs   []input
}

// input is what a step reads besides the tensor that it writes.
type input struct {
	tensor   *tensor
	instance correlate.InstanceID // a range may be another's later
}

// place is one among the allocations that operations of a kind name.
type place struct {
	work    uint32
	at, all uint8
}

// doubt is an operation of which it is not known whether it wrote to a tensor that it named.
type doubt struct {
	position int64
	place    place
}

// recipe is how a tensor was made, and what may have changed it since.
type recipe struct {
	steps   []step
	touched bool    // by any operation since it was allocated
	spoilt  bool    // something that is no step has written to it, or may have
	written int64   // position of the last operation that counts as writing to it
	doubts  []doubt // later operations, in the order of their positions
}

const (
	mostSteps  = 8
	mostDoubts = 24
	mostNamed  = 255 // places are told apart up to so many
	// strikesOut is how often something must have been made wrongly after operations of a place before they count as writing.
	strikesOut = 2
)

// again is what was learned of launches that are made again.
type again struct {
	reads   map[place]int // made rightly, after it was named there
	strikes map[place]int // made wrongly, which nothing else explains
	banned  map[uint32]bool
}

// learn notes what an operation does with the allocations that it names.
func (r *Runtime) learn(x *op, o *um.Op) {
	for i, s := range o.Slots {
		t := r.LiveAt(s)
		if t == nil {
			continue
		}
		a := um.AccessUnknown
		if i < len(o.Access) {
			a = o.Access[i]
		}
		m := &t.recipe
		switch {
		case a == um.AccessReads:
		case a == um.AccessWrites && o.Again != nil && !m.spoilt && t.parts == nil && len(m.steps) < mostSteps:
			s := r.stepOf(x, o, i)
			m.steps, m.spoilt, m.written = append(m.steps, s), s.launch == nil, x.Position
		case a == um.AccessWrites, !m.touched, len(m.doubts) == mostDoubts, len(o.Slots) > mostNamed:
			*m = recipe{spoilt: true, written: x.Position}
		default:
			m.doubts = append(m.doubts, doubt{x.Position, place{o.Work, uint8(i), uint8(len(o.Slots))}})
		}
		m.touched = true
	}
}

// stepOf is an operation as a step that makes what it names at a place; without a launch when it cannot be one.
func (r *Runtime) stepOf(x *op, o *um.Op, at int) step {
	made := step{launch: o.Again, function: o.Work, position: x.Position}
	for i, s := range o.Slots {
		t := r.LiveAt(s)
		if t == nil {
			return step{}
		}
		if i != at {
			made.inputs = append(made.inputs, input{t, t.Instance})
		}
	}
	return made
}

// makeable says whether a tensor could be made again, if what its recipe reads were on the device.
func (r *Runtime) makeable(t *tensor) bool {
	m := &t.recipe
	if !r.config.Replay || len(m.steps) == 0 || m.spoilt || t.Freed || t.borrowed || len(t.chunks) != 1 || r.struck(m.doubts, m.steps[0].position) {
		return false
	}
	for i := range m.steps {
		s := &m.steps[i]
		if r.again.banned[s.function] {
			return false
		}
		for _, in := range s.inputs {
			u := in.tensor
			if u.Freed || u.Instance != in.instance || u.recipe.written > s.position || r.struck(u.recipe.doubts, s.position) {
				return false
			}
		}
	}
	return true
}

// struck says whether an operation after a position is one of those that seem to write.
func (r *Runtime) struck(doubts []doubt, after int64) bool {
	return slices.ContainsFunc(doubts, func(d doubt) bool { return d.position > after && r.again.strikes[d.place] >= strikesOut })
}

// absentInputs are the inputs of a tensor's recipe that are not on the device, and of these the first that nobody brings.
func (r *Runtime) absentInputs(t *tensor) (n int, first *tensor) {
	for i := range t.recipe.steps {
		for _, in := range t.recipe.steps[i].inputs {
			if in.tensor.whole() {
				continue
			}
			if n++; first == nil && in.tensor.flying == 0 {
				first = in.tensor
			}
		}
	}
	return n, first
}

// makeWithin is how many operations after a tensor an input of its recipe must be needed itself for being brought in first.
const makeWithin = 512

// inputFirst is what to bring in for a tensor that is to come: an input of its recipe that is needed soon itself, if the tensor
// can then be made. It is nil while such inputs are under way.
func (r *Runtime) inputFirst(t *tensor) *tensor {
	for range mostSteps {
		if t.chunks[0].where != onHost || !t.chunks[0].summed || !r.makeable(t) {
			return t
		}
		n, first := r.absentInputs(t)
		switch {
		case n == 0:
			return t
		case first == nil:
			return nil
		case first.absent == 0 || r.nextUse(first) > r.nextUse(t)+makeWithin:
			return t
		}
		t = first
	}
	return t
}

// makeInstead turns a fetch into a move that makes the tensor again, if that can be done now. Inputs stay until it is over.
func (r *Runtime) makeInstead(m *Move) {
	t := m.tensor
	if !m.Summed || !r.makeable(t) {
		return
	}
	if n, _ := r.absentInputs(t); n > 0 {
		return
	}
	m.Kind = MoveMake
	for i := range t.recipe.steps {
		s := &t.recipe.steps[i]
		m.Launches = append(m.Launches, s.launch)
		for _, in := range s.inputs {
			in.tensor.pins++
			m.inputs = append(m.inputs, in.tensor)
		}
	}
}

// unpin lets the inputs of a making go.
func (m *Move) unpin() {
	for _, t := range m.inputs {
		t.pins--
	}
	m.inputs = nil
}

// made notes that a tensor was made rightly: nothing has written to what it was made of.
func (r *Runtime) made(m *Move) {
	m.unpin()
	r.stats.Made++
	r.stats.MadeBytes += m.Bytes
	for p := range r.doubtsOf(m.tensor) {
		r.again.reads[p]++
	}
}

// Unmade reports that what a move was to make again is not what left: the copy on the host is fetched instead, by the same
// move. What was done to the inputs since by operations that nothing speaks for may be why; else the functions are, which are
// not trusted again, nor where it was a launch that failed.
func (r *Runtime) Unmade(m *Move, launched bool) {
	suspects := 0
	if t := m.tensor; !t.Freed {
		if launched {
			for p := range r.doubtsOf(t) {
				if r.again.reads[p] == 0 {
					r.again.strikes[p]++
					suspects++
				}
			}
		}
		if suspects == 0 {
			for i := range t.recipe.steps {
				r.again.banned[t.recipe.steps[i].function] = true
			}
		}
		t.recipe = recipe{spoilt: true, touched: true, written: r.History.Now()}
	}
	m.unpin()
	r.stats.Unmade++
	m.Kind, m.Launches = MoveFetch, nil
	r.fetching++
	r.Happened()
}

// ForgetLaunches gives all recipes up: functions that they launch may be gone.
func (r *Runtime) ForgetLaunches() {
	for _, t := range r.Slots.All() {
		if t != nil && len(t.recipe.steps) > 0 {
			t.recipe.spoilt, t.recipe.steps = true, nil
		}
	}
}

// doubtsOf are the places of operations that must not have written for a tensor to be made rightly.
func (r *Runtime) doubtsOf(t *tensor) map[place]bool {
	all := map[place]bool{}
	if len(t.recipe.steps) == 0 {
		return all
	}
	note := func(doubts []doubt, after int64) {
		for _, d := range doubts {
			if d.position > after {
				all[d.place] = true
			}
		}
	}
	note(t.recipe.doubts, t.recipe.steps[0].position)
	for i := range t.recipe.steps {
		s := &t.recipe.steps[i]
		for _, in := range s.inputs {
			note(in.tensor.recipe.doubts, s.position)
		}
	}
	return all
}
