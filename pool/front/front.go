package front

/*
#include "front.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// All is for Serve: every size that there are addresses for. Larger ones may overflow where sizes are rounded up.
const All = 1 << 47

// Front serves requests before its owner does. Its methods are the owner's side, to be
// called with the owner's lock held, but for the counters.
type Front struct {
	c      *C.struct_front
	device int
	at     [256]uint64
	notes  [C.FRONT_NOTES]C.struct_front_note
}

// New returns a front that serves nothing yet. It stays for the rest of the process.
func New(device int) (*Front, error) {
	c := C.front_new()
	if c == nil {
		return nil, errors.New("no host memory for the front of the pool")
	}
	return &Front{c: c, device: device}, nil
}

// Stand says whose front it is, before it serves anything: that of an owner of the
// addresses of a range, for requests of at least so many bytes, which are alike when they
// are in whole units. Notes get their time from the clock.
func (f *Front) Stand(r cuda.Range, leastBytes, unitBytes int64, clock *uint64) {
	f.c.base, f.c.end = C.uint64_t(r.Base), C.uint64_t(r.End())
	f.c.least, f.c.unit = C.int64_t(leastBytes), C.int64_t(unitBytes)
	f.c.clock = (*C.uint64_t)(unsafe.Pointer(clock))
}

// NoteBirths has it remember when the newest few allocations were given out, by a clock
// that stays for as long as the process lives.
func (f *Front) NoteBirths(clock *uint64) {
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(&f.c.birth_clock)), unsafe.Pointer(clock))
}

// C is the struct front, for the C side.
func (f *Front) C() unsafe.Pointer { return unsafe.Pointer(f.c) }

// Serve sets up to which size, in bytes, requests are served, and above which they
// are noted. newEpoch says that allocations under way are not to be held.
func (f *Front) Serve(most, notedAbove int64, newEpoch bool) {
	epoch := C.int(0)
	if newEpoch {
		epoch = 1
	}
	C.front_serve(f.c, C.int32_t(f.device), C.int64_t(most), C.int64_t(notedAbove), epoch)
}

// Empty hands back what is held of more than above bytes each, and at most to. The caller frees it, then calls Settle.
func (f *Front) Empty(above, to int64, free func(cuda.Ptr)) (bytes int64) {
	for {
		var n C.int64_t
		k := C.front_empty(f.c, C.int64_t(above), C.int64_t(to), (*C.uint64_t)(&f.at[0]), C.int32_t(len(f.at)), &n)
		bytes += int64(n)
		for _, at := range f.at[:k] {
			free(cuda.Ptr(at))
		}
		if int(k) < len(f.at) {
			return bytes
		}
	}
}

// Held is what is held by size, at this moment: it is free to the job.
func (f *Front) Held() map[cuda.Ptr]struct{} {
	at := make([]uint64, max(1, f.HeldCount()))
	for {
		n := int(C.front_list(f.c, (*C.uint64_t)(&at[0]), C.int64_t(len(at))))
		if n > len(at) { // more since
			at = make([]uint64, n)
			continue
		}
		held := make(map[cuda.Ptr]struct{}, n)
		for _, p := range at[:n] {
			held[cuda.Ptr(p)] = struct{}{}
		}
		return held
	}
}

// Settle says how many bytes are allocated for the pool now, those held among them, and
// how many of those counted as held were freed.
func (f *Front) Settle(live, freed int64) {
	atomic.StoreInt64((*int64)(&f.c.live), live)
	if freed != 0 {
		atomic.AddInt64((*int64)(&f.c.held), -freed)
	}
}

// Offer holds memory of the owner's for a request, as if it had been allocated and freed.
func (f *Front) Offer(at cuda.Ptr, bytes int64, stream uint64) bool {
	return C.front_offer(f.c, C.uint64_t(at), C.int64_t(bytes), C.uint64_t(stream)) != 0
}

// SetApart notes an allocation that the owner is about to give out and that the front is never to hold: its free
// is noted, and nothing more. False when there is no memory to note it in.
func (f *Front) SetApart(at cuda.Ptr, bytes int64, stream uint64) bool {
	return C.front_set_apart(f.c, C.uint64_t(at), C.int64_t(bytes), C.uint64_t(stream)) != 0
}

// Requests is how many requests of a size and stream have come: the number of the next one.
func (f *Front) Requests(bytes int64, stream uint64) uint64 {
	return uint64(C.front_requests(f.c, C.int64_t(bytes), C.uint64_t(stream)))
}

// Reserve keeps a range of the owner's for the request of a size and stream that has a number, if that asks for no more
// than the range has: it is given out and noted, and so is its free, after which it is not held. False when that request has
// come already, or when there is no memory to note it in.
func (f *Front) Reserve(r cuda.Range, bytes int64, stream, request uint64) bool {
	return C.front_reserve(f.c, C.uint64_t(r.Base), C.int64_t(r.Bytes), C.int64_t(bytes), C.uint64_t(stream), C.uint64_t(request)) != 0
}

// Recall takes one allocation back that is reserved, or held since a note that the owner
// has seen, which is the number of notes that it has dealt with.
func (f *Front) Recall(at cuda.Ptr, seen uint64) bool {
	return C.front_recall(f.c, C.uint64_t(at), C.uint64_t(seen)) != 0
}

// SetMost says how many bytes may be given out here, in whole units and less those
// held here, of all time.
func (f *Front) SetMost(bytes int64) { atomic.StoreInt64((*int64)(&f.c.most_taken), bytes) }

// BornAt is when, by the clock of [Front.NoteBirths], a live allocation was given out, by the front or by its
// owner: of what the front serves again, and of the newest few of all else.
func (f *Front) BornAt(at cuda.Ptr) (when uint64, ok bool) {
	var w C.uint64_t
	ok = C.front_born_at(f.c, C.uint64_t(at), &w) != 0
	return uint64(w), ok
}

// HasNotes says whether there is something for Notes.
func (f *Front) HasNotes() bool { return atomic.LoadUint32((*uint32)(&f.c.notes)) != 0 }

// Note is a call that was served.
type Note struct {
	At     cuda.Ptr
	Bytes  int64 // as asked for; 0: a free
	Stream uint64
	When   uint64 // by the clock
	// Requests is how many of that size and stream had come, this one included: the number of the next.
	Requests uint64
}

// Notes visits the calls that were noted, in order.
func (f *Front) Notes(visit func(Note)) {
	for _, n := range f.notes[:C.front_read(f.c, &f.notes[0])] {
		visit(Note{At: cuda.Ptr(n.at), Bytes: int64(n.bytes), Stream: uint64(n.stream), When: uint64(n.when), Requests: uint64(n.requests)})
	}
}

// ResetPeak makes the present the peak.
func (f *Front) ResetPeak() { C.front_reset_peak(f.c) }

// HeldBytes are held now; they are free to the job, and allocated to the pool.
func (f *Front) HeldBytes() int64 { return atomic.LoadInt64((*int64)(&f.c.held)) }

// ShelvedBytes are held now of what is served by size: all that is held, but for what a script has given out or taken.
func (f *Front) ShelvedBytes() int64 {
	if atomic.LoadInt32((*int32)(&f.c.script.on)) == 0 {
		return f.HeldBytes()
	}
	return f.HeldBytes() + atomic.LoadInt64((*int64)(&f.c.script.grown))
}

// HeldCount is how many allocations are held.
func (f *Front) HeldCount() int64 { return atomic.LoadInt64((*int64)(&f.c.held_count)) }

// Served is how many requests were served.
func (f *Front) Served() int64 { return atomic.LoadInt64((*int64)(&f.c.served)) }

// LivePeakBytes is the highest number of live bytes at a request served here.
func (f *Front) LivePeakBytes() int64 { return atomic.LoadInt64((*int64)(&f.c.live_peak)) }

// ---- the job's side, for tests: cabi/exports.c does this in C ----

// Take is memory that is held for a request; 0: the pool is to be asked, and Add told.
func (f *Front) Take(bytes int64, stream uint64) (at cuda.Ptr, epoch uint32) {
	var e C.uint32_t
	p := C.front_take(f.c, C.int64_t(bytes), C.int(f.device), C.uint64_t(stream), &e)
	return cuda.Ptr(p), uint32(e)
}

// Add says what the pool gave.
func (f *Front) Add(at cuda.Ptr, bytes int64, stream uint64, epoch uint32) {
	C.front_add(f.c, C.uint64_t(at), C.int64_t(bytes), C.uint64_t(stream), C.uint32_t(epoch))
}

// Freed is what Hold did.
type Freed int

// What Hold did.
const (
	Pass    Freed = C.FRONT_PASS     // nothing: the pool is to free it
	Held    Freed = C.FRONT_HELD     // it is held
	NotLive Freed = C.FRONT_NOT_LIVE // it was freed before
)

// Hold holds what is freed.
func (f *Front) Hold(at cuda.Ptr) Freed { return Freed(C.front_hold(f.c, C.uint64_t(at))) }

// Forget is called when another stream uses an allocation. It says whether the pool is to be told.
func (f *Front) Forget(at cuda.Ptr) bool { return C.front_forget(f.c, C.uint64_t(at)) != 0 }
