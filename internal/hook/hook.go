package hook

/*
#cgo CFLAGS: -I${SRCDIR}/../../cabi/hook
#include "penstock_hook.h"

#if PSK_HOOK_ABI != 20
#error "correct the version here, too: the go command does not see that the header has changed"
#endif
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
)

// Mode is what the hook does with launches.
type Mode uint32

// Modes.
const (
	Off     Mode = C.PSK_MODE_OFF
	Observe Mode = C.PSK_MODE_OBSERVE
	Gated   Mode = C.PSK_MODE_GATED
	Strict  Mode = C.PSK_MODE_STRICT
)

// Kinds of record.
const (
	Launch     = C.PSK_REC_LAUNCH
	Copy       = C.PSK_REC_COPY
	Graph      = C.PSK_REC_GRAPH
	Collective = C.PSK_REC_COLLECTIVE
	Stay       = C.PSK_REC_STAY // no operation: what it names is to stay on the device
)

// Kinds of copy, the ID of a Copy record.
const (
	CopyH2D  = C.PSK_COPY_H2D
	CopyD2H  = C.PSK_COPY_D2H
	CopyD2D  = C.PSK_COPY_D2D
	CopyFill = C.PSK_COPY_FILL
)

// Flags of a record.
const (
	FlagGated    = C.PSK_FLAG_GATED
	FlagProgress = C.PSK_FLAG_PROGRESS
	FlagCaptured = C.PSK_FLAG_CAPTURED
	FlagOpaque   = C.PSK_FLAG_OPAQUE
	FlagInspect  = C.PSK_FLAG_INSPECT
	FlagKeep     = C.PSK_FLAG_KEEP
	FlagHasDst   = C.PSK_FLAG_HAS_DST
	FlagAccess   = C.PSK_FLAG_ACCESS
)

// MaxStreams is how many streams the hook tells apart.
const MaxStreams = C.PSK_MAX_STREAMS

// SharedStream is the index of all streams beyond. In gated mode they report no progress.
const SharedStream = MaxStreams - 1

// Handles of no stream, see Streams.
const (
	StreamMany      = C.PSK_STREAM_MANY       // the streams of SharedStream
	StreamGone      = C.PSK_STREAM_GONE       // the stream was destroyed, or there never was one (Stay)
	StreamPerThread = C.PSK_STREAM_PER_THREAD // each thread's own default stream, all by this handle
)

// ABI is the version of the shared state that this package speaks.
const ABI = C.PSK_HOOK_ABI

const wordsPerLine = 16

// Record is one operation as the hook saw it.
type Record struct {
	Seq    uint64
	Kind   int
	Flags  int
	ID     uint32 // function, kind of copy, or NCCL call
	Stream int    // stream index
	Grid   uint32 // hash of the launch dimensions
	Nanos  int64  // CLOCK_MONOTONIC_RAW when the program made the call, to some hundred nanoseconds; 0 unless SetStamps
	Slots  []uint32
	// Recorded tells Launch where the launch was recorded; 0: it was not.
	Recorded uint32
}

// Shared is the state shared with the hook.
type Shared struct {
	s         *C.psk_shared
	blocks    []uint32
	states    []uint8 // written as bytes; a byte store is atomic on every platform Penstock runs on
	seqs      []uint64
	tickets   []uint32
	ring      []C.psk_entry
	next      uint64 // position of the next entry to read
	slots     []uint32
	addresses []uint64
	times     *Times // nil: no record was stamped yet
	timed     uint64 // timings that were read
	finished  [MaxStreams]finished
}

// finished is how far a stream was when its progress word was last seen to change.
type finished struct {
	word uint32
	seq  uint64
}

// New views shared state that penstock_hook_attach returned.
func New(p unsafe.Pointer) (*Shared, error) {
	s := (*C.psk_shared)(p)
	if s == nil {
		return nil, errors.New("the launch hook refused to attach: it is of another version, or this is a forked child")
	}
	if s.abi_version != C.PSK_HOOK_ABI || uintptr(s.size) != unsafe.Sizeof(*s) {
		return nil, fmt.Errorf("the launch hook speaks version %d (%d bytes), this library %d (%d bytes): install both from one release",
			uint32(s.abi_version), uint32(s.size), uint32(C.PSK_HOOK_ABI), unsafe.Sizeof(*s))
	}
	return &Shared{
		s:       s,
		blocks:  unsafe.Slice((*uint32)(unsafe.Pointer(s.block_slot)), C.PSK_TABLE_BLOCKS),
		states:  unsafe.Slice((*uint8)(unsafe.Pointer(s.slot_state)), C.PSK_MAX_SLOTS),
		seqs:    unsafe.Slice((*uint64)(unsafe.Pointer(s.slot_last_seq)), C.PSK_MAX_SLOTS),
		tickets: unsafe.Slice((*uint32)(unsafe.Pointer(s.slot_ticket)), C.PSK_MAX_SLOTS),
		ring:    unsafe.Slice((*C.psk_entry)(unsafe.Pointer(s.ring)), C.PSK_RING_ENTRIES),
		next:    atomic.LoadUint64((*uint64)(unsafe.Pointer(&s.tail))),
	}, nil
}

// Words hands the hook the pinned words of gates and progress: MaxStreams lines of 64 bytes each.
func (h *Shared) Words(gate, progress cuda.Ptr) {
	*(*uintptr)(unsafe.Pointer(&h.s.gate)) = uintptr(gate)
	*(*uintptr)(unsafe.Pointer(&h.s.progress)) = uintptr(progress)
	for i := range h.finished {
		h.finished[i] = finished{word: atomic.LoadUint32(h.word(h.s.progress, i))}
	}
}

// WordsBytes is the size of the gate words, and of the progress words.
const WordsBytes = MaxStreams * wordsPerLine * 4

func (h *Shared) word(base *C.uint32_t, stream int) *uint32 {
	return (*uint32)(unsafe.Add(unsafe.Pointer(base), stream*wordsPerLine*4))
}

// SetMode switches the hook. Words must have been called before Gated, Words and Arrived before Strict.
func (h *Shared) SetMode(m Mode) {
	if m != Off {
		h.populate()
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.mode)), uint32(m))
}

// populate makes the ring's pages present, which launches would fault in one by one. Not before the
// ring is used, and it may fail (before Linux 5.14 it does): then they fault.
func (h *Shared) populate() {
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Pointer(h.s.ring)), C.PSK_RING_ENTRIES*C.sizeof_psk_entry), unix.MADV_POPULATE_WRITE)
}

// SetProgressEvery says after how many operations on a stream progress is written at the latest.
func (h *Shared) SetProgressEvery(n uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.progress_every)), n)
}

// SetStamps says whether records carry the time of the call.
func (h *Shared) SetStamps(on bool) {
	kind := uint32(C.PSK_STAMP_NONE)
	if on {
		kind = Stamping()
		if h.times == nil {
			h.times = NewTimes(kind)
		}
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.stamp)), kind)
}

func (h *Shared) setState(slot uint32, state uint8) {
	// An exchange on the containing word would be a full barrier; the store of a
	// byte is followed by one on the doorbell-free counter instead.
	h.states[slot] = state
	atomic.AddUint64(&fence, 1)
}

// fence is only ever added to: a locked instruction, and so a full barrier.
var fence uint64

// Publish says which slot owns a run of blocks, and whether it is on the device.
func (h *Shared) Publish(slot uint32, r cuda.Range, resident bool) {
	if int(slot) >= len(h.states) {
		return
	}
	h.SetResident(slot, resident)
	h.setBlocks(r, slot)
}

func (h *Shared) setBlocks(r cuda.Range, slot uint32) {
	first, last := uint64(r.Base)>>C.PSK_BLOCK_SHIFT, (uint64(r.End())-1)>>C.PSK_BLOCK_SHIFT
	for b := first; b <= last; b++ {
		atomic.StoreUint32(&h.blocks[b], slot)
	}
}

// Withdraw ends a slot's ownership of a run of blocks.
func (h *Shared) Withdraw(slot uint32, r cuda.Range) {
	if int(slot) >= len(h.states) {
		return
	}
	h.setBlocks(r, 0)
	h.setState(slot, C.PSK_SLOT_FREE)
}

// SetResident says whether a slot is wholly on the device.
func (h *Shared) SetResident(slot uint32, resident bool) {
	if int(slot) >= len(h.states) {
		return
	}
	state := uint8(C.PSK_SLOT_ABSENT)
	if resident {
		state = C.PSK_SLOT_RESIDENT
	}
	h.setState(slot, state)
}

// LastSeq is the last operation that named a slot.
func (h *Shared) LastSeq(slot uint32) uint64 { return atomic.LoadUint64(&h.seqs[slot]) }

// OpenGate lets a stream run up to and including an operation.
func (h *Shared) OpenGate(stream int, seq uint64) {
	atomic.StoreUint32(h.word(h.s.gate, stream), uint32(seq))
}

// Progress is the last operation that a stream reported as finished; 0: none yet. One
// goroutine at a time may ask. The stream writes the low word only, so that what it is part
// of is settled when it changes: a stream may be quiet while others run 2^32 operations, and
// the word that it left would then be taken for one of theirs.
func (h *Shared) Progress(stream int) uint64 {
	x := &h.finished[stream]
	if word := atomic.LoadUint32(h.word(h.s.progress, stream)); word != x.word {
		*x = finished{word, widen(word, h.Head())} // the head as it is after the word was written
	}
	return x.seq
}

// widen completes the low word of a seq that is not beyond head; 0 when there is none such.
func widen(low uint32, head uint64) uint64 {
	seq := head&^0xffffffff | uint64(low)
	if seq <= head {
		return seq
	}
	if seq < 1<<32 {
		return 0
	}
	return seq - 1<<32
}

// Head is the seq of the newest operation that was given one.
func (h *Shared) Head() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&h.s.head))) }

// HeadWord is where Head is, for C.
func (h *Shared) HeadWord() *uint64 { return (*uint64)(unsafe.Pointer(&h.s.head)) }

// Read is how far the ring was read: every operation with a seq up to it was visited.
func (h *Shared) Read() uint64 { return h.next }

// Drain reads every published record, in order. The record and its slots are
// only valid during the call.
func (h *Shared) Drain(visit func(*Record)) (n int) {
	var rec Record
	for {
		e := &h.ring[h.next&(C.PSK_RING_ENTRIES-1)]
		if atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.turn))) != h.next+1 {
			break
		}
		more := uint64(e.more)
		if !h.published(h.next+1, more) {
			break // its continuation is still being written
		}
		rec = Record{Seq: h.next + 1, Kind: int(e.kind), Flags: int(e.flags), ID: uint32(e.id), Stream: int(e.stream), Grid: uint32(e.grid), Recorded: uint32(e.recorded)}
		if h.times != nil {
			rec.Nanos = h.times.Nanos(uint64(e.when))
		}
		h.slots = h.slots[:0]
		for i := uint64(0); i <= more; i++ {
			c := &h.ring[(h.next+i)&(C.PSK_RING_ENTRIES-1)]
			for k := 0; k < int(c.nslots) && k < len(c.slots); k++ {
				h.slots = append(h.slots, uint32(c.slots[k]))
			}
		}
		rec.Slots = h.slots
		h.next += more + 1
		visit(&rec)
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.s.tail)), h.next)
		n++
	}
	return n
}

// published says whether n entries from a position on can be read.
func (h *Shared) published(position, n uint64) bool {
	for i := uint64(0); i < n; i++ {
		e := &h.ring[(position+i)&(C.PSK_RING_ENTRIES-1)]
		if atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.turn))) != position+i+1 {
			return false
		}
	}
	return true
}

// Streams are the handles of the known streams, by index. An index is given to another stream
// when the one that had it was destroyed and has done all its work.
func (h *Shared) Streams() []uint64 {
	n := atomic.LoadUint32((*uint32)(unsafe.Pointer(&h.s.nstreams)))
	return unsafe.Slice((*uint64)(unsafe.Pointer(h.s.streams)), C.PSK_MAX_STREAMS)[:min(n, C.PSK_MAX_STREAMS)]
}

// FunctionName is the mangled name of a function id, or of what else Record.Function numbers, or "".
func (h *Shared) FunctionName(id uint32) string {
	if id >= graphs {
		return otherName(id)
	}
	if id >= atomic.LoadUint32((*uint32)(unsafe.Pointer(&h.s.nfuncs))) {
		return ""
	}
	f := unsafe.Slice(h.s.funcs, C.PSK_MAX_FUNCS)[id]
	return C.GoString(f.name)
}

// Wait blocks until a record may have arrived, or the timeout.
func (h *Shared) Wait(timeout time.Duration) {
	bell := (*uint32)(unsafe.Pointer(&h.s.doorbell))
	seen := atomic.LoadUint32(bell)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.reader_sleeping)), 1)
	if h.Head() == h.next {
		const futexWait = 128 // FUTEX_WAIT_PRIVATE, as the hook wakes
		ts := syscall.NsecToTimespec(int64(timeout))
		syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.s.reader_sleeping)), 0)
}

// Counters are what the hook counted.
type Counters struct {
	Launches, Copies, GraphLaunches, Gated, Opaque      uint64
	Dropped, Unhooked                                   uint64
	CPUWaits, CPUWaitNS, GrantsAsked, Refused, Followed uint64 // strict mode
	RouteELF, RouteDlsym, RouteGetProc, RouteRuntime    uint64
	UnhookedNames                                       string // one a line
}

// Counters reads the hook's counters.
func (h *Shared) Counters() Counters {
	load := func(p *C.uint64_t) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(p))) }
	return Counters{
		UnhookedNames: C.GoString(h.s.unhooked_names), Launches: load(&h.s.launches), Copies: load(&h.s.copies), GraphLaunches: load(&h.s.graph_launches),
		Gated: load(&h.s.gated), Opaque: load(&h.s.opaque_launches), Dropped: load(&h.s.dropped), Unhooked: load(&h.s.unhooked),
		CPUWaits: load(&h.s.cpu_waits), CPUWaitNS: load(&h.s.cpu_wait_ns), GrantsAsked: load(&h.s.grants_asked), Refused: load(&h.s.refused), Followed: load(&h.s.followed),
		RouteELF: load(&h.s.route_elf), RouteDlsym: load(&h.s.route_dlsym), RouteGetProc: load(&h.s.route_getproc), RouteRuntime: load(&h.s.route_runtime),
	}
}
