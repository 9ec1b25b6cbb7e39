package sim

import (
	"sync"
	"time"
)

// clock is the lowest floor of a GPU: the simulated time, and what is to happen when.
type clock struct {
	mu    sync.Mutex
	now   time.Duration
	seq   uint64
	queue eventQueue
	calls []func() // user code to call when the current event is over
	spare []func() // last step's calls, for reuse
}

// event is one entry of the event queue. Dead events are dropped when they
// reach the top, without moving the clock.
type event struct {
	at   time.Duration
	seq  uint64
	fn   func()
	dead bool
}

// eventQueue is a binary heap ordered by time, then by scheduling order.
type eventQueue []*event

func (q eventQueue) less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].seq < q[j].seq
}

func (q *eventQueue) push(e *event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (q *eventQueue) pop() *event {
	h := *q
	top, last := h[0], len(h)-1
	h[0], h[last] = h[last], nil
	h = h[:last]
	*q = h
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if h.less(c, least) {
				least = c
			}
		}
		if least == i {
			return top
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// schedule runs f at t, under the lock. A time that has passed means now.
func (g *clock) schedule(t time.Duration, f func()) *event {
	g.seq++
	e := &event{at: max(t, g.now), seq: g.seq, fn: f}
	g.queue.push(e)
	return e
}

func (g *clock) after(d time.Duration, f func()) *event { return g.schedule(g.now+d, f) }

// tell queues a call into the user's code; Step makes it after the lock is let go.
func (g *clock) tell(f func()) { g.calls = append(g.calls, f) }

// At runs f at virtual time t, or now when t has passed. Functions of the same
// time run in the order in which they were scheduled.
func (g *clock) At(t time.Duration, f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.schedule(t, func() { g.tell(f) })
}

// Now is the virtual time of the event that ran last.
func (g *clock) Now() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

// Step runs the next event and says whether there was one.
func (g *clock) Step() bool {
	g.mu.Lock()
	e := g.next()
	if e == nil {
		g.mu.Unlock()
		return false
	}
	g.queue.pop()
	g.now = e.at
	e.fn()
	calls := g.calls
	g.calls = g.spare[:0]
	g.spare = nil
	g.mu.Unlock()
	for i, f := range calls {
		f()
		calls[i] = nil
	}
	if calls != nil {
		g.mu.Lock()
		if g.spare == nil {
			g.spare = calls[:0]
		}
		g.mu.Unlock()
	}
	return true
}

// next is the event that will run next, or nil; dead ones are dropped.
func (g *clock) next() *event {
	for len(g.queue) > 0 {
		if e := g.queue[0]; !e.dead {
			return e
		}
		g.queue.pop()
	}
	return nil
}

// Run steps until no event is left.
func (g *clock) Run() {
	for g.Step() {
	}
}

// runUntil steps while events at or before t are left and done says no.
func (g *clock) runUntil(t time.Duration, done func() bool) {
	for {
		g.mu.Lock()
		e := g.next()
		stop := e == nil || e.at > t || done()
		g.mu.Unlock()
		if stop {
			return
		}
		g.Step()
	}
}
