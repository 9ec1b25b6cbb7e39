package trace

import (
	"encoding/binary"
	"fmt"
)

// encoder turns events into the records of one chunk.
type encoder struct {
	buf    []byte
	events uint32
	last   deltas
}

func (x *encoder) reset(buf []byte) { *x = encoder{buf: buf[:0]} }

// encodable returns an error for an event that the format has no place for.
func encodable(e *Event) error {
	switch {
	case e.Kind == KindInvalid || e.Kind > kindLast:
		return fmt.Errorf("cannot record an event of kind %d", uint8(e.Kind))
	case e.Mode > AccessReadWrite || e.Copy > CopyFill || e.To > SideDevice || e.Cause > CauseAccessCounters:
		return fmt.Errorf("cannot record a %s event: mode %d, copy kind %d, side %d or cause %d is unknown", e.Kind, e.Mode, e.Copy, e.To, e.Cause)
	case len(e.Name) > maxNameBytes:
		return fmt.Errorf("cannot record a %s event: its name has %d bytes, the most is %d", e.Kind, len(e.Name), maxNameBytes)
	case len(e.Accesses) > maxAccesses:
		return fmt.Errorf("cannot record a %s event: it has %d accesses, the most is %d", e.Kind, len(e.Accesses), maxAccesses)
	}
	for i := range e.Accesses {
		if e.Accesses[i].Mode > AccessReadWrite {
			return fmt.Errorf("cannot record a %s event: access mode %d is unknown", e.Kind, e.Accesses[i].Mode)
		}
	}
	return nil
}

// add appends the record of an encodable event. Absent fields are zero, except
// Time, Stream and Process, which stay as they were in the record before.
func (x *encoder) add(e *Event) {
	head := uint64(e.Kind)
	enums := uint64(e.Mode) | uint64(e.Copy)<<2 | uint64(e.To)<<5 | uint64(e.Cause)<<6
	set := func(bit uint64, present bool) {
		if present {
			head |= bit
		}
	}
	set(hasTime, int64(e.Time) != x.last.time)
	set(hasDuration, e.Duration != 0)
	set(hasStream, e.Stream != x.last.stream)
	set(hasAlloc, e.Alloc != 0)
	set(hasBytes, e.Bytes != 0)
	set(hasAddress, e.Address != 0)
	set(hasFunction, e.Function != 0)
	set(hasGrid, e.Grid != [3]uint32{})
	set(hasBlock, e.Block != [3]uint32{})
	set(hasName, e.Name != "")
	set(hasAccesses, len(e.Accesses) != 0)
	set(hasEnums, enums != 0)
	origin := uint64(e.GPU) << 1
	if e.CopyEngine {
		origin |= 1
	}
	set(hasOrigin, origin != 0)
	set(hasBatch, e.Batch != 0)
	set(hasProcess, e.Process != x.last.process)

	b := binary.AppendUvarint(x.buf, head)
	if head&hasTime != 0 {
		b = binary.AppendUvarint(b, zigzag(int64(e.Time)-x.last.time))
		x.last.time = int64(e.Time)
	}
	if head&hasDuration != 0 {
		b = binary.AppendUvarint(b, zigzag(int64(e.Duration)))
	}
	if head&hasStream != 0 {
		b = binary.AppendUvarint(b, e.Stream)
		x.last.stream = e.Stream
	}
	if head&hasAlloc != 0 {
		b = binary.AppendUvarint(b, zigzag(int64(e.Alloc-x.last.alloc)))
		x.last.alloc = e.Alloc
	}
	if head&hasBytes != 0 {
		b = binary.AppendUvarint(b, zigzag(e.Bytes))
	}
	if head&hasAddress != 0 {
		b = binary.AppendUvarint(b, zigzag(int64(e.Address-x.last.address)))
		x.last.address = e.Address
	}
	if head&hasFunction != 0 {
		b = binary.AppendUvarint(b, uint64(e.Function))
	}
	if head&hasGrid != 0 {
		b = appendDim(b, e.Grid)
	}
	if head&hasBlock != 0 {
		b = appendDim(b, e.Block)
	}
	if head&hasName != 0 {
		b = binary.AppendUvarint(b, uint64(len(e.Name)))
		b = append(b, e.Name...)
	}
	if head&hasAccesses != 0 {
		b = binary.AppendUvarint(b, uint64(len(e.Accesses)))
		for i := range e.Accesses {
			a := &e.Accesses[i]
			if a.Offset == 0 {
				b = append(b, byte(a.Mode))
			} else {
				b = append(b, byte(a.Mode)|accessHasOffset)
				b = binary.AppendUvarint(b, a.Offset)
			}
			b = binary.AppendUvarint(b, zigzag(int64(a.Alloc-x.last.accessed)))
			x.last.accessed = a.Alloc
		}
	}
	if head&hasEnums != 0 {
		b = binary.AppendUvarint(b, enums)
	}
	if head&hasOrigin != 0 {
		b = binary.AppendUvarint(b, origin)
	}
	if head&hasBatch != 0 {
		b = binary.AppendUvarint(b, zigzag(int64(int32(e.Batch-x.last.batch))))
		x.last.batch = e.Batch
	}
	if head&hasProcess != 0 {
		b = binary.AppendUvarint(b, uint64(e.Process))
		x.last.process = e.Process
	}
	x.buf = b
	x.events++
}

func appendDim(b []byte, dim [3]uint32) []byte {
	for _, v := range dim {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}
