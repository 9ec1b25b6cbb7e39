package timeline

import (
	"slices"
	"strings"
	"time"
)

// The marks.
const (
	Iteration = "iteration begins"
	Optimizer = "optimizer begins"
)

// Mark is a moment to which the GPU came.
type Mark struct {
	Name string
	At   time.Duration
}

const (
	// mostMarks are kept; later ones are not.
	mostMarks = 1 << 16
	// foreachKernel is in the names of PyTorch's kernels for many tensors at once, which optimizers are made of.
	foreachKernel = "multi_tensor_apply_kernel"
	// betweenForeach is how many other operations may come between two of an optimizer.
	betweenForeach = 64
	// periodPart is the part of a period by which the next may differ, and steadyOps for how many operations at least one has to stay.
	periodPart = 8
	steadyOps  = 64
)

// marks finds where iterations and their optimizers begin. A mark is known when it is launched, and its time when
// the GPU has come to it, which may be much later.
type marks struct {
	set     []Mark
	waiting []waitingMark
	inside  bool  // an optimizer
	foreach int64 // the position of its last kernel; 0: the job has shown none
	period  int64 // while no optimizer has been seen
	next    int64 // the position from which on the next period begins
}

// waitingMark is a mark whose time or whose truth is not known yet.
type waitingMark struct {
	Mark
	stream  int
	seq     uint64
	reached bool
	sure    bool // else it falls when the optimizer goes on
}

// Launched tells of an operation, in the order of launches: its position among them, and after how many of them
// the job does the same again, if that is known.
//
// With an optimizer of foreach or fused kernels an iteration begins behind it, else anywhere: only its length is known.
func (t *Timeline) Launched(stream int, seq uint64, name string, position, period int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &t.marks
	begins := func(name string, sure bool) {
		if len(m.set)+len(m.waiting) < mostMarks {
			m.waiting = append(m.waiting, waitingMark{Mark: Mark{Name: name}, stream: stream, seq: seq, sure: sure})
		}
	}
	unsure := func(w waitingMark) bool { return !w.sure }
	switch {
	case strings.Contains(name, foreachKernel):
		m.waiting = slices.DeleteFunc(m.waiting, unsure)
		if !m.inside {
			begins(Optimizer, true)
		}
		m.inside, m.foreach = true, position
	case m.inside && position-m.foreach > betweenForeach:
		m.inside = false
		if i := slices.IndexFunc(m.waiting, unsure); i >= 0 {
			m.waiting[i].sure = true
		}
		m.settle()
	case m.inside && !slices.ContainsFunc(m.waiting, unsure):
		begins(Iteration, false)
	case m.foreach == 0 && m.again(position, period):
		begins(Iteration, true)
	}
}

// again says whether the job does the same again from here on. A period counts once it has stayed for one, and what was
// marked by one of at most half its length was a part of it: layers are alike.
func (m *marks) again(position, period int64) bool {
	switch d := period - m.period; {
	case period == 0:
	case max(d, -d)*periodPart > m.period:
		if period >= 2*m.period {
			m.set, m.waiting = nil, nil
		}
		m.period, m.next = period, position+max(period, steadyOps)
	case position >= m.next:
		m.next = position + period
		return true
	}
	return false
}

// Done tells that the GPU has done what a stream had to do, up to an operation.
func (t *Timeline) Done(stream int, seq uint64, now time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.marks.waiting {
		if w := &t.marks.waiting[i]; !w.reached && w.stream == stream && w.seq <= seq {
			w.reached, w.At = true, now
		}
	}
	t.marks.settle()
}

// settle sets the marks of which all is known.
func (m *marks) settle() {
	m.waiting = slices.DeleteFunc(m.waiting, func(w waitingMark) bool {
		if w.sure && w.reached {
			m.set = append(m.set, w.Mark)
		}
		return w.sure && w.reached
	})
}
