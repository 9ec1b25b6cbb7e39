package planned

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/follow"
	"github.com/penstock-gpu/penstock/pool/front"
)

// This file has the front follow the plan by itself, while the job does exactly what is planned: a call into
// Go costs the job more than serving it does. What the front does then is told when it ends, which it
// does at the first request that is not the next one or whose place is not free, and
// whenever the pool needs to know what lies in the planned addresses. It begins anew where an iteration does
// after one that was as planned.

const (
	// leastScripted is how many requests a script must serve to be worth having begun.
	leastScripted = 256
	// mostInVain is how many scripts of a plan may serve fewer.
	mostInVain = 4
	// scriptedTurns is how many iterations a script serves at most, before the pool looks for memory that it can give back.
	scriptedTurns = 16
	// quietTurns is how many iterations before it began without any such memory.
	quietTurns = 2
)

// script is the plan as the front has it.
type script struct {
	area    *area
	steps   *follow.Steps
	due     bool              // it is to begin after the request that is being served
	on      bool              // the front follows it
	quiet   int               // iterations at whose begin there was no memory to give back, in a row
	inVain  int               // how many have ended soon
	at      map[placement]int // which step has a place; one of them
	live    []int64           // scratch: by step, what was asked for by what lies there
	present []int64           // the same, as the front has it
}

// placement is where something lies in planned addresses.
type placement struct{ offset, bytes int64 }

// scriptDue says, when an iteration begins and so many bytes were given back, whether a script may begin with it.
func (p *Pool) scriptDue(trimmed int64) bool {
	s := &p.service
	if s.script.quiet++; trimmed > 0 {
		s.script.quiet = 0
	}
	_, listed := s.steps.Overlaps()
	return s.script.quiet >= quietTurns && p.front != nil && p.above.Serves() && listed && !s.file && s.script.inVain < mostInVain &&
		s.follower.InOrder(len(s.steps.List)-s.steps.Start) && len(p.waiting) == 0
}

// BeginDue has the front follow the plan from the next request on, if that is due.
func (p *Pool) BeginDue() {
	if p.service.script.due {
		p.beginScript()
	}
}

// beginScript begins it if what lies in the planned
// addresses is all as planned, and of one stream, which may use the rest of them.
func (p *Pool) beginScript() {
	s := &p.service
	c, a, f := &s.script, s.current, p.front
	c.due = false
	if s.phase != active || !s.follower.InOrder(0) {
		return
	}
	if c.area != a || c.steps != s.steps {
		p.loadScript()
	}
	clear(c.live)
	asPlanned := true
	a.layout.Each(a.stream, func(offset, bytes, requested int64, alone bool) {
		i, planned := c.at[placement{offset, bytes}]
		if asPlanned = asPlanned && planned && alone; asPlanned {
			c.live[i] = requested
		}
	})
	if asPlanned && c.area == a && a.layout.MayUseAll(a.stream) {
		f.Follow(s.follower.Place(), scriptedTurns, c.live)
		c.on = true
	}
}

// loadScript gives the plan to the front.
func (p *Pool) loadScript() {
	s := &p.service
	a, steps := s.current, s.steps
	overlaps, _ := steps.Overlaps()
	n := len(steps.List)
	f := &front.Script{
		Bytes: make([]int64, n), At: make([]cuda.Ptr, n), First: overlaps.First, Others: overlaps.Steps, Start: steps.Start,
		Stream: a.stream, Unit: unitBytes, Range: cuda.Range{Base: a.ran.Base(), Bytes: a.ran.Bytes()},
	}
	c := script{steps: steps, quiet: s.script.quiet, at: map[placement]int{}, live: make([]int64, n), present: make([]int64, n)}
	for i, x := range steps.List {
		if f.Bytes[i] = -1; x.Offset >= 0 && x.Stream == a.stream {
			f.Bytes[i], f.At[i] = x.Bytes, a.ran.Base()+cuda.Ptr(x.Offset)
			c.at[placement{x.Offset, x.Bytes}] = i
		}
	}
	if p.front.Load(f) {
		c.area = a
	}
	s.script = c
}

// EndScript ends what the front follows, and does in the planned addresses what it has done.
func (p *Pool) EndScript() {
	s := &p.service
	c := &s.script
	if c.due = false; !c.on {
		return
	}
	c.on = false
	f := p.front
	done, _ := f.Unfollow(c.present)
	for i, x := range c.steps.List {
		if c.live[i] > 0 && c.present[i] != c.live[i] {
			_ = c.area.layout.Free(x.Offset, p.below.NoteFree(c.area.stream)) // it lay there
		}
	}
	if done.Served > 0 { // and what was freed since lies in none of these
		c.area.layout.HasUsedAll(c.area.stream, p.below.NoteFree(c.area.stream))
	}
	for i, x := range c.steps.List {
		if c.present[i] > 0 && c.present[i] != c.live[i] && !c.area.layout.Place(x.Offset, x.Bytes, c.present[i], c.area.stream) {
			panic("pool: what the front has placed by the plan does not fit") // it has looked; to go on would be to give memory out twice
		}
	}
	p.above.Grew(done.GrownBytes)
	p.stats.Served += done.Served
	p.stats.Scripted += done.Served
	p.stats.ScriptedFrees += done.Freed
	p.stats.ServedBytes += done.ServedBytes
	s.hits += done.ServedBytes
	s.follower.Skip(done.Next, int(done.Served), done.Turns)
	s.followed += done.Turns
	s.turns = s.follower.Turns()
	s.inRow, s.waited = 0, 0
	if done.Served < leastScripted {
		c.inVain++
	}
}
