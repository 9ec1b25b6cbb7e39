package trace

import (
	"fmt"
	"strconv"
)

func utoa(v uint64) string { return strconv.FormatUint(v, 10) }

// Validate checks that the trace does not contradict itself: ids are never
// reused, only live allocations are freed and accessed, pointers lie inside what
// they name, launched functions were announced. The error is an *InvalidError
// about the first problem.
func (t *Trace) Validate() error {
	v := validator{live: make(map[uint64]int64), used: make(map[uint64]struct{}), functions: make(map[uint32]struct{})}
	for i := range t.Events {
		if problem := v.check(&t.Events[i]); problem != "" {
			return &InvalidError{Trace: t.Name, Event: i, Problem: problem}
		}
	}
	return nil
}

type validator struct {
	live      map[uint64]int64 // bytes by id
	used      map[uint64]struct{}
	functions map[uint32]struct{}
	liveBytes int64
}

// check returns what is wrong with the next event, or "".
func (v *validator) check(e *Event) string {
	if e.Bytes < 0 {
		return fmt.Sprintf("%s of %d bytes", e.Kind, e.Bytes)
	}
	switch e.Kind {
	case KindAlloc:
		if _, dup := v.used[e.Alloc]; dup {
			return fmt.Sprintf("allocation id %d is used a second time", e.Alloc)
		}
		v.used[e.Alloc] = struct{}{}
		v.live[e.Alloc] = e.Bytes
		sum := addBytes(v.liveBytes, e.Bytes)
		if sum > maxLiveBytes {
			return fmt.Sprintf("allocation of %d bytes brings the live total above 2^60 bytes", e.Bytes)
		}
		v.liveBytes = sum
	case KindFree:
		bytes, ok := v.live[e.Alloc]
		if !ok {
			return fmt.Sprintf("free of allocation %d, which is not live", e.Alloc)
		}
		v.liveBytes -= bytes
		delete(v.live, e.Alloc)
	case KindFunction:
		v.functions[e.Function] = struct{}{}
	case KindLaunch:
		if _, ok := v.functions[e.Function]; !ok {
			return fmt.Sprintf("launch of function %d, which was never announced", e.Function)
		}
		return v.checkAccesses(e)
	case KindCopy:
		return v.checkAccesses(e)
	case KindFault, KindMigration, KindProgress, KindCPUFault, KindThrash, KindRemote, KindLost:
	case KindMark:
		if e.Name == "" {
			return "mark without a name"
		}
	default:
		return fmt.Sprintf("unknown kind %d", uint8(e.Kind))
	}
	return ""
}

// maxLiveBytes keeps sums of sizes far from overflow; no machine comes near it.
const maxLiveBytes = 1 << 60

// allocatorPaddingBytes is what the framework's allocator rounds requests up to.
const allocatorPaddingBytes = 512

func (v *validator) checkAccesses(e *Event) string {
	for _, a := range e.Accesses {
		bytes, ok := v.live[a.Alloc]
		if !ok {
			return fmt.Sprintf("%s on allocation %d, which is not live", e.Kind, a.Alloc)
		}
		// A pointer to the end is legal in C, and all that an empty tensor has; the
		// framework's allocator rounds up, and cuDNN points into that padding.
		if a.Offset > uint64(bytes)+allocatorPaddingBytes-1 {
			return fmt.Sprintf("%s at byte %d of allocation %d, which has %d bytes", e.Kind, a.Offset, a.Alloc, bytes)
		}
	}
	return ""
}
