package analyse

import (
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/trace/phase"
)

const (
	maxStreams   = 1024    // beyond it streams share one
	maxQueued    = 1 << 16 // operations followed on a stream
	maxOps       = 1 << 17 // and on all
	maxNamed     = 1 << 22 // allocations that these name, together
	effortAtMost = 1 << 22 // comparisons in search of a fault's operation, saved up
	effortEach   = 1 << 9  // for each event
	maxFunctions = 1 << 16
	maxKernels   = 1 << 16
	maxNameBytes = 512      // of a place in the program
	maxMangled   = 4 << 10  // of a kernel's name, which can only be read when it is whole
	mangledBytes = 32 << 20 // of all kernels' names
	maxAccesses  = 1 << 10  // of one operation; none real comes near
	maxPending   = 1 << 14  // faults that wait for the next sign of progress
	patience     = 5 * time.Millisecond
	lookBack     = 64 // launches that are looked at where there is no progress
)

// kernel is what is counted for one function.
type kernel struct {
	name     string
	phase    Phase // that its name tells
	launches int64
	faults   CauseCounts
	bytes    int64         // brought in by its faults
	stalled  time.Duration // from its faults until the bytes were there
	evicted  int64         // bytes that the driver evicted meanwhile
}

// op is a launch or copy that has been queued.
type op struct {
	number   uint64
	kernel   *kernel // nil for a copy
	phase    Phase
	accesses []uint64 // allocation ids
}

// stream is a queue of operations, the first of which is the first not known to be done.
type stream struct {
	ops  []op
	head int
	done uint64 // number of the last operation known to be done
	next uint64 // as seen at the moment that is being applied; 0 for none
}

func (s *stream) push(o op) {
	if s.head > 64 && s.head*2 >= len(s.ops) {
		n := copy(s.ops, s.ops[s.head:])
		clear(s.ops[n:])
		s.ops, s.head = s.ops[:n], 0
	}
	s.ops = append(s.ops, o)
}

func (s *stream) queued() []op { return s.ops[s.head:] }

// pop takes the first off.
func (o *ops) pop(s *stream) {
	first := &s.ops[s.head]
	o.held--
	o.named -= len(first.accesses)
	*first = op{}
	s.head++
}

// finish takes everything up to a number off.
func (o *ops) finish(s *stream, number uint64) {
	s.done = max(s.done, number)
	for s.head < len(s.ops) && s.ops[s.head].number <= number {
		o.pop(s)
	}
}

// ops follows the launches.
type ops struct {
	functions  map[uint32]*kernel
	kernels    map[string]*kernel
	others     *kernel
	unknown    *kernel // faults while no launch was known to run
	copies     *kernel // faults of copies
	streams    map[uint64]*stream
	order      []*stream // in order of appearance
	number     uint64    // of the last launch or copy
	launches   int64
	progress   bool // the recording has progress
	roundTime  time.Duration
	roundOpen  bool
	nameBytes  int // of kernels
	overflowed bool
	held       int // operations queued on all streams
	named      int // allocations that they name
	effort     int // comparisons that are left
}

func newOps() ops {
	return ops{functions: map[uint32]*kernel{}, kernels: map[string]*kernel{}, streams: map[uint64]*stream{},
		unknown: &kernel{name: "(no launch known)"}, copies: &kernel{name: "(copies and fills)"}}
}

func clip(name string) string { return clipTo(name, maxNameBytes) }

func clipTo(name string, most int) string {
	if len(name) > most {
		name = name[:most-3] + "..."
	}
	return strings.Clone(name) // not the whole of a long one behind a short one
}

func (o *ops) kernelNamed(name string) *kernel {
	if name = clipTo(name, maxMangled); name == "" {
		name = "(unnamed)"
	}
	k := o.kernels[name]
	if k != nil {
		return k
	}
	if len(o.kernels) >= maxKernels || o.nameBytes+len(name) > mangledBytes {
		o.overflowed = true
		if o.others == nil {
			o.others = &kernel{name: "(others)"}
		}
		return o.others
	}
	o.nameBytes += len(name)
	k = &kernel{name: name, phase: phase.Of(name)}
	o.kernels[name] = k
	return k
}

func (o *ops) function(e *trace.Event) {
	if len(o.functions) < maxFunctions || o.functions[e.Function] != nil {
		o.functions[e.Function] = o.kernelNamed(e.Name)
	}
}

func (o *ops) streamOf(handle uint64) *stream {
	s := o.streams[handle]
	if s == nil {
		if len(o.order) >= maxStreams {
			return o.order[maxStreams-1]
		}
		s = &stream{}
		o.streams[handle] = s
		o.order = append(o.order, s)
	}
	return s
}

// launch queues an operation and returns it.
func (o *ops) launch(e *trace.Event, phase Phase) op {
	o.number++
	x := op{number: o.number, phase: phase}
	if e.Kind == trace.KindLaunch {
		o.launches++
		if x.kernel = o.functions[e.Function]; x.kernel == nil {
			x.kernel = o.kernelNamed("(never announced)")
		}
		x.kernel.launches++
	}
	if n := min(len(e.Accesses), maxAccesses, maxNamed-o.named); n > 0 {
		x.accesses = make([]uint64, n)
		for i := range x.accesses {
			x.accesses[i] = e.Accesses[i].Alloc
		}
	}
	s := o.streamOf(e.Stream)
	if len(s.queued()) >= maxQueued || o.held >= maxOps && len(s.queued()) > 0 {
		o.pop(s)
	}
	if o.held < maxOps {
		o.held++
		o.named += len(x.accesses)
		s.push(x)
	}
	return x
}

// how says on what grounds a kernel was found.
type how uint8

const (
	byProgress how = iota // the only one that ran
	byAccess              // one of several that ran, and it names the allocation
	byOrder               // the first of several that ran
	byLaunch              // no progress recorded: the last launch before the fault
	byEngine              // raised by a copy engine
	byNothing
)

// running finds what ran between the last sign of progress and the next.
func (o *ops) running(alloc uint64, copyEngine bool) (op, how) {
	if copyEngine {
		return op{kernel: o.copies, phase: o.phaseNow()}, byEngine
	}
	if !o.progress {
		return o.launched(alloc)
	}
	var first op
	n := 0
	for _, s := range o.order {
		end := max(s.next, s.done)
		for _, x := range s.queued() {
			if o.effort -= 1 + len(x.accesses); o.effort < 0 {
				break
			}
			if alloc != 0 && x.names(alloc) {
				if n == 0 && x.number > end && len(o.order) == 1 {
					return x, byProgress
				}
				return x, byAccess
			}
			if n++; n == 1 {
				first = x
			}
			if x.number > end { // the one that is running at the second moment
				break
			}
		}
	}
	switch n {
	case 0:
		return op{kernel: o.unknown}, byNothing
	case 1:
		return first, byProgress
	}
	return first, byOrder
}

// launched is the guess of a recording without progress: the last launch that
// names the allocation, or else the last.
func (o *ops) launched(alloc uint64) (op, how) {
	var last, naming op
	for _, s := range o.order {
		q := s.queued()
		for i := len(q) - 1; i >= max(0, len(q)-lookBack); i-- {
			if o.effort -= 1 + len(q[i].accesses); o.effort < 0 {
				break
			}
			if x := q[i]; x.number > last.number {
				last = x
			}
			if x := q[i]; alloc != 0 && x.number > naming.number && x.names(alloc) {
				naming = x
				break
			}
		}
	}
	switch {
	case naming.number != 0:
		return naming, byLaunch
	case last.number != 0:
		return last, byLaunch
	}
	return op{kernel: o.unknown}, byNothing
}

func (x *op) names(alloc uint64) bool {
	for _, a := range x.accesses {
		if a == alloc {
			return true
		}
	}
	return false
}

// phaseNow is the phase of the oldest operation that is not done.
func (o *ops) phaseNow() Phase {
	for _, s := range o.order {
		if q := s.queued(); len(q) > 0 {
			return q[0].phase
		}
	}
	return phase.Unknown
}
