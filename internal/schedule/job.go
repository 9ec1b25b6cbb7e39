package schedule

import (
	"strconv"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// Kernels that the log has not: fills, sums of gradients, joins of what was attended to.
const (
	fillFunction = 1<<20 + iota
	addFunction
	joinFunction
	// otherShape is added to a function for the kernel that does the same for another size.
	otherShape = 1 << 21
)

// Job is a recording that is being made.
type Job struct {
	cuts   *Cuts
	out    *trace.Trace
	known  map[uint32]bool
	next   uint64
	named  int
	Labels []string // the program of each iteration
}

// Model is what stays of one model of a job, and what it has accumulated.
type Model struct {
	names     map[uint64]uint64 // of what stays, by its id in the log
	gradients map[uint64]uint64 // the same
}

// NewJob begins a recording.
func NewJob(c *Cuts, name string) *Job {
	return &Job{cuts: c, out: &trace.Trace{Name: name}, known: map[uint32]bool{}, next: 1}
}

// Model makes another model: its weights and its optimizer's state, which are filled.
func (j *Job) Model() *Model {
	m := &Model{map[uint64]uint64{}, map[uint64]uint64{}}
	for _, e := range j.cuts.stays {
		m.names[e.Alloc] = j.alloc(e.Bytes)
		j.launch(fillFunction, 5*time.Microsecond, m.names[e.Alloc])
	}
	return m
}

// Iteration marks the beginning of one, of a program.
func (j *Job) Iteration(program string) {
	j.add(trace.Event{Kind: trace.KindMark, Name: "iter" + strconv.Itoa(j.named)})
	j.named++
	j.Labels = append(j.Labels, program)
}

// Trace ends the recording.
func (j *Job) Trace() *trace.Trace {
	j.add(trace.Event{Kind: trace.KindMark, Name: trace.MarkEnd})
	return j.out
}

func (j *Job) add(e trace.Event) { j.out.Events = append(j.out.Events, e) }

func (j *Job) alloc(bytes int64) uint64 {
	id := j.next
	j.next++
	j.add(trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: bytes})
	return id
}

func (j *Job) free(id uint64) { j.add(trace.Event{Kind: trace.KindFree, Alloc: id}) }

func (j *Job) launch(function uint32, d time.Duration, ids ...uint64) {
	e := trace.Event{Kind: trace.KindLaunch, Function: function, Duration: d}
	for _, id := range ids {
		e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
	}
	j.announce(function)
	j.add(e)
}

func (j *Job) announce(function uint32) {
	if !j.known[function] {
		j.known[function] = true
		j.add(trace.Event{Kind: trace.KindFunction, Function: function, Name: j.cuts.log.FunctionName(function%otherShape) + "_" + strconv.Itoa(int(function/otherShape))})
	}
}

// way is how a part is played.
type way struct {
	names    map[uint64]uint64 // what is there, by its id in the log
	batch    float64           // what is of the batch is so large
	time     float64           // operations take so long
	other    uint32            // kernels of every so many are others: 0 = of none
	skip     func(operation int) bool
	after    func(operation int) // called after each operation
	finished int                 // operations of the part
}

const leastTime = 2 * time.Microsecond

// play plays a part. What is not there is not touched, and an operation on nothing but that is not launched.
func (j *Job) play(part []trace.Event, w *way) {
	for _, e := range part {
		switch e.Kind {
		case trace.KindAlloc:
			if w.skip != nil && w.skip(w.finished) {
				continue
			}
			bytes := e.Bytes
			if j.cuts.batch[e.Alloc] {
				bytes = int64(float64(bytes) * w.batch)
			}
			w.names[e.Alloc] = j.alloc(bytes)
		case trace.KindFree:
			if id, there := w.names[e.Alloc]; there {
				j.free(id)
				delete(w.names, e.Alloc)
			}
		default:
			w.finished++
			if w.skip != nil && w.skip(w.finished-1) {
				continue
			}
			j.operation(e, w)
			if w.after != nil {
				w.after(w.finished - 1)
			}
		}
	}
}

func (j *Job) operation(e trace.Event, w *way) {
	named := len(e.Accesses)
	var accesses []trace.Access
	for _, a := range e.Accesses {
		if id, there := w.names[a.Alloc]; there {
			accesses = append(accesses, trace.Access{Alloc: id, Mode: a.Mode})
		}
	}
	if named > 0 && len(accesses) == 0 {
		return
	}
	e.Accesses = accesses
	if e.Duration > 0 {
		e.Duration = max(min(e.Duration, leastTime), time.Duration(float64(e.Duration)*w.time))
	}
	if e.Kind == trace.KindLaunch {
		if w.other > 0 && e.Function%w.other == 0 {
			e.Function += otherShape
		}
		j.announce(e.Function)
	}
	j.add(e)
}

// names are those of a model's own, to which a part adds.
func (m *Model) all() map[uint64]uint64 {
	names := map[uint64]uint64{}
	for id, name := range m.names {
		names[id] = name
	}
	return names
}
