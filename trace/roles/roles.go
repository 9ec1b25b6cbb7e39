package roles

import (
	"slices"

	"github.com/penstock-gpu/penstock/trace"
)

// Operand is one allocation that an operation names.
type Operand struct {
	Tensor        int32 // index in Roles.Tensors
	Reads, Writes bool
}

// Operation is a launch, copy or fill.
type Operation struct {
	Event    int       // in the trace
	Operands []Operand // each allocation that is alive once, in the order of the parameters
}

// Tensor is an allocation.
type Tensor struct {
	Alloc     uint64
	Bytes     int64
	Early     bool // from before the first iteration
	Birth     int  // the operation before which it is allocated
	Death     int  // the operation before which it is freed; len(Operations) if never
	Workspace bool // what a library keeps its intermediate results in
}

// Evidence is a sign by which a role was told.
type Evidence uint8

// The signs, the strongest first.
const (
	Recorded Evidence = iota
	FirstTouch
	Name
	Place        // an output elsewhere, and another operand is it here: read
	PlaceBoth    // an output elsewhere, and none is known here: both
	AnotherIsOut // nothing else is known of it: read
	NoneIsOut    // no operand of the launch would be its output: both
	evidences
)

// Roles are those of a whole trace.
type Roles struct {
	Operations []Operation
	Tensors    []Tensor
	Inferred   bool           // some launch did not say it itself
	Told       [evidences]int // operands by how their role was told
}

// Of finds the roles of a trace, which must be valid.
func Of(t *trace.Trace) *Roles {
	r := &Roles{}
	repeated := r.operands(t)
	fresh := r.firstTouches()
	b := builder{Roles: r, trace: t, functions: map[uint32]Function{}, places: map[placeKey][]place{}}
	for _, e := range t.Events {
		if e.Kind == trace.KindFunction {
			b.functions[e.Function] = OfFunction(e.Name)
		}
	}
	from := b.settled()
	for k := from; k < len(r.Operations); k++ {
		b.count(k, fresh[k])
	}
	for k := range r.Operations {
		b.judge(k, fresh[k], repeated[k])
	}
	r.findWorkspaces(t)
	return r
}

// operands fills in operations and tensors. It returns of each operation's operands which come more than once.
func (r *Roles) operands(t *trace.Trace) (repeated [][]bool) {
	tensors := map[uint64]int32{}
	begins := 0
	if iterations := t.Iterations(); len(iterations) > 0 {
		begins = iterations[0].First
	}
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case trace.KindAlloc:
			tensors[e.Alloc] = int32(len(r.Tensors))
			r.Tensors = append(r.Tensors, Tensor{Alloc: e.Alloc, Bytes: e.Bytes, Early: i < begins, Birth: len(r.Operations), Death: -1})
		case trace.KindFree:
			if n, ok := tensors[e.Alloc]; ok {
				r.Tensors[n].Death = len(r.Operations)
				delete(tensors, e.Alloc)
			}
		case trace.KindLaunch, trace.KindCopy:
			o := Operation{Event: i}
			var again []bool
			for _, x := range e.Accesses {
				n, ok := tensors[x.Alloc]
				if !ok {
					continue
				}
				at := slices.IndexFunc(o.Operands, func(o Operand) bool { return o.Tensor == n })
				if at < 0 {
					at = len(o.Operands)
					o.Operands, again = append(o.Operands, Operand{Tensor: n}), append(again, false)
				} else {
					again[at] = true
				}
				if x.Mode != trace.AccessUnknown {
					o.Operands[at].Reads = o.Operands[at].Reads || x.Mode.Reads()
					o.Operands[at].Writes = o.Operands[at].Writes || x.Mode.Writes()
				}
			}
			r.Operations, repeated = append(r.Operations, o), append(repeated, again)
		}
	}
	for i := range r.Tensors {
		if r.Tensors[i].Death < 0 {
			r.Tensors[i].Death = len(r.Operations)
		}
	}
	return repeated
}

// firstTouches says of each operand whether nothing touched it since it was allocated.
func (r *Roles) firstTouches() [][]bool {
	touched := make([]bool, len(r.Tensors))
	fresh := make([][]bool, len(r.Operations))
	for k, o := range r.Operations {
		fresh[k] = make([]bool, len(o.Operands))
		for i, x := range o.Operands {
			fresh[k][i] = !touched[x.Tensor] && !r.Tensors[x.Tensor].Early
			touched[x.Tensor] = true
		}
	}
	return fresh
}

// placeKey tells apart launches whose operands correspond.
type placeKey struct {
	function uint32
	operands int
}

// place counts what was seen of one place among a function's operands.
type place struct{ launches, fresh int }

func (p place) freshShare() float64 {
	if p.launches == 0 {
		return 0
	}
	return float64(p.fresh) / float64(p.launches)
}

// Shares of a function's launches in which a place is a first touch.
const (
	seldomFresh = 0.02 // up to this it is chance: memory that nobody else named
	mostlyFresh = 0.5
)

// builder has what judging an operand takes.
type builder struct {
	*Roles
	trace     *trace.Trace
	functions map[uint32]Function
	places    map[placeKey][]place
}

// settled is the first operation of the second iteration: in the first one gradients and states are new.
func (b *builder) settled() int {
	iterations := b.trace.Iterations()
	if len(iterations) < 2 {
		return 0
	}
	return b.From(iterations[1].First)
}

// From is the first operation at or behind an event.
func (r *Roles) From(event int) int {
	at, _ := slices.BinarySearchFunc(r.Operations, event, func(o Operation, event int) int { return o.Event - event })
	return at
}

func (b *builder) key(k int) (placeKey, bool) {
	e := &b.trace.Events[b.Operations[k].Event]
	return placeKey{e.Function, len(b.Operations[k].Operands)}, e.Kind == trace.KindLaunch
}

func (b *builder) count(k int, fresh []bool) {
	key, launch := b.key(k)
	if !launch {
		return
	}
	all := b.places[key]
	if all == nil {
		all = make([]place, len(fresh))
		b.places[key] = all
	}
	for i, f := range fresh {
		all[i].launches++
		if f {
			all[i].fresh++
		}
	}
}

// judge decides on the operands of one operation.
func (b *builder) judge(k int, fresh, repeated []bool) {
	operands := b.Operations[k].Operands
	key, _ := b.key(k)
	function, places := b.functions[key.function], b.places[key]
	anyFresh := slices.Contains(fresh, true)
	told := make([]Evidence, len(operands))
	anyWrites := false
	for i := range operands {
		x := &operands[i]
		if !x.Reads && !x.Writes {
			var p place
			if places != nil {
				p = places[i]
			}
			told[i] = x.judge(function, i, fresh[i], anyFresh, repeated[i], p.freshShare())
			b.Inferred = true
		}
		anyWrites = anyWrites || x.Writes
	}
	for i := range operands {
		may := function.output != outputMayBeFirst || i == 0
		if x := &operands[i]; !anyWrites && may && told[i] != Recorded {
			x.Reads, x.Writes, told[i] = true, true, NoneIsOut
		}
		b.Told[told[i]]++
	}
}

// judge decides on one operand, at a place that is a first touch in a share of the function's launches.
func (x *Operand) judge(f Function, at int, fresh, anyFresh, repeated bool, share float64) Evidence {
	switch {
	case fresh:
		x.Writes = true
		return FirstTouch
	case f.output == outputAll:
		x.Reads, x.Writes = true, true
		return Name
	case f.output == outputFirst:
		x.Writes = at == 0
		x.Reads = at > 0 || repeated
		return Name
	case f.output == outputMayBeFirst && anyFresh:
		x.Reads = true
		return Name
	case share > seldomFresh && share < mostlyFresh && anyFresh:
		x.Reads = true
		return Place
	case share > seldomFresh:
		x.Reads, x.Writes = true, true
		return PlaceBoth
	}
	x.Reads = true
	return AnotherIsOut
}
