package hook

// #include "penstock_hook.h"
import "C"

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// MostWritten is how many words may say what the launches of a function write to.
const MostWritten = C.PSK_MOST_WRITTEN

// SetRecord has launches of a function recorded whole from now on, so that they can be issued again. Where written has offsets in
// the parameters, MostWritten at most, they write to nothing but what the words there are addresses of: that goes first in records with FlagAccess.
func (h *Shared) SetRecord(function uint32, written []uint32) {
	f := h.function(function)
	if f == nil {
		return
	}
	for i, offset := range written {
		f.written[i] = C.uint16_t(offset)
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.record)), uint32(len(written))+1)
}

// EndRecord has them not recorded any more.
func (h *Shared) EndRecord(function uint32) {
	if f := h.function(function); f != nil {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.record)), 0)
	}
}

// Written is how many of its slots a record with FlagAccess says are written to: the first ones.
func (r *Record) Written() int { return int(C.psk_written(C.uint16_t(r.Flags))) }

// Unloads counts what unloads functions, from when it begins: their handles may mean others afterwards.
func (h *Shared) Unloads() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&h.s.unloads)))
}

// Launch is a launch as it was recorded, nil when it was not, or has been written over since, by as
// many launches as the area holds.
func (h *Shared) Launch(r *Record) *cuda.RecordedLaunch {
	const units = C.PSK_LAUNCH_UNITS
	if r.Recorded == 0 {
		return nil
	}
	area := unsafe.Slice((*byte)(unsafe.Pointer(h.s.launch_area)), units*C.PSK_LAUNCH_UNIT)
	from := int(r.Recorded-1) % units * C.PSK_LAUNCH_UNIT
	e := (*C.psk_launch)(unsafe.Pointer(&area[from]))
	turn := atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.turn)))
	if uint32(turn) != r.Recorded || e.nparams > C.PSK_LAUNCH_MAX_BYTES || e.bytes > C.PSK_LAUNCH_MAX_BYTES {
		return nil
	}
	l := &cuda.RecordedLaunch{Seq: r.Seq, Function: cuda.Function(e.function), SharedBytes: uint32(e.shared)}
	for i := range l.Grid {
		l.Grid[i], l.Block[i], l.Cluster[i] = uint32(e.grid[i]), uint32(e.block[i]), uint32(e.cluster[i])
	}
	l.ClusterPolicy = uint32(e.policy)
	starts := from + C.sizeof_psk_launch
	params := starts + (int(e.nparams)*4+7)&^7
	end := params + int(e.bytes)
	if end > len(area) {
		return nil
	}
	l.Starts = slices.Clone(unsafe.Slice((*uint32)(unsafe.Pointer(&area[starts])), int(e.nparams)))
	l.Params = slices.Clone(area[params:end])
	if atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.s.launch_head)))-(turn-1) > units {
		return nil // what was read may be another's by now
	}
	return l
}
