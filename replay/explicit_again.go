package replay

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/trace/roles"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// This file is for launches that the explicit engine issues again in the simulation: those that it can in a real job, by their
// names. Symbolic values are followed through the job, so that a recipe is verified as in a real one, by what it makes.
// They are on a stream of the engine's, and as much as they take the job's own kernels are longer: nothing is hidden.

// sumBytesPerSecond is what a checksum reads: assumed for an H200, not measured.
const sumBytesPerSecond = 3.5e12

// issuing is what the simulated explicit engine needs to issue launches again.
type issuing struct {
	roles      *roles.Roles
	operations map[int]*roles.Operation // by event
	operands   map[uint32]bool          // functions whose launches are recorded
	products   map[uint32]bool          // of these, those that take long
	at         map[cuda.Ptr]int32       // which of these was last made at an address by such a launch
	values     []uint64                 // symbolic ones, of what the tensors of roles contain
	recorded   map[*cuda.RecordedLaunch]recordedLaunch
	free       time.Duration // when the engine's launches end that have been issued
	kept       int64         // memory to verify in
	owed       time.Duration // what they took, and the job's have not been delayed by yet
	made       Again         // in the last iteration
	functions  map[string]*Function
}

type recordedLaunch struct {
	operation *roles.Operation
	event     *trace.Event
	makes     int32
	scratch   []int32 // the workspaces that it names
}

func newIssuing(t *trace.Trace) *issuing {
	s := &issuing{roles: roles.Of(t), operations: map[int]*roles.Operation{}, operands: map[uint32]bool{}, products: map[uint32]bool{}, recorded: map[*cuda.RecordedLaunch]recordedLaunch{}, at: map[cuda.Ptr]int32{}, functions: map[string]*Function{}}
	s.values = make([]uint64, len(s.roles.Tensors))
	for i := range s.roles.Operations {
		o := &s.roles.Operations[i]
		s.operations[o.Event] = o
	}
	for i := range t.Events {
		if e := &t.Events[i]; e.Kind == trace.KindFunction {
			_, known := roles.OperandsOf(e.Name)
			tried, long := roles.ByTrial(e.Name)
			s.operands[e.Function], s.products[e.Function] = known || tried, !known && tried && long
		}
	}
	s.made.Roles = RolesRecorded
	if s.roles.Inferred {
		s.made.Roles = RolesInferred
	}
	return s
}

// writes is the only operand that an operation writes to but for workspaces, -1 when there is none or more than one.
func (s *issuing) writes(o *roles.Operation) int32 {
	found := int32(-1)
	for _, x := range o.Operands {
		if s.roles.Tensors[x.Tensor].Workspace {
			continue
		}
		if x.Writes && found >= 0 {
			return -1
		}
		if x.Writes {
			found = x.Tensor
		}
	}
	return found
}

// computes is what a launch that can be issued again makes; of reads what tensors contain.
func (r *recordedLaunch) computes(of func(tensor int32) uint64) uint64 {
	v := trace.Mix(uint64(r.event.Function), uint64(shape(r.event)))
	for _, x := range r.operation.Operands {
		if x.Reads && !slices.Contains(r.scratch, x.Tensor) {
			v = trace.Mix(v, of(x.Tensor))
		}
	}
	return v
}

// operation completes an operation of the job's with what it does with its slots. What it answers follows what it computes, to
// be called when it is launched.
func (s *issuing) operation(x *explicitEngine, index int, e *trace.Event, o *um.Op) (launched func()) {
	of := s.operations[index]
	known := e.Kind == trace.KindCopy
	to := s.writes(of)
	if e.Kind == trace.KindLaunch && s.operands[e.Function] && to >= 0 {
		known = true
	}
	var scratch []int32
	var named []cuda.Ptr
	if known {
		o.Product = e.Kind == trace.KindLaunch && s.products[e.Function]
		o.Access = make([]um.Access, len(o.Slots))
		for _, w := range of.Operands {
			r, ok := x.ranges[s.roles.Tensors[w.Tensor].Alloc]
			if !ok {
				continue
			}
			named = append(named, r.Base)
			if w.Writes {
				o.Written = append(o.Written, r.Base)
			}
			i := slices.Index(o.Slots, x.engine.SlotOf(r.Base))
			if e.Kind == trace.KindLaunch && s.roles.Tensors[w.Tensor].Workspace {
				o.Access[i], scratch = um.AccessScratch, append(scratch, w.Tensor)
			} else if w.Writes {
				o.Access[i] = um.AccessWrites
			} else if o.Access[i] == um.AccessUnknown {
				o.Access[i] = um.AccessReads
			}
		}
	}
	r := recordedLaunch{of, e, to, scratch}
	if known && e.Kind == trace.KindLaunch {
		if at, ok := x.ranges[s.roles.Tensors[to].Alloc]; ok {
			s.at[at.Base] = to
			l := naming(named)
			s.recorded[l], o.Again = r, l
		}
		return func() { s.values[to] = r.computes(func(t int32) uint64 { return s.values[t] }) }
	}
	seq := o.Seq
	return func() {
		for _, w := range of.Operands {
			if w.Writes {
				s.values[w.Tensor] = trace.Mix(seq, uint64(w.Tensor))
			}
		}
	}
}

// naming is a launch with these addresses as its parameters.
func naming(addresses []cuda.Ptr) *cuda.RecordedLaunch {
	l := &cuda.RecordedLaunch{}
	for _, p := range addresses {
		l.Addresses = append(l.Addresses, uint32(len(l.Params)))
		l.Params = binary.LittleEndian.AppendUint64(l.Params, uint64(p))
	}
	return l
}

// took is how long it takes on the device.
func (r recordedLaunch) took() time.Duration {
	return duration(r.event) + time.Duration(againLaunchSeconds*1e9)
}

// runExplicit runs the explicit engine. Where memory is made again it is as in a real job, which tries out how much of that is
// fastest: each is run, and the fastest reported.
func runExplicit(ctx context.Context, t *trace.Trace, o Options, budget int64) (best Result, err error) {
	if !o.Replay {
		return newExplicit(t, o, budget).app.replay(ctx)
	}
	levels := []explicit.Level{explicit.LevelNothing, explicit.LevelPlain, explicit.LevelAll}
	var swap float64
	for i, level := range levels {
		each := o
		each.level = level
		if o.Progress != nil {
			each.Progress = func(done, total int) { o.Progress(i*total+done, len(levels)*total) }
		}
		x := newExplicit(t, each, budget)
		r, err := x.app.replay(ctx)
		if err != nil {
			return Result{}, err
		}
		if i == 0 {
			swap = r.IterationSeconds
		}
		r.Replay = x.issuing.report(swap)
		if i == 0 || r.IterationSeconds < best.IterationSeconds {
			best = r
		}
	}
	return best, nil
}

// report is what was made again; swap is how long an iteration takes without that.
func (s *issuing) report(swap float64) *Again {
	s.made.SwapSeconds, s.made.Functions = swap, []Function{}
	for _, f := range s.functions {
		s.made.Functions = append(s.made.Functions, *f)
	}
	slices.SortFunc(s.made.Functions, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Name, b.Name))
	})
	return &s.made
}

// issue is what a move's launches make, and how long they take on the device.
func (s *issuing) issue(m *explicit.Move) (made uint64, took time.Duration) {
	anew := map[int32]uint64{} // by tensor: what the job has freed, and what is made
	for _, l := range m.Launches {
		r := s.recorded[l]
		made = r.computes(func(t int32) uint64 {
			if v, ok := anew[t]; ok || t == r.makes {
				return v
			}
			return s.values[t]
		})
		anew[r.makes] = made
		took += r.took()
	}
	return made, took
}

func sumTime(bytes int64) time.Duration {
	return time.Duration(float64(bytes) / sumBytesPerSecond * 1e9)
}

// after calls f when work of the engine's that takes so long has been done, after what was issued before.
func (x *explicitEngine) after(took time.Duration, f func()) {
	s := x.issuing
	s.free = max(s.free, x.gpu.Now()) + took
	s.owed += took
	x.gpu.At(s.free, f)
}

// symbolic is the checksum of a symbolic value.
func symbolic(value uint64) kernels.Sum128 { return kernels.Sum128{value, 1} }

// verify issues the launches of a recipe, to know what they make.
func (x *explicitEngine) verify(m *explicit.Move) {
	if m.Proven {
		x.runtime.Done(m)
		return
	}
	made, took := x.issuing.issue(m)
	m.Sum, m.Summed = symbolic(made), true
	x.after(took+sumTime(m.Bytes), func() {
		x.runtime.Done(m)
		x.wake()
	})
}

// sum finds the checksum of what leaves, where one is asked for.
func (x *explicitEngine) sum(m *explicit.Move) {
	s := x.issuing
	if s == nil {
		return
	}
	t, ok := s.at[m.Chunk.Base]
	if !ok {
		return
	}
	was := symbolic(s.values[t])
	m.Clean = m.Proven || m.Compare && m.Sum == was
	m.Sum, m.Summed = was, true
}

// drop ends a move out that copies nothing, when its checksum has been taken.
func (x *explicitEngine) drop(w *directionWorker, m *explicit.Move) {
	x.after(sumTime(m.Bytes), func() {
		if m.Clean {
			x.finish(w, m, 0)
			return
		}
		x.runtime.Cancelled(m)
		x.wake()
	})
}

// makeAgain issues the launches that make what was dropped.
func (x *explicitEngine) makeAgain(w *directionWorker, m *explicit.Move) {
	s := x.issuing
	made, took := s.issue(m)
	if symbolic(made) != m.Sum {
		x.fail(fmt.Errorf("%s was made wrongly", m.What()))
		return
	}
	if x.app.begin.taken && !x.app.final.taken {
		s.made.Launches += len(m.Launches)
		s.made.Bytes += m.Bytes
		s.made.Seconds += took.Seconds()
		for _, l := range m.Launches {
			name := x.app.trace.FunctionName(s.recorded[l].event.Function)
			f := s.functions[name]
			if f == nil {
				f = &Function{Name: name}
				s.functions[name] = f
			}
			f.Launches++
			f.Seconds += s.recorded[l].took().Seconds()
		}
	}
	x.after(took+sumTime(m.Bytes), func() { x.finish(w, m, 0) })
}
