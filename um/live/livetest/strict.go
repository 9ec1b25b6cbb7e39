package livetest

import (
	"sync/atomic"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// StrictHook is the launch hook in strict mode, as the test double of the driver needs it: what a launch names is
// waited for by the thread that launches. How far streams are is written by the streams, as on a card.
type StrictHook struct {
	*Hook
	words        cuda.Ptr // of progress
	arrived      cuda.Ptr
	lastSeq      map[uint32]uint64
	tickets      map[uint32]uint32 // of slots that arrive
	plain        map[cuda.Ptr]int64
	inspected    uint64
	addresses    []uint64
	granted      uint64
	states       map[uint32]hook.Inspect // of functions
	follows      map[uint32]uint32
	Refuses      atomic.Uint32
	served       int               // times that every stream was asked
	names        map[uint32]string // of functions, where they are not all the same
	launches     map[uint64]*cuda.RecordedLaunch
	Recorded     map[uint32]bool // functions of which launches are
	Told         map[uint32]int  // how many of their operands they write to: the first that are named
	guarded      map[uint32]bool // slots
	Unloaded     atomic.Uint32
	GraphsChased atomic.Bool
}

func (h *StrictHook) FunctionName(id uint32) string {
	if name := h.names[id]; name != "" {
		return name
	}
	return h.Hook.FunctionName(id)
}

func (h *StrictHook) Unloads() uint32 { return h.Unloaded.Load() }

func (h *StrictHook) SetRecord(function uint32, written []uint32) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Recorded[function], h.Told[function] = true, len(written)
}

func (h *StrictHook) EndRecord(function uint32) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	delete(h.Recorded, function)
	delete(h.Told, function)
}

func (h *StrictHook) Launch(r *hook.Record) *cuda.RecordedLaunch {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.launches[r.Seq]
}

func (h *StrictHook) Words(_, progress cuda.Ptr)  { h.words = progress }
func (h *StrictHook) Arrived(word cuda.Ptr)       { h.arrived = word }
func (h *StrictHook) SetGraphBytes(int64)         {} // nothing is launched by graphs here
func (h *StrictHook) GraphsChase()                { h.GraphsChased.Store(true) }
func (h *StrictHook) Refuse(code uint32)          { h.Refuses.Store(code) }
func (h *StrictHook) LeaveTrails()                {}
func (h *StrictHook) HeadWord() *uint64           { return &h.Newest }
func (h *StrictHook) progressWord(i int) cuda.Ptr { return h.words + cuda.Ptr(64*i) }

func (h *StrictHook) Progress(stream int) uint64 {
	return uint64(atomic.LoadUint32((*uint32)(pointer(h.progressWord(stream)))))
}

func (h *StrictHook) Publish(slot uint32, r cuda.Range, resident bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.SlotOf[r.Base], h.resident[slot] = slot, resident
	delete(h.lastSeq, slot)
	delete(h.tickets, slot)
	delete(h.guarded, slot)
}

func (h *StrictHook) SetResident(slot uint32, resident bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.resident[slot] = resident
	delete(h.tickets, slot)
	delete(h.guarded, slot)
}

func (h *StrictHook) SetGuarded(slot uint32) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.resident[slot], h.guarded[slot] = false, true
	delete(h.tickets, slot)
}

func (h *StrictHook) SetArriving(slot, ticket uint32) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.resident[slot], h.tickets[slot] = false, ticket
	delete(h.guarded, slot)
}

func (h *StrictHook) LastSeq(slot uint32) uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.lastSeq[slot]
}

func (h *StrictHook) PublishPlain(r cuda.Range) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.plain[r.Base] = r.Bytes
}

func (h *StrictHook) WithdrawPlain(r cuda.Range) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	delete(h.plain, r.Base)
}

func (h *StrictHook) Published(p cuda.Ptr) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for base, bytes := range h.plain {
		if p >= base && p < base+cuda.Ptr(bytes) {
			return true
		}
	}
	return false
}

func (h *StrictHook) Inspection() (seq uint64, addresses []uint64) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.inspected, h.addresses
}

func (h *StrictHook) Grant(seq uint64) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.granted = seq
}

func (h *StrictHook) SetInspect(function uint32, s hook.Inspect) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.states[function] = s
	delete(h.follows, function)
}

func (h *StrictHook) Follow(function, after uint32) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.follows[function] = after
}

func (h *StrictHook) ReportAll() {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.served++
}

// State is when launches of a function ask, and after which other one they need not.
func (h *StrictHook) State(function uint32) (s hook.Inspect, after uint32) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.states[function], h.follows[function]
}

func pointer(p cuda.Ptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func Words(p cuda.Ptr, bytes int64) []uint32 { return unsafe.Slice((*uint32)(pointer(p)), bytes/4) }
