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
	c *C.struct_alloc_log

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
	c := (*C.struct_alloc_log)(C.aligned_alloc(64, C.sizeof_struct_alloc_log))
	if c == nil {
		return nil, errors.New("no host memory to record allocations in")
	}
	C.memset(unsafe.Pointer(c), 0, C.sizeof_struct_alloc_log)
	c.stamp = C.uint32_t(hook.Stamping())
	return &allocLog{c: c, times: hook.NewTimes(hook.Stamping())}, nil
}

// use says whether calls are noted from now on.
func (l *allocLog) use(on bool) {
	if on {
		C.exports_use_alloc_log(unsafe.Pointer(l.c))
	} else {
		C.exports_use_alloc_log(nil)
	}
}

// read visits the calls that were noted, in order, and says how many could not be since the last time. One thread at a time may.
func (l *allocLog) read(visit func(allocCall)) (lost uint64) {
	for {
		c := &l.c.ring[l.next%C.ALLOC_LOG_ENTRIES]
		if atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.turn))) != l.next+1 {
			break
		}
		visit(allocCall{nanos: l.times.Nanos(uint64(c.when)), at: uint64(c.at), bytes: int64(c.bytes), stream: uint64(c.stream)})
		l.next++
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&l.c.tail)), l.next)
	all := atomic.LoadUint64((*uint64)(unsafe.Pointer(&l.c.lost)))
	lost, l.lost = all-l.lost, all
	return lost
}
