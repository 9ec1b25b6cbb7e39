package timeline

import (
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/trace/phase"
)

// Mark is a moment to which the GPU came: a phase of training begins there, or an iteration of which no phases are known.
type Mark struct {
	Name string
	At   time.Duration
}

// Iteration is the mark of an iteration without phases.
const Iteration = "iteration begins"

// Begins is the mark of a phase.
func Begins(p phase.Phase) string { return p.String() + " begins" }

// markNames are all there are.
var markNames = []string{Iteration, Begins(phase.Forward), Begins(phase.Backward), Begins(phase.Optimizer)}

const (
	// mostMarks are kept; later ones are not.
	mostMarks = 1 << 16
	// mostNames are the functions whose phase is remembered.
	mostNames = 1 << 14
	// periodPart is the part of a period by which the next may differ, and steadyOps for how many operations at least one has to stay.
	periodPart = 8
	steadyOps  = 64
)

// marks finds where phases begin. A mark is known when it is launched, and its time when the GPU has come to it, which
// may be much later.
type marks struct {
	set     []Mark
	waiting []waitingMark // their times are not known yet
	phases  phase.Tracker
	told    map[string]phase.Phase // by name of function
	named   bool                   // the kernels' names tell phases: the period does not matter
	period  int64
	next    int64 // the position from which on the next period begins
}

type waitingMark struct {
	Mark
	stream int
	seq    uint64
}

// Launched tells of an operation, in the order of launches: its position among them, and after how many of them
// the job does the same again, if that is known. Only kernels have a name.
func (t *Timeline) Launched(stream int, seq uint64, name string, position, period int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	mark := t.marks.launched(name, position, period)
	if m := &t.marks; mark != "" && len(m.set)+len(m.waiting) < mostMarks {
		m.waiting = append(m.waiting, waitingMark{Mark{Name: mark}, stream, seq})
	}
}

// launched is the mark at a launch; "" where there is none.
func (m *marks) launched(name string, position, period int64) string {
	if name != "" {
		before := m.phases.Now
		m.phases.Launch(m.tells(name))
		if now := m.phases.Now; now != before {
			if !m.named && now != phase.Forward { // many names have "forward" in them
				m.named, m.set, m.waiting = true, nil, nil
			}
			if m.named {
				return Begins(now)
			}
		}
	}
	if !m.named && m.again(position, period) {
		return Iteration
	}
	return ""
}

// tells is phase.Of, which takes microseconds.
func (m *marks) tells(name string) phase.Phase {
	p, ok := m.told[name]
	if !ok {
		if m.told == nil || len(m.told) == mostNames {
			m.told = map[string]phase.Phase{}
		}
		p = phase.Of(name)
		m.told[name] = p
	}
	return p
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
	t.marks.waiting = slices.DeleteFunc(t.marks.waiting, func(w waitingMark) bool {
		reached := w.stream == stream && w.seq <= seq
		if reached {
			t.marks.set = append(t.marks.set, Mark{w.Name, now})
		}
		return reached
	})
}
