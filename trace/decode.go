package trace

import (
	"encoding/binary"
	"math"
	"time"
)

// decoder takes events out of one chunk's payload.
type decoder struct {
	buf     []byte
	pos     int
	last    deltas
	slab    []Access // accesses are cut from it and belong to the caller afterwards
	problem string   // the first one; decoding stops at it
}

// reset starts on the next payload, which the decoder must own until it is used up.
func (d *decoder) reset(payload []byte) {
	d.buf, d.pos, d.last, d.problem = payload, 0, deltas{}, ""
}

func (d *decoder) fail(problem string) {
	if d.problem == "" {
		d.problem = problem
	}
	d.pos = len(d.buf)
}

func (d *decoder) uint() uint64 {
	// One byte is by far the commonest.
	if d.pos < len(d.buf) && d.buf[d.pos] < 0x80 {
		v := d.buf[d.pos]
		d.pos++
		return uint64(v)
	}
	v, n := binary.Uvarint(d.buf[d.pos:])
	if n <= 0 {
		d.fail("a number in a record is cut short or too large")
		return 0
	}
	d.pos += n
	return v
}

func (d *decoder) uint32() uint32 {
	v := d.uint()
	if v > math.MaxUint32 {
		d.fail("a number in a record is too large")
	}
	return uint32(v)
}

func (d *decoder) int() int64 { return unzigzag(d.uint()) }

// next decodes one record. When it returns false the payload is used up, or damaged if problem is set.
func (d *decoder) next(e *Event) bool {
	if d.pos >= len(d.buf) {
		return false
	}
	head := d.uint()
	*e = Event{Kind: Kind(head & 15)}
	if e.Kind == KindInvalid || e.Kind > kindLast || head > knownBits {
		d.fail("a record is of no known kind")
		return false
	}
	if head&hasTime != 0 {
		d.last.time += d.int()
	}
	e.Time = time.Duration(d.last.time)
	if head&hasDuration != 0 {
		e.Duration = time.Duration(d.int())
	}
	if head&hasStream != 0 {
		d.last.stream = d.uint()
	}
	e.Stream = d.last.stream
	if head&hasAlloc != 0 {
		d.last.alloc += uint64(d.int())
		e.Alloc = d.last.alloc
	}
	if head&hasBytes != 0 {
		e.Bytes = d.int()
	}
	if head&hasAddress != 0 {
		d.last.address += uint64(d.int())
		e.Address = d.last.address
	}
	if head&hasFunction != 0 {
		e.Function = d.uint32()
	}
	if head&hasGrid != 0 {
		e.Grid = [3]uint32{d.uint32(), d.uint32(), d.uint32()}
	}
	if head&hasBlock != 0 {
		e.Block = [3]uint32{d.uint32(), d.uint32(), d.uint32()}
	}
	if head&hasName != 0 {
		e.Name = d.name()
	}
	if head&hasAccesses != 0 {
		e.Accesses = d.accesses()
	}
	if head&hasEnums != 0 {
		v := d.uint()
		e.Mode, e.Copy, e.To, e.Cause = AccessMode(v&3), CopyKind(v>>2&7), Side(v>>5&1), Cause(v>>6&7)
		if v >= 1<<9 || e.Copy > CopyFill || e.Cause > CauseAccessCounters {
			d.fail("a record has an unknown copy kind or cause")
		}
	}
	if head&(hasOrigin|hasBatch|hasProcess) != 0 {
		d.late(head, e)
	}
	e.Process = d.last.process
	return d.problem == ""
}

// late decodes the fields that came with version 2.
func (d *decoder) late(head uint64, e *Event) {
	if head&hasOrigin != 0 {
		v := d.uint()
		if v > math.MaxUint8<<1|1 {
			d.fail("a record has an impossible GPU number")
		}
		e.GPU, e.CopyEngine = uint8(v>>1), v&1 != 0
	}
	if head&hasBatch != 0 {
		v := d.int()
		if int64(int32(v)) != v {
			d.fail("a record has an impossible batch")
		}
		d.last.batch += uint32(v)
		e.Batch = d.last.batch
	}
	if head&hasProcess != 0 {
		d.last.process = d.uint32()
	}
}

func (d *decoder) name() string {
	n := d.uint()
	if n > maxNameBytes || n > uint64(len(d.buf)-d.pos) {
		d.fail("a name in a record is too long")
		return ""
	}
	name := string(d.buf[d.pos : d.pos+int(n)])
	d.pos += int(n)
	return name
}

func (d *decoder) accesses() []Access {
	n := d.uint()
	// Every access takes two bytes or more: what is claimed but not there is never allocated.
	if n == 0 || n > maxAccesses || n > uint64(len(d.buf)-d.pos)/2 {
		d.fail("a record claims an impossible number of accesses")
		return nil
	}
	if uint64(cap(d.slab)-len(d.slab)) < n {
		d.slab = make([]Access, 0, max(int(n), 2048))
	}
	start := len(d.slab)
	for range n {
		if d.pos >= len(d.buf) {
			d.fail("a record is cut short")
			return nil
		}
		head := d.buf[d.pos]
		d.pos++
		if head > accessModeBits|accessHasOffset {
			d.fail("an access in a record is of no known kind")
			return nil
		}
		a := Access{Mode: AccessMode(head & accessModeBits)}
		if head&accessHasOffset != 0 {
			a.Offset = d.uint()
		}
		d.last.accessed += uint64(d.int())
		a.Alloc = d.last.accessed
		d.slab = append(d.slab, a)
	}
	return d.slab[start:len(d.slab):len(d.slab)]
}
