package front

/*
#include "front.h"
*/
import "C"

import (
	"sync/atomic"

	"github.com/penstock-gpu/penstock/cuda"
)

// Script is what the owner foresees of the requests that are larger than what is served by size: they come again in
// the same order, each at an address of its own.
type Script struct {
	Bytes  []int64    // of each request, in whole units; negative: it has no place, and ends the script
	At     []cuda.Ptr // likewise
	First  []uint32   // where the others of each begin in Others; one more than there are requests
	Others []uint32   // which requests lie where one does, too, wholly or in part
	Start  int        // the first request that is repeated, after the last
	Stream uint64     // of all of them
	Unit   int64      // of bytes
	Range  cuda.Range // all addresses, which nobody else gives out or frees meanwhile
}

// Load takes a script over; false when there is no memory for it.
func (f *Front) Load(s *Script) bool {
	if len(s.Bytes) == 0 {
		return false
	}
	var others *C.uint32_t
	if len(s.Others) > 0 {
		others = (*C.uint32_t)(&s.Others[0])
	}
	return C.front_script_load(f.c, C.uint64_t(s.Range.Base), C.uint64_t(s.Range.End()), C.uint64_t(s.Stream), C.int64_t(s.Unit), C.int32_t(s.Start),
		C.int32_t(len(s.Bytes)), (*C.int64_t)(&s.Bytes[0]), (*C.uint64_t)(&s.At[0]), (*C.uint32_t)(&s.First[0]), others) != 0
}

// Follow serves requests by the script that was loaded, from the one with a number on, and frees what lies at its
// places, until the first one that is repeated was due so many times; live has of each request what was asked for by the
// allocation that is live now, 0 for none.
func (f *Front) Follow(next, mostTurns int, live []int64) {
	C.front_script_begin(f.c, C.int32_t(next), C.int64_t(mostTurns), (*C.int64_t)(&live[0]))
}

// Followed is what was done by the script since it began.
type Followed struct {
	Next        int // the request that is to come
	Turns       int // how often the first one that is repeated was due
	Served      int64
	ServedBytes int64
	Freed       int64
	GrownBytes  int64 // live bytes, over those when it began: they count in HeldBytes, as negative, until Account
}

// Unfollow ends that, and says what was done; ok is false when no script is followed. The live bytes of each
// request are written to live.
func (f *Front) Unfollow(live []int64) (done Followed, ok bool) {
	if len(live) == 0 || C.front_script_end(f.c, (*C.int64_t)(&live[0])) == 0 {
		return done, false
	}
	s := &f.c.script
	return Followed{
		Next: int(s.next), Turns: int(s.turns), Served: int64(s.served), ServedBytes: int64(s.served_bytes), Freed: int64(s.freed),
		GrownBytes: int64(s.grown),
	}, true
}

// Account ends what counts as held for a script, since its owner has it on its own account.
func (f *Front) Account(grownBytes int64) { atomic.AddInt64((*int64)(&f.c.held), grownBytes) }

// Following is how many requests the script has served and how many frees, since it began; 0 when none is followed.
func (f *Front) Following() (served, freed int64) {
	if atomic.LoadInt32((*int32)(&f.c.script.on)) == 0 {
		return 0, 0
	}
	return atomic.LoadInt64((*int64)(&f.c.script.served)), atomic.LoadInt64((*int64)(&f.c.script.freed))
}
