package rewrite

import (
	"fmt"

	"github.com/penstock-gpu/penstock/prefetch/again"
	"github.com/penstock-gpu/penstock/trace"
)

// value is the hash that stands for what some memory holds; 0 is what nobody wrote.
type value uint64

// mix makes one hash of two.
func (v value) mix(w value) value {
	v ^= w + 0x9e3779b97f4a7c15 + v<<6 + v>>2
	v *= 0xff51afd7ed558ccd
	return v ^ v>>33
}

// A WrongError says that a rewritten trace computes something else.
type WrongError struct {
	Op     int    // the operation that finds another value; the number of operations for the end of the trace
	Kernel string // its function
	Alloc  uint64 // in the trace as it was
}

func (e *WrongError) Error() string {
	if e.Kernel == "" {
		return fmt.Sprintf("at the end of the rewritten trace allocation %d does not hold what it held", e.Alloc)
	}
	return fmt.Sprintf("in the rewritten trace operation %d (%s) does not find in allocation %d what it found", e.Op, e.Kernel, e.Alloc)
}

// Check says whether the job computes in a rewritten trace what it computed. The error is a *WrongError about the first
// operand that differs.
func (j *Job) Check(r *Rewritten) error {
	got, final := j.follow(r.Trace.Events, r.Issued)
	at := 0
	for k, o := range j.Ops {
		for _, x := range o.Operands {
			if at >= len(got) || got[at] != j.values[at] {
				return j.wrong(k, x.Tensor)
			}
			at++
		}
	}
	for t, id := range j.last {
		if now, ok := r.last[t]; !ok || final[now] != j.final[id] {
			return j.wrong(len(j.Ops), int32(t))
		}
	}
	return nil
}

func (j *Job) wrong(op int, tensor int32) error {
	e := &WrongError{Op: op, Alloc: j.allocs[tensor]}
	if op < len(j.Ops) {
		ev := &j.trace.Events[j.events[op]]
		if e.Kernel = j.trace.FunctionName(ev.Function); ev.Kind == trace.KindCopy {
			e.Kernel = ev.Copy.String()
		}
	}
	return e
}

// follow interprets a trace. Of the job's own operations it returns what their operands hold when they begin, one after the
// other, and of all that lives at the end what it holds.
func (j *Job) follow(events []trace.Event, issued []int32) (found []value, final map[uint64]value) {
	holds := map[uint64]value{}
	writer := map[uint64]int{} // of workspaces: the operation that wrote there last
	var named []uint64
	op := 0
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case trace.KindAlloc:
			holds[e.Alloc] = 0
		case trace.KindFree:
			delete(holds, e.Alloc)
			delete(writer, e.Alloc)
		case trace.KindLaunch, trace.KindCopy:
			k, own := op, issued == nil || issued[i] == Own
			if own {
				op++
			} else {
				k = int(issued[i]) - 1
			}
			named = append(named[:0], make([]uint64, len(j.Ops[k].Operands))...)
			for n, x := range e.Accesses {
				named[j.operandOf[k][n]] = x.Alloc
			}
			result := value(1).mix(value(k))
			for n, x := range j.Ops[k].Operands {
				v := holds[named[n]]
				if j.Tensors[x.Tensor].Workspace {
					if by, ok := writer[named[n]]; !ok || !again.InWorkspace(by, k) {
						v = 0
					}
					if !x.Reads {
						v = 0
					}
				}
				if x.Reads {
					result = result.mix(v)
				}
				if own {
					found = append(found, v)
				}
			}
			for n, x := range j.Ops[k].Operands {
				if !x.Writes {
					continue
				}
				v := result.mix(value(n))
				if j.Tensors[x.Tensor].Workspace {
					writer[named[n]] = k
				} else {
					v = v.mix(holds[named[n]]) // it may write a part
				}
				holds[named[n]] = v
			}
		}
	}
	return found, holds
}
