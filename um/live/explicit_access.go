package live

import (
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/trace/roles"
	"github.com/penstock-gpu/penstock/um"
)

// accesses tells the runtime what operations do with what they name, as far as the launch hook knows it, and which launches can be
// issued again: those of kernels that are known by their names to write to one operand only.
type accesses struct {
	operands map[uint32]*roles.Operands // by function; nil: who knows
	of       []um.Access                // those of the newest operation
	unloads  uint32                     // modules that had been unloaded when that was last looked at
}

// note completes an operation.
func (c *accesses) note(e *swap, rec *hook.Record, o *um.Op) {
	if n := e.hook.Unloads(); n != c.unloads { // handles of functions may mean others
		c.unloads = n
		e.runtime.ForgetLaunches()
	}
	if rec.Kind == hook.Launch {
		c.launch(e, rec, o)
	}
	c.of = c.of[:0]
	if rec.Flags&hook.FlagAccess != 0 {
		for range rec.Slots {
			c.of = append(c.of, um.AccessReads)
		}
		if rec.Flags&hook.FlagHasDst != 0 && len(c.of) > 0 {
			c.of[0] = um.AccessWrites
		}
	}
	o.Access = c.of
}

// launch looks at one of a function, and at how it can be issued again if it was recorded.
func (c *accesses) launch(e *swap, rec *hook.Record, o *um.Op) {
	operands, seen := c.operands[rec.ID]
	if !seen {
		if x, ok := roles.OperandsOf(o.Name); ok {
			operands = &x
			e.hook.SetRecord(rec.ID, x.Written)
		}
		c.operands[rec.ID] = operands
	}
	const writes = hook.FlagAccess | hook.FlagHasDst
	if operands == nil || rec.Recorded == 0 || rec.Flags&writes != writes {
		return
	}
	l := e.hook.Launch(rec)
	if l == nil {
		return
	}
	again := l
	for _, p := range operands.Parameters {
		if p.Index >= len(l.Starts) {
			return
		}
		at := (l.Starts[p.Index] + 7) &^ 7
		for range p.Addresses {
			if int(at)+8 > len(l.Params) {
				return
			}
			again.Addresses = append(again.Addresses, at)
			at += 8
		}
	}
	o.Again = again
}
