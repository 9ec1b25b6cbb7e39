package main

/*
#include <stdlib.h>
#include <string.h>
#include "alloc_log.h"
#include "exports.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-gpu/penstock/internal/hook"
)

// allocLog is the Go side of alloc_log.h. The memory stays for the rest of the process.
type allocLog struct {
	c     *C.struct_alloc_log
	units []C.struct_alloc_unit

	// Under the recording's lock (record.Log.AddAll).
	times *hook.Times
	next  uint64
	lost  uint64
}

// allocCall is an allocation, or with 0 bytes a free.
type allocCall struct {
	nanos  int64
	at     uint64
	bytes  int64
	stream uint64
}

func newAllocLog() (*allocLog, error) {
	const line, bytes = 64, C.ALLOC_LOG_UNITS * C.sizeof_struct_alloc_unit
	c := C.exports_alloc_log()
	if c.tail == nil {
		memory := C.aligned_alloc(line, line+bytes)
		if memory == nil {
			return nil, errors.New("no host memory to record allocations in")
		}
		C.memset(memory, 0, line+bytes)
		c.tail = (*C.uint64_t)(memory)
		c.stamp = C.uint32_t(hook.Stamping())
	}
	next := atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.head))) // what an earlier recording left is not for this one
	atomic.StoreUint64((*uint64)(unsafe.Pointer(c.tail)), next)
	units := unsafe.Slice((*C.struct_alloc_unit)(unsafe.Add(unsafe.Pointer(c.tail), line)), C.ALLOC_LOG_UNITS)
	return &allocLog{c: c, units: units, times: hook.NewTimes(hook.Stamping()), next: next, lost: uint64(c.lost)}, nil
}

// use says whether calls are noted from now on.
func (l *allocLog) use(on bool) {
	if on {
		C.exports_use_alloc_log(unsafe.Pointer(&l.units[0]))
	} else {
		C.exports_use_alloc_log(nil)
	}
}

// head is how many units were taken.
func (l *allocLog) head() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&l.c.head))) }

// word is one of a unit's at a position: its value, whether it begins an allocation, and whether it was written.
func (l *allocLog) word(n uint64) (value uint64, alloc, written bool) {
	const above = 1 << C.ALLOC_LOG_VALUE_BITS
	w := atomic.LoadUint64((*uint64)(unsafe.Pointer(&l.units[n%C.ALLOC_LOG_UNITS].word)))
	lap := (n/C.ALLOC_LOG_UNITS*2 + 2) * above
	return w % above, w&above != 0, (w^lap)&^(2*above-1) == 0
}

// read visits the calls that were noted, in order, and says how many could not be since the last time. One thread at a time may.
func (l *allocLog) read(visit func(allocCall)) (lost uint64) {
	for {
		at, alloc, written := l.word(l.next)
		if !written {
			break
		}
		c := allocCall{nanos: l.times.Nanos(uint64(l.units[l.next%C.ALLOC_LOG_UNITS].more)), at: at}
		l.next++
		if alloc {
			bytes, _, _ := l.word(l.next)
			c.bytes, c.stream = int64(bytes), uint64(l.units[l.next%C.ALLOC_LOG_UNITS].more)
			l.next++
		}
		visit(c)
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(l.c.tail)), l.next)
	all := atomic.LoadUint64((*uint64)(unsafe.Pointer(&l.c.lost)))
	lost, l.lost = all-l.lost, all
	return lost
}
