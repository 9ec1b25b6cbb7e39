package sim

import "time"

// sliceBlocks is how many blocks are moved as one step. Steps of different
// moves take turns, so a small move waits at most for a step of a large one,
// and a kernel at most for the step that its block is in.
const sliceBlocks = 8

// slice is one step of a move or of fault service, in flight.
type slice struct {
	begin   time.Duration
	held    []*block // blocks that nobody else may touch until it is over
	moves   []moved
	evicted []moved // to make room
	waiters []func()
}

// moved is the part of a block that a slice brings over.
type moved struct {
	b       *block
	leaves  mask
	copied  mask // the leaves that cross the bus
	faulted mask // the leaves that raised faults
	written mask // duplicated leaves that a kernel writes to
	entries int64
}

func (g *GPU) newSlice() *slice { return &slice{begin: g.now} }

func (s *slice) hold(b *block) {
	b.moving = s
	s.held = append(s.held, b)
	b.refresh()
}

// launchSlice makes the slice count as in flight.
func (g *GPU) launchSlice(s *slice) { g.inFlight = append(g.inFlight, s) }

// release lets go of the blocks of a slice that is over and runs who waited.
func (g *GPU) release(s *slice) {
	for i, o := range g.inFlight {
		if o == s {
			g.inFlight = remove(g.inFlight, i)
			break
		}
	}
	for _, b := range s.held {
		b.moving = nil
		if b.seg.freed {
			g.dropBlock(b)
			continue
		}
		if m := b.discardLater; m != 0 {
			b.discardLater = 0
			g.discardBlock(b, m)
		}
		if m := b.dev & b.host &^ b.readMostly; m != 0 {
			// Read-mostly was unset while it moved.
			g.setDevice(b, b.dev&^m)
			g.relist(b)
		}
		b.refresh()
	}
	for _, f := range s.waiters {
		f()
	}
	// Blocks that were held can be evicted again.
	waiting := g.roomWaiters
	g.roomWaiters = nil
	for _, f := range waiting {
		f()
	}
}

// dropBlock gives back what a block of a freed segment holds.
func (g *memory) dropBlock(b *block) {
	g.setDevice(b, 0)
	b.host = 0
	g.unlist(b)
	if b.chunk {
		b.chunk = false
		g.chunks--
	}
}

// discardBlock ends the contents of leaves m of a block that is not moving.
func (g *memory) discardBlock(b *block, m mask) {
	b.host &^= m
	if g.profile.DiscardKeepsMapping {
		b.dead |= m & b.dev
	} else {
		g.setDevice(b, b.dev&^m)
	}
	g.relist(b)
	b.refresh()
}

// server is a resource that one step at a time may hold, first come first served.
type server struct {
	queue []func(finish func())
	busy  bool
}

// serve runs step once the server is free; step calls finish when it lets go.
func (g *GPU) serve(s *server, step func(finish func())) {
	if s.busy {
		s.queue = append(s.queue, step)
		return
	}
	s.busy = true
	step(func() { g.finish(s) })
}

func (g *GPU) finish(s *server) {
	s.busy = false
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		g.serve(s, next)
	}
}
