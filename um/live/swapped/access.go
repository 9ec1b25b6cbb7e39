package swapped

import (
	"encoding/binary"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/trace/roles"
	"github.com/penstock-gpu/penstock/um"
)

// accesses tells the runtime what operations do with what they name, as far as that is known, and which launches can be issued
// again: those of kernels of which the name tells what they write to, and those of which trials do (trial.go).
type accesses struct {
	functions  map[uint32]*recorded        // nil: of which nothing is recorded
	long       map[uint32]bool             // launches of which take long
	tried      map[cuda.Function]*recorded // of these, those of which trials tell what they write to
	workspaces map[named]bool              // that products write to
	products   products
	tries      bool        // addresses do not look like numbers, so that trials can tell
	of         []um.Access // those of the newest operation
	unloads    uint32      // modules that had been unloaded when that was last looked at
}

// recorded is a function whose launches are recorded.
type recorded struct {
	id       uint32
	operands *roles.Operands // as its name tells; nil: trials tell
	product  bool            // its launches take long
	told     bool            // the launch hook knows what its launches write to
	trial
}

func newAccesses() accesses {
	return accesses{functions: map[uint32]*recorded{}, long: map[uint32]bool{}, tried: map[cuda.Function]*recorded{}, workspaces: map[named]bool{}, products: products{by: map[named]map[cuda.Function]int{}}}
}

// note completes an operation.
func (c *accesses) note(e *Engine, rec *hook.Record, o *um.Op) {
	if n := e.hook.Unloads(); n != c.unloads { // handles of functions may mean others
		c.unloads = n
		clear(c.tried)
		e.runtime.ForgetLaunches()
	}
	c.of = c.of[:0]
	if rec.Flags&hook.FlagAccess != 0 {
		written := rec.Written()
		for i := range rec.Slots {
			switch {
			case i >= written:
				c.of = append(c.of, um.AccessReads)
			case written == 1:
				c.of = append(c.of, um.AccessWrites)
			default:
				c.of = append(c.of, um.AccessUnknown)
			}
		}
	}
	o.Access = c.of
	if rec.Kind == hook.Launch {
		c.launch(e, rec, o)
	}
}

// launch looks at one of a function, and at how it can be issued again if it was recorded.
func (c *accesses) launch(e *Engine, rec *hook.Record, o *um.Op) {
	f, seen := c.functions[rec.ID]
	if !seen {
		x, named := roles.OperandsOf(o.Name)
		tried, long := roles.ByTrial(o.Name)
		c.long[rec.ID] = long
		if named || c.tries && tried {
			if f = (&recorded{id: rec.ID, product: long}); named {
				f.operands = &x
			}
			e.hook.SetRecord(rec.ID, nil)
		}
		c.functions[rec.ID] = f
	}
	o.Product = c.long[rec.ID]
	if f == nil || rec.Recorded == 0 {
		return
	}
	l := e.hook.Launch(rec)
	if l == nil {
		return
	}
	if f.operands == nil {
		c.byTrial(e, rec, o, f, l)
		return
	}
	written, ok := addresses(l, f.operands)
	if !ok {
		return
	}
	if !f.told {
		f.told = true
		e.hook.SetRecord(rec.ID, []uint32{written})
	}
	switch {
	case rec.Flags&hook.FlagAccess == 0: // it was launched before the hook knew
		c.of = c.of[:0]
		for _, s := range rec.Slots {
			access := um.AccessUnknown
			if r, p := e.runtime.SlotRange(s), l.Address(written); p >= r.Base && p < r.End() {
				access, o.Again, o.Written = um.AccessWrites, l, []cuda.Ptr{p}
			}
			c.of = append(c.of, access)
		}
		o.Access = c.of
	case rec.Written() == 1:
		o.Again, o.Written = l, []cuda.Ptr{l.Address(written)}
	}
}

// addresses enters where a launch's parameters have addresses, and answers where that of what it writes to is.
func addresses(l *cuda.RecordedLaunch, operands *roles.Operands) (written uint32, ok bool) {
	for _, p := range operands.Parameters {
		if p.Index >= len(l.Starts) {
			return 0, false
		}
		at := (l.Starts[p.Index] + 7) &^ 7
		if p.Index == operands.Written {
			written, ok = at, true
		}
		for range p.Addresses {
			if int(at)+8 > len(l.Params) {
				return 0, false
			}
			l.Addresses = append(l.Addresses, at)
			at += 8
		}
	}
	return written, ok
}

// addressWords are the offsets in a launch's parameters at which an address may lie: an address lies in one parameter.
func addressWords(l *cuda.RecordedLaunch, yield func(offset uint32, p cuda.Ptr) bool) {
	for i, start := range l.Starts {
		end := uint32(len(l.Params))
		if i+1 < len(l.Starts) {
			end = l.Starts[i+1]
		}
		for at := (start + 7) &^ 7; at+8 <= end; at += 8 {
			p := cuda.Ptr(binary.LittleEndian.Uint64(l.Params[at:]))
			if p < 1<<32 || p >= 1<<47 { // no address of a device
				continue
			}
			if !yield(at, p) {
				return
			}
		}
	}
}

// hiddenAddresses finds what looks like an address in a launch's parameters where none is known to be: where it lies.
func (e *Engine) hiddenAddresses(l *cuda.RecordedLaunch) (offsets []uint32) {
	addressWords(l, func(at uint32, p cuda.Ptr) bool {
		if slices.Contains(l.Addresses, at) || slices.Contains(l.Stale, at) {
			return true
		}
		known := e.hook.Published(p)
		if !known && !e.runtime.Owns(p) { // the driver knows all that is reserved
			_, known = e.proc.Driver.AllocationAt(p)
		}
		if known {
			offsets = append(offsets, at)
		}
		return true
	})
	return offsets
}
