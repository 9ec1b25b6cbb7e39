package live

import (
	"sync/atomic"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// strictHook is the launch hook in strict mode, as the test double of the driver needs it: what a launch names is
// waited for by the thread that launches. How far streams are is written by the streams, as on a card.
type strictHook struct {
	*fakeHook
	words     cuda.Ptr // of progress
	arrived   cuda.Ptr
	lastSeq   map[uint32]uint64
	tickets   map[uint32]uint32 // of slots that arrive
	plain     map[cuda.Ptr]int64
	inspected uint64
	addresses []uint64
	granted   uint64
	states    map[uint32]hook.Inspect // of functions
	follows   map[uint32]uint32
	refuses   atomic.Uint32
	served    int               // times that every stream was asked
	names     map[uint32]string // of functions, where they are not all the same
	launches  map[uint64]*cuda.RecordedLaunch
	recorded  map[uint32]bool // functions of which launches are
	told      map[uint32]int  // how many of their operands they write to: the first that are named
	guarded   map[uint32]bool // slots
	unloads   atomic.Uint32
}

func (h *strictHook) FunctionName(id uint32) string {
	if name := h.names[id]; name != "" {
		return name
	}
	return h.fakeHook.FunctionName(id)
}

func (h *strictHook) Unloads() uint32 { return h.unloads.Load() }

func (h *strictHook) SetRecord(function uint32, written []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recorded[function], h.told[function] = true, len(written)
}

func (h *strictHook) EndRecord(function uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.recorded, function)
	delete(h.told, function)
}

func (h *strictHook) Launch(r *hook.Record) *cuda.RecordedLaunch {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.launches[r.Seq]
}

func (h *strictHook) Words(_, progress cuda.Ptr)  { h.words = progress }
func (h *strictHook) Arrived(word cuda.Ptr)       { h.arrived = word }
func (h *strictHook) Refuse(code uint32)          { h.refuses.Store(code) }
func (h *strictHook) LeaveTrails()                {}
func (h *strictHook) HeadWord() *uint64           { return &h.head }
func (h *strictHook) progressWord(i int) cuda.Ptr { return h.words + cuda.Ptr(64*i) }

func (h *strictHook) Progress(stream int) uint64 {
	return uint64(atomic.LoadUint32((*uint32)(pointer(h.progressWord(stream)))))
}

func (h *strictHook) Publish(slot uint32, r cuda.Range, resident bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slotOf[r.Base], h.resident[slot] = slot, resident
	delete(h.lastSeq, slot)
	delete(h.tickets, slot)
	delete(h.guarded, slot)
}

func (h *strictHook) SetResident(slot uint32, resident bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resident[slot] = resident
	delete(h.tickets, slot)
	delete(h.guarded, slot)
}

func (h *strictHook) SetGuarded(slot uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resident[slot], h.guarded[slot] = false, true
	delete(h.tickets, slot)
}

func (h *strictHook) SetArriving(slot, ticket uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resident[slot], h.tickets[slot] = false, ticket
	delete(h.guarded, slot)
}

func (h *strictHook) LastSeq(slot uint32) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastSeq[slot]
}

func (h *strictHook) PublishPlain(r cuda.Range) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plain[r.Base] = r.Bytes
}

func (h *strictHook) WithdrawPlain(r cuda.Range) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.plain, r.Base)
}

func (h *strictHook) Published(p cuda.Ptr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for base, bytes := range h.plain {
		if p >= base && p < base+cuda.Ptr(bytes) {
			return true
		}
	}
	return false
}

func (h *strictHook) Inspection() (seq uint64, addresses []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inspected, h.addresses
}

func (h *strictHook) Grant(seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.granted = seq
}

func (h *strictHook) SetInspect(function uint32, s hook.Inspect) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states[function] = s
	delete(h.follows, function)
}

func (h *strictHook) Follow(function, after uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.follows[function] = after
}

func (h *strictHook) ReportAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.served++
}

// state is when launches of a function ask, and after which other one they need not.
func (h *strictHook) state(function uint32) (s hook.Inspect, after uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.states[function], h.follows[function]
}

func pointer(p cuda.Ptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func words(p cuda.Ptr, bytes int64) []uint32 { return unsafe.Slice((*uint32)(pointer(p)), bytes/4) }
