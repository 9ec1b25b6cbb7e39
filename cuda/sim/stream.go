package sim

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// stream is a queue of operations, each begun when the one before is over.
type stream struct {
	id        cuda.Stream
	queue     []operation
	head      int
	busy      bool
	compute   bool // a kernel was launched on it: its waits count as stalls
	submitted uint64
	completed uint64
	idle      time.Duration // when the last operation ended
}

// operation is one entry of a stream: it begins at its time of issue or later.
type operation struct {
	issued time.Duration
	run    func(done func())
}

// submit queues an operation issued at a time that may lie ahead of the clock
// (a host thread's).
func (g *GPU) submit(s *stream, issued time.Duration, run func(done func())) {
	s.submitted++
	s.queue = append(s.queue, operation{issued, run})
	g.pump(s)
}

// pump begins the next operation through the event queue, so that user code
// never runs inside a call that queues.
func (g *GPU) pump(s *stream) {
	if s.busy || s.head == len(s.queue) {
		return
	}
	op := s.queue[s.head]
	s.queue[s.head] = operation{}
	if s.head++; s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
	} else if s.head > 1024 && s.head*2 > len(s.queue) {
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
	s.busy = true
	g.schedule(op.issued, func() {
		op.run(func() {
			s.busy = false
			s.completed++
			s.idle = g.now
			g.pump(s)
		})
	})
}

// wait holds a stream until the counter reaches a value, and counts it as a
// stall when the stream is one that computes.
func (g *GPU) wait(s *stream, c *counter, value uint64, done func()) {
	if c.value >= value {
		done()
		return
	}
	g.account()
	if s.compute {
		g.held++
	}
	counted := s.compute
	c.waiters = append(c.waiters, waiter{value, func() {
		g.account()
		if counted {
			g.held--
		}
		done()
	}})
}

// counter is a monotone value that streams wait for.
type counter struct {
	value   uint64
	waiters []waiter
}

type waiter struct {
	value uint64
	run   func()
}

// raise sets the counter to at least value and lets go of who waited for it, in
// the order in which they came.
func (c *counter) raise(value uint64) {
	if value <= c.value {
		return
	}
	c.value = value
	var due []waiter
	kept := c.waiters[:0]
	for _, w := range c.waiters {
		if w.value <= value {
			due = append(due, w)
		} else {
			kept = append(kept, w)
		}
	}
	clear(c.waiters[len(kept):])
	c.waiters = kept
	for _, w := range due {
		w.run()
	}
}

// Gate is a number in memory that the host raises and streams wait for, as with
// cuStreamWriteValue and cuStreamWaitValue (greater or equal).
type Gate struct {
	g *GPU
	c counter
}

// NewGate is a gate at 0.
func (g *GPU) NewGate() *Gate { return &Gate{g: g} }

// Open raises the gate to seq at the current time. Lower values do nothing.
func (gt *Gate) Open(seq uint64) {
	gt.g.mu.Lock()
	defer gt.g.mu.Unlock()
	gt.c.raise(seq)
}

// WaitGate makes the stream wait until the gate is open for seq.
func (g *GPU) WaitGate(s cuda.Stream, gt *Gate, seq uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.mustStream(s)
	g.submit(st, g.now, func(done func()) { g.wait(st, &gt.c, seq, done) })
}

// word is the number at an address that StreamWriteValue32 writes to, 0 at first.
func (g *GPU) word(p cuda.Ptr) *counter {
	c := g.words[p]
	if c == nil {
		c = &counter{}
		g.words[p] = c
	}
	return c
}

// ahead is the value of a counter of 64 bits that v, the low 32 bits of it,
// stands for: the one closest to where the counter is. ok is false for one that
// lies before its start.
func (c *counter) ahead(v uint32) (value uint64, ok bool) {
	d := int64(int32(v - uint32(c.value)))
	return c.value + uint64(d), d >= 0 || uint64(-d) <= c.value
}

// Word is what StreamWriteValue32 last wrote at p.
func (g *GPU) Word(p cuda.Ptr) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return uint32(g.word(p).value)
}

// WaitValue32 makes the stream wait until the word at p has reached v: cyclically
// greater or equal, as cuStreamWaitValue32 compares. The word must have been
// within 2^31 of v since this call; it never goes down.
func (g *GPU) WaitValue32(s cuda.Stream, p cuda.Ptr, v uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.mustStream(s)
	g.submit(st, g.now, func(done func()) {
		c := g.word(p)
		value, ok := c.ahead(v)
		if !ok {
			value = 0
		}
		g.wait(st, c, value, done)
	})
}

// Callback calls f when everything queued on the stream before it is done.
func (g *GPU) Callback(s cuda.Stream, f func(at time.Duration)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.mustStream(s)
	g.submit(st, g.now, func(done func()) {
		at := g.now
		g.tell(func() { f(at) })
		done()
	})
}

// mustStream is for calls without an error: an unknown stream is a mistake in the caller.
func (g *GPU) mustStream(s cuda.Stream) *stream {
	st := g.streams[s]
	if st == nil {
		panic("sim: unknown stream: it was destroyed or belongs to another GPU")
	}
	return st
}

// eventState is a CUDA event: how often it was recorded, and how many of those
// records the GPU has reached.
type eventState struct {
	recorded uint64
	reached  counter
}
