package swapped

import (
	"slices"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// This file finds out which kernels reach through memory no more than what the kernel
// before them on the stream names: a grouped GEMM's addresses are computed by the
// kernel before it, from its own parameters. Such launches need not be searched, which
// waits for the stream, but for one in 64. See trail.c of the hook.

// trail is the last launch on a stream; its function is noFunction for anything else.
type trail struct {
	function uint32
	slots    []uint32
}

const noFunction = ^uint32(0)

// trails are those of all streams, by the hook's index.
type trails []trail

// step enters an operation and answers what came before it on its stream, if it asks.
func (t *trails) step(rec *hook.Record) (before trail) {
	for len(*t) <= rec.Stream {
		*t = append(*t, trail{function: noFunction})
	}
	at := &(*t)[rec.Stream]
	if rec.Flags&hook.FlagInspect != 0 {
		before = trail{at.function, slices.Clone(at.slots)}
	}
	at.function = noFunction
	if rec.Kind == hook.Launch {
		at.function, at.slots = rec.ID, append(at.slots[:0], rec.Slots...)
	}
	return before
}

// chaser is what is known of a function that reaches tensors through memory.
type chaser struct {
	after   uint32 // the function before it, in the searches that count
	follows int    // searches in a row that found only what that one, or it itself, names
	nothing int    // searches in a row that found nothing
	strays  bool   // it followed, and then one found something else: it is never trusted again
}

const (
	// followsAfter is how many searches in a row must have shown that a function follows.
	followsAfter = 16
	// clearedAfter is how many must have found nothing, when one has found something.
	clearedAfter = 16
)

// judge says, after a search, when launches of a function are searched from now on: by the
// tensors that were found, and by whether it reaches any memory through addresses.
func (e *Engine) judge(q *question, found []cuda.Ptr, chases bool) {
	if q.function == noFunction {
		if chases || len(found) > 0 {
			e.hook.GraphsChase()
		}
		return // a graph: its kernels are judged by their own launches
	}
	c := e.chasersOf[q.function]
	if c == nil && !chases {
		return // the hook has the first two searched, and some later ones
	}
	if c == nil {
		c = &chaser{after: noFunction}
		e.chasersOf[q.function] = c
		e.hook.SetInspect(q.function, hook.InspectAlways)
		e.hook.LeaveTrails()
	}
	if len(found) == 0 {
		if chases {
			c.nothing = 0
			return
		}
		if c.nothing++; c.nothing == clearedAfter {
			delete(e.chasersOf, q.function)
			e.hook.SetInspect(q.function, hook.InspectCleared)
		}
		return
	}
	c.nothing = 0
	followed := c.trusted()
	stray := slices.ContainsFunc(found, func(p cuda.Ptr) bool {
		slot := e.runtime.SlotAt(p)
		return !slices.Contains(q.named, slot) && !slices.Contains(q.before.slots, slot)
	})
	switch {
	case stray || q.before.function == noFunction:
		c.follows, c.strays = 0, c.strays || followed && stray
	case q.before.function != c.after:
		c.after, c.follows = q.before.function, 1
	default:
		c.follows++
	}
	name := zap.String("kernel", e.proc.Hook.FunctionName(q.function))
	switch {
	case followed && !c.trusted():
		e.hook.SetInspect(q.function, hook.InspectAlways)
		e.proc.Log.Info("a kernel no longer reaches just what the same one before it names: it is searched each time again", name)
	case c.trusted() && c.follows == followsAfter && !e.config.Verify:
		e.hook.Follow(q.function, c.after)
		e.proc.Log.Info("a kernel reaches what the one before it names: it is searched now and then", name, zap.String("after", e.proc.Hook.FunctionName(c.after)))
	}
}

func (c *chaser) trusted() bool { return c.follows >= followsAfter && !c.strays }
