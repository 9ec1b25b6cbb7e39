package faults

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Offsets in the control block that the driver shares with the reader.
const (
	ctrlGetAhead  = 0
	ctrlGetBehind = 4
	ctrlPutAhead  = 8
	ctrlPutBehind = 12
	ctrlDropped   = 16 // uint64 for each of 64 types
	ctrlBytes     = 528
)

// publishEvery is how many entries are read before the driver may reuse them:
// often enough to make room during a burst, seldom enough to cost nothing.
const publishEvery = 1024

// ring is the reader's side of the queue. The driver fills an entry and then
// moves put; the reader empties it and then moves get.
type ring struct {
	queue   []byte // entries × EntryBytes
	control []byte
	mask    uint32
	unknown uint64 // entries that Decode refused
}

func newRing(queue, control []byte) (*ring, error) {
	entries := len(queue) / EntryBytes
	if entries < 2 || entries&(entries-1) != 0 || len(queue)%EntryBytes != 0 || uint64(entries) > 1<<31 {
		return nil, fmt.Errorf("faults: a ring of %d entries: choose a power of two from 2 to 2^31", entries)
	}
	if len(control) < ctrlBytes {
		return nil, fmt.Errorf("faults: a control block of %d bytes: it takes %d", len(control), ctrlBytes)
	}
	return &ring{queue: queue, control: control, mask: uint32(entries - 1)}, nil
}

func (r *ring) index(at int) *uint32 { return (*uint32)(unsafe.Pointer(&r.control[at])) }

// drain appends the events that were there when it began.
func (r *ring) drain(dst []Event) []Event {
	put := atomic.LoadUint32(r.index(ctrlPutBehind)) & r.mask
	get := atomic.LoadUint32(r.index(ctrlGetBehind)) & r.mask
	for n := 1; get != put; n++ {
		at := int(get) * EntryBytes
		if e, err := Decode(r.queue[at : at+EntryBytes]); err != nil {
			r.unknown++
		} else {
			dst = append(dst, e)
		}
		get = (get + 1) & r.mask
		if get == put || n%publishEvery == 0 {
			atomic.StoreUint32(r.index(ctrlGetAhead), get)
			atomic.StoreUint32(r.index(ctrlGetBehind), get)
		}
	}
	return dst
}

// waiting is how many entries there are to read.
func (r *ring) waiting() int {
	put, get := atomic.LoadUint32(r.index(ctrlPutBehind)), atomic.LoadUint32(r.index(ctrlGetBehind))
	return int((put - get) & r.mask)
}

// dropped is how many events found the ring full.
func (r *ring) dropped() uint64 {
	var sum uint64
	for _, kind := range []int{typeCPUFault, typeMigration, typeGPUFault, typeThrashing, typeMapRemote} {
		sum += atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.control[ctrlDropped+8*kind])))
	}
	return sum
}
