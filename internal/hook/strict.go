package hook

/*
#include "penstock_hook.h"
static uint32_t *psk_word(uintptr_t p) { return (uint32_t *)p; }
static void psk_report_all(psk_shared *s) {
	if (s->report_all) s->report_all();
}
*/
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// This file is the engine's side of strict mode: see penstock_hook.h for what
// the hook does in it.

// Inspect says when launches of a function ask for a grant.
type Inspect uint32

// States of a function.
const (
	InspectNew     Inspect = C.PSK_INSPECT_NEW     // the first two, and those whose number is a power of 64
	InspectCleared Inspect = C.PSK_INSPECT_CLEARED // as New is after two launches
	InspectAlways  Inspect = C.PSK_INSPECT_ALWAYS
	inspectFollows Inspect = C.PSK_INSPECT_FOLLOWS // see Follow
)

// MaxUnfinished is how many commands of a stream the hook lets be queued and unfinished.
const MaxUnfinished = C.PSK_MAX_UNFINISHED

// Arrived hands the hook the pinned word to which the copy stream writes a
// ticket after each copy in. Tickets are compared cyclically.
func (h *Shared) Arrived(word cuda.Ptr) {
	*(*uintptr)(unsafe.Pointer(&h.s.arrived)) = uintptr(word)
}

// Word is a word of pinned memory that the device writes to.
type Word struct{ p *uint32 }

// NewWord views 4 bytes of pinned memory.
func NewWord(p cuda.Ptr) Word {
	return Word{(*uint32)(unsafe.Pointer(C.psk_word(C.uintptr_t(p))))}
}

// Reached says whether a ticket has been written, cyclically.
func (w Word) Reached(ticket uint32) bool { return int32(atomic.LoadUint32(w.p)-ticket) >= 0 }

// ReportAll has every stream report its last operation: without that, the last
// few look unfinished until more follow. The calling thread must be bound to the
// device; it may wait for the driver.
func (h *Shared) ReportAll() { C.psk_report_all(h.s) }

// SetGraphBytes says how much a graph may name to be launched whole.
func (h *Shared) SetGraphBytes(bytes int64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.s.graph_bytes)), uint64(max(bytes, 0)))
}

// GraphsChase has what graphs name searched at each launch: a search has found addresses there.
func (h *Shared) GraphsChase() {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.graphs_chase)), 1)
}

// SetGuarded says that a slot is on the device, and that operations wait which may write to it.
func (h *Shared) SetGuarded(slot uint32) {
	if int(slot) < len(h.states) {
		h.setState(slot, C.PSK_SLOT_GUARDED)
	}
}

// SetArriving says that a slot is mapped and its copy in submitted: operations
// that name it wait on their stream for the ticket.
func (h *Shared) SetArriving(slot, ticket uint32) {
	if int(slot) >= len(h.states) {
		return
	}
	atomic.StoreUint32(&h.tickets[slot], ticket)
	h.setState(slot, C.PSK_SLOT_ARRIVING)
}

// PublishPlain says that a run of blocks is the engine's plain device memory:
// always resident, named in no record, its addresses reported by Inspection.
func (h *Shared) PublishPlain(r cuda.Range) { h.setBlocks(r, C.PSK_SLOT_PLAIN) }

// WithdrawPlain ends that.
func (h *Shared) WithdrawPlain(r cuda.Range) { h.setBlocks(r, 0) }

// Published says whether an address lies in memory that was published, a slot's or plain.
func (h *Shared) Published(p cuda.Ptr) bool {
	b := uint64(p) >> C.PSK_BLOCK_SHIFT
	return b < uint64(len(h.blocks)) && atomic.LoadUint32(&h.blocks[b]) != 0
}

// Refuse ends the waiting for an engine that has failed: operations that name
// an absent slot or ask for a grant return the driver's error code (CUresult)
// to their caller and are not run. 0 takes it back.
func (h *Shared) Refuse(code uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.refuse)), code)
}

// Inspection is the operation that asks for a grant (a record with FlagOpaque
// or FlagInspect, and not FlagCaptured), and the addresses in its parameters
// that lie in published blocks, slots and plain ones, or in other memory that the driver knows; none are told for one
// without FlagInspect. Valid from when its record was drained until Grant; the
// addresses until the next call.
func (h *Shared) Inspection() (seq uint64, addresses []uint64) {
	seq = atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.s.inspect_seq)))
	n := min(uint32(h.s.inspect_n), C.PSK_MAX_INSPECT)
	h.addresses = h.addresses[:0]
	for _, a := range h.s.inspect_addr[:n] {
		h.addresses = append(h.addresses, uint64(a))
	}
	return seq, h.addresses
}

// Grant lets the operation that asks go. Everything that it may touch beyond
// its named slots must be on the device, copies finished.
func (h *Shared) Grant(seq uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.s.granted)), seq)
}

// SetInspect says when launches of a function ask from now on.
func (h *Shared) SetInspect(function uint32, state Inspect) {
	if f := h.function(function); f != nil {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.inspect)), uint32(state))
	}
}

// Follow has launches of a function that come right after one of another function on
// their stream, and name some of the same plain memory, name the slots of that one
// besides their own, and no longer ask, but for one in PSK_FOLLOWS_CHECKED.
func (h *Shared) Follow(function, after uint32) {
	f := h.function(function)
	if f == nil {
		return
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.follows)), after)
	h.SetInspect(function, inspectFollows)
}

// LeaveTrails has what each launch names kept for the next one on its stream, which
// may follow it.
func (h *Shared) LeaveTrails() { atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.trails)), 1) }

// SetTiming says whether operations are timed on the device now and then.
func (h *Shared) SetTiming(on bool) {
	var word uint32
	if on {
		word = 1
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.timing)), word)
}

// Timings visits what has been timed since the last call: an operation that was read, how long it took from
// one event to the other, and how long events take with nothing in between. One goroutine at a time may ask.
func (h *Shared) Timings(visit func(seq uint64, took, empty time.Duration)) {
	n := atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.s.ntimings)))
	if n-h.timed > C.PSK_TIMINGS/2 { // older ones may be written over
		h.timed = n - C.PSK_TIMINGS/2
	}
	for ; h.timed < n; h.timed++ {
		t := h.s.timings[h.timed%C.PSK_TIMINGS]
		visit(uint64(t.seq), time.Duration(t.ns), time.Duration(t.empty_ns))
	}
}

// TimingsLost is how many operations could not be timed: the device came to them before they were with it.
func (h *Shared) TimingsLost() uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.s.timings_lost)))
}

// function is a row of the table, nil when there is none.
func (h *Shared) function(id uint32) *C.psk_func {
	if id >= atomic.LoadUint32((*uint32)(unsafe.Pointer(&h.s.nfuncs))) {
		return nil
	}
	return &unsafe.Slice(h.s.funcs, C.PSK_MAX_FUNCS)[id]
}
