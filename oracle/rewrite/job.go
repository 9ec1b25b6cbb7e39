package rewrite

import (
	"errors"
	"slices"

	"github.com/penstock-gpu/penstock/prefetch/again"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/trace/roles"
)

// Job is a trace as a planner wants it.
type Job struct {
	again.Job
	Inferred bool // of some launch the trace does not say what it reads and writes

	trace     *trace.Trace
	events    []int     // by operation
	operandOf [][]int32 // by operation: of each of its accesses which operand it names
	allocs    []uint64  // by tensor
	tensors   map[uint64]int32
	values    []value          // in the trace as it is: what each operand of each operation holds when that begins, in order
	final     map[uint64]value // what is held at the end, by allocation
	last      map[int32]uint64 // the allocations that live at the end, by tensor
}

var errNoIteration = errors.New("the trace has no full iteration")

// NewJob looks at a trace, which must be valid and stays as it is.
func NewJob(t *trace.Trace) (*Job, error) {
	iterations := t.Iterations()
	if len(iterations) == 0 {
		return nil, errNoIteration
	}
	r := roles.Of(t)
	j := &Job{trace: t, Inferred: r.Inferred, tensors: map[uint64]int32{}, last: map[int32]uint64{}}
	for i, x := range r.Tensors {
		j.Tensors = append(j.Tensors, again.Tensor{Bytes: x.Bytes, Birth: x.Birth, Death: x.Death, Workspace: x.Workspace})
		j.allocs = append(j.allocs, x.Alloc)
		j.tensors[x.Alloc] = int32(i)
	}
	functions := map[uint32]roles.Function{}
	for i := range t.Events {
		if e := &t.Events[i]; e.Kind == trace.KindFunction {
			functions[e.Function] = roles.OfFunction(e.Name)
		}
	}
	for _, o := range r.Operations {
		e := &t.Events[o.Event]
		op := again.Op{Seconds: max(0, e.Duration.Seconds()), Class: classOf(e, functions[e.Function])}
		for _, x := range o.Operands {
			op.Operands = append(op.Operands, again.Operand(x))
		}
		of := make([]int32, len(e.Accesses))
		for i, x := range e.Accesses {
			named := func(o roles.Operand) bool { return o.Tensor == j.tensors[x.Alloc] }
			of[i] = int32(slices.IndexFunc(o.Operands, named))
		}
		j.operandOf = append(j.operandOf, of)
		j.Ops, j.events = append(j.Ops, op), append(j.events, o.Event)
	}
	for _, it := range iterations {
		j.Iterations = append(j.Iterations, r.From(it.First))
	}
	j.Iterations = append(j.Iterations, r.From(iterations[len(iterations)-1].End))
	j.values, j.final = j.follow(t.Events, nil)
	for id := range j.final {
		j.last[j.tensors[id]] = id
	}
	return j, nil
}

// classOf says whether an operation of a trace can be issued again. A copy that touches the host cannot: what is there has changed.
func classOf(e *trace.Event, f roles.Function) again.Class {
	switch {
	case e.Kind == trace.KindCopy:
		inside := e.Copy == trace.CopyFill || e.Copy == trace.CopyDeviceToDevice || e.Copy == trace.CopyUnknown && len(e.Accesses) > 1
		if !inside {
			return again.Never
		}
	case !f.Repeats:
		return again.Never
	case f.Matrix:
		return again.Matrix
	}
	return again.Plain
}
