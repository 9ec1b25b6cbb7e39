package rewrite

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/prefetch/again"
	"github.com/penstock-gpu/penstock/trace"
)

// Rewritten is a trace in which a plan was carried out.
type Rewritten struct {
	Trace *trace.Trace
	// Issued says of each event which operation it issues again, counted from 1, or one of the constants below.
	Issued []int32
	last   map[int32]uint64 // the allocations that are the job's tensors at the end
}

// Events that issue nothing again.
const (
	Own  = 0
	Back = -1 // the allocation of a tensor that was dropped
)

// Rewrite carries out a plan. A launch takes launchSeconds besides what it took the first time. A plan
// that cannot be carried out is an error; whether the job still computes the same is for Check to say.
func (j *Job) Rewrite(p *again.Plan, launchSeconds float64) (*Rewritten, error) {
	w := &writer{Job: j, plan: p, now: map[again.Memory]uint64{}, launch: time.Duration(launchSeconds * 1e9)}
	w.out.Trace = &trace.Trace{Name: j.trace.Name, Header: j.trace.Header, Estimate: j.trace.Estimate}
	for i := range j.trace.Events {
		e := &j.trace.Events[i]
		w.fresh = max(w.fresh, e.Alloc+1)
	}
	kept := make([]bool, len(j.Tensors))
	for _, t := range p.Keeps {
		kept[t] = true
	}
	op := 0
	for i := range j.trace.Events {
		e := j.trace.Events[i]
		switch e.Kind {
		case trace.KindAlloc:
			w.now[again.Memory(j.tensors[e.Alloc])] = e.Alloc
			w.add(e, Own)
		case trace.KindFree:
			t := j.tensors[e.Alloc]
			if !kept[t] {
				w.free(again.Memory(t))
			}
		case trace.KindLaunch, trace.KindCopy:
			w.makes(op)
			w.add(w.renamed(e, op, nil), Own)
			w.drops(op)
			op++
		default:
			w.add(e, Own)
		}
	}
	if w.problem == nil && (len(w.plan.Makes) > w.made || len(w.plan.Drops) > w.dropped) {
		w.fail("has something for behind the last operation")
	}
	if w.problem != nil {
		return nil, w.problem
	}
	if err := w.out.Trace.Validate(); err != nil {
		return nil, fmt.Errorf("a plan that names what is not there: %w", err)
	}
	w.out.last = map[int32]uint64{}
	for m, id := range w.now {
		if int(m) < len(j.Tensors) {
			w.out.last[int32(m)] = id
		}
	}
	return &w.out, nil
}

// writer carries out a plan.
type writer struct {
	*Job
	plan          *again.Plan
	out           Rewritten
	now           map[again.Memory]uint64 // the allocation that is some memory now
	fresh         uint64                  // an id that nothing has
	launch        time.Duration
	made, dropped int // of the plan
	problem       error
}

func (w *writer) fail(format string, args ...any) {
	if w.problem == nil {
		w.problem = fmt.Errorf("a plan that "+format, args...)
	}
}

func (w *writer) add(e trace.Event, issued int32) {
	w.out.Trace.Events, w.out.Issued = append(w.out.Trace.Events, e), append(w.out.Issued, issued)
}

func (w *writer) free(m again.Memory) {
	id, ok := w.now[m]
	if !ok {
		w.fail("gives back memory %d, which is not there", m)
		return
	}
	delete(w.now, m)
	w.add(trace.Event{Kind: trace.KindFree, Alloc: id}, Own)
}

func (w *writer) alloc(m again.Memory) {
	if _, ok := w.now[m]; ok {
		w.fail("takes memory %d, which is there", m)
		return
	}
	var bytes int64
	issued := int32(Own)
	switch n := int(m) - len(w.Tensors); {
	case m < 0 || n >= len(w.plan.Scratch):
		w.fail("names memory %d, which it does not have", m)
		return
	case n >= 0:
		bytes = w.plan.Scratch[n]
	default:
		bytes, issued = w.Tensors[m].Bytes, Back
	}
	w.now[m] = w.fresh
	w.add(trace.Event{Kind: trace.KindAlloc, Alloc: w.fresh, Bytes: bytes}, issued)
	w.fresh++
}

// makes issues what comes before an operation.
func (w *writer) makes(op int) {
	for ; w.made < len(w.plan.Makes) && w.plan.Makes[w.made].Before == op; w.made++ {
		for _, l := range w.plan.Makes[w.made].Launches {
			if l.Op < 0 || l.Op >= op || len(l.Operands) != len(w.Ops[l.Op].Operands) || w.Ops[l.Op].Class == again.Never {
				w.fail("issues operation %d before operation %d: it cannot", l.Op, op)
				return
			}
			for _, m := range l.Born {
				w.alloc(m)
			}
			e := w.renamed(w.trace.Events[w.events[l.Op]], l.Op, l.Operands)
			e.Duration = max(0, e.Duration) + w.launch
			w.add(e, int32(l.Op+1))
			for _, m := range l.Gone {
				w.free(m)
			}
		}
	}
}

// drops gives up what is dropped behind an operation.
func (w *writer) drops(op int) {
	for ; w.dropped < len(w.plan.Drops) && w.plan.Drops[w.dropped].After == op; w.dropped++ {
		w.free(again.Memory(w.plan.Drops[w.dropped].Tensor))
	}
}

// renamed is an operation on the memory that its operands are now, or that is given.
func (w *writer) renamed(e trace.Event, op int, operands []again.Memory) trace.Event {
	accesses := make([]trace.Access, len(e.Accesses))
	for i, x := range e.Accesses {
		m := again.Memory(w.tensors[x.Alloc])
		if operands != nil {
			m = operands[w.operandOf[op][i]]
		}
		id, ok := w.now[m]
		if !ok {
			w.fail("leaves operation %d without memory %d", op, m)
		}
		x.Alloc = id
		accesses[i] = x
	}
	e.Accesses = accesses
	return e
}
