package hook

// #include "penstock_hook.h"
import "C"

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// SetRecord has launches of a function recorded whole from now on, so that they can be issued again. They write to what a
// parameter begins with the address of, and to nothing else: that goes first in records with FlagAccess. With parameter -1
// they are not recorded any more.
func (h *Shared) SetRecord(function uint32, parameter int) {
	if f := h.function(function); f != nil {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.record)), uint32(parameter)+1)
	}
}

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
	l := &cuda.RecordedLaunch{Function: cuda.Function(e.function), SharedBytes: uint32(e.shared)}
	for i := range l.Grid {
		l.Grid[i], l.Block[i] = uint32(e.grid[i]), uint32(e.block[i])
	}
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
