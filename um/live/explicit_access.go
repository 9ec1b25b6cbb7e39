package live

import (
	"encoding/binary"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/trace/roles"
	"github.com/penstock-gpu/penstock/um"
)

// accesses tells the runtime what operations do with what they name, as far as that is known, and which launches can be
// made again: those of kernels that are known by their names to write to one operand only.
type accesses struct {
	writes  map[uint32]int // by function: the parameter that begins with the address of what it writes to; -1: who knows
	of      []um.Access    // those of the newest operation
	unloads uint32         // modules that had been unloaded when that was last looked at
}

// note completes an operation.
func (c *accesses) note(e *swap, rec *hook.Record, o *um.Op) {
	if n := e.hook.Unloads(); n != c.unloads { // handles of functions may mean others
		c.unloads = n
		e.runtime.ForgetLaunches()
	}
	c.of = c.of[:0]
	switch rec.Kind {
	case hook.Launch:
		c.launch(e, rec, o)
	case hook.Copy:
		c.copy(rec)
	}
	o.Access = c.of
}

// copy notes the accesses of a copy or a fill.
func (c *accesses) copy(rec *hook.Record) {
	for i := range rec.Slots {
		a := um.AccessReads
		switch {
		case rec.ID == hook.CopyFill || rec.Flags&hook.FlagHasDst != 0 && i == 0:
			a = um.AccessWrites
		case rec.ID != hook.CopyH2D && rec.ID != hook.CopyD2H && rec.ID != hook.CopyD2D:
			a = um.AccessUnknown
		}
		c.of = append(c.of, a)
	}
}

// launch notes those of a launch that has been recorded.
func (c *accesses) launch(e *swap, rec *hook.Record, o *um.Op) {
	index, seen := c.writes[rec.ID]
	if !seen {
		index = roles.WritesOneParameter(o.Name)
		if c.writes[rec.ID] = index; index >= 0 {
			e.hook.SetRecord(rec.ID)
		}
	}
	if index < 0 || rec.Recorded == 0 {
		return
	}
	l := e.hook.Launch(rec)
	if l == nil || index >= len(l.Starts) {
		return
	}
	at := int(l.Starts[index]+7) &^ 7
	if at+8 > len(l.Params) {
		return
	}
	written := e.runtime.SlotAt(cuda.Ptr(binary.LittleEndian.Uint64(l.Params[at:])))
	if !slices.Contains(rec.Slots, written) {
		return // of plain memory, or something that looks like an address
	}
	for _, s := range rec.Slots {
		a := um.AccessReads
		if s == written {
			a, o.Again = um.AccessWrites, l
		}
		c.of = append(c.of, a)
	}
}
