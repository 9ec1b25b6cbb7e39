package live

import (
	"slices"
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// fakeHook is the launch hook: launch plays a thread of the job.
type fakeHook struct {
	timing   bool
	timed    []timing
	mu       sync.Mutex
	head     uint64
	read     uint64
	writing  uint64 // the newest operations, which are not in the ring yet
	records  []hook.Record
	slotOf   map[cuda.Ptr]uint32
	resident map[uint32]bool
	gates    map[int]uint64
	progress map[int]uint64
	handles  []uint64
	mode     hook.Mode
	modes    []hook.Mode
	every    uint32
	bell     chan struct{}
	asked    chan struct{} // closed when streams are asked how far they are; nil: nobody cares
}

// timing is how long an operation took, as the hook tells it.
type timing struct {
	seq         uint64
	took, empty time.Duration
}

func newHook() *fakeHook {
	return &fakeHook{slotOf: map[cuda.Ptr]uint32{}, resident: map[uint32]bool{}, gates: map[int]uint64{}, progress: map[int]uint64{}, handles: []uint64{0, 0x5000}, bell: make(chan struct{}, 1)}
}

// launch queues an operation that names allocations, and says whether it is held back and its seq.
func (h *fakeHook) launch(stream int, names ...cuda.Ptr) (seq uint64, gated bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.head++
	r := hook.Record{Seq: h.head, Kind: hook.Launch, ID: 1, Stream: stream}
	for _, p := range names {
		s, ok := h.slotOf[p]
		if !ok {
			continue
		}
		r.Slots = append(r.Slots, s)
		if !h.resident[s] && h.mode == hook.Gated {
			r.Flags |= hook.FlagGated
		}
	}
	if h.mode != hook.Off {
		h.records = append(h.records, r)
	}
	select {
	case h.bell <- struct{}{}:
	default:
	}
	return r.Seq, r.Flags&hook.FlagGated != 0
}

// launchFlagged queues an operation that names nothing.
func (h *fakeHook) launchFlagged(stream int, flags int) (seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.head++
	h.records = append(h.records, hook.Record{Seq: h.head, Kind: hook.Launch, ID: 1, Stream: stream, Flags: flags})
	return h.head
}

// finish says that a stream has done everything up to seq.
func (h *fakeHook) finish(stream int, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progress[stream] = seq
}

func (h *fakeHook) gate(stream int) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gates[stream]
}

func (h *fakeHook) isResident(p cuda.Ptr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resident[h.slotOf[p]]
}

func (h *fakeHook) Publish(slot uint32, r cuda.Range, resident bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slotOf[r.Base], h.resident[slot] = slot, resident
}

func (h *fakeHook) Withdraw(slot uint32, r cuda.Range) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.slotOf, r.Base)
	delete(h.resident, slot)
}

func (h *fakeHook) SetResident(slot uint32, resident bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resident[slot] = resident
}

func (h *fakeHook) OpenGate(stream int, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gates[stream] = seq
}

func (h *fakeHook) Progress(stream int) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.progress[stream]
}

func (h *fakeHook) Streams() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.handles)
}

func (h *fakeHook) Head() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.head
}

func (h *fakeHook) Read() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.read
}

func (h *fakeHook) Drain(visit func(*hook.Record)) int {
	h.mu.Lock()
	records := h.records
	h.records, h.read = nil, h.head-h.writing
	h.mu.Unlock()
	for i := range records {
		visit(&records[i])
	}
	return len(records)
}

func (h *fakeHook) Wait(timeout time.Duration) {
	select {
	case <-h.bell:
	case <-time.After(timeout):
	}
}

func (h *fakeHook) SetMode(m hook.Mode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mode = m
	h.modes = append(h.modes, m)
}

func (h *fakeHook) FunctionName(id uint32) string { return "kernel" }
func (h *fakeHook) SetProgressEvery(n uint32)     { h.every = n }
func (h *fakeHook) SetStamps(bool)                {}
func (h *fakeHook) Serve()                        {}
func (h *fakeHook) SynchronizeOthers() error      { return nil }
func (h *fakeHook) SetTiming(on bool)             { h.timing = on }
func (h *fakeHook) ReportAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked != nil {
		close(h.asked)
		h.asked = nil
	}
}

func (h *fakeHook) Words(gate, progress cuda.Ptr) {}
func (h *fakeHook) TimingsLost() uint64           { return 7 }

func (h *fakeHook) Timings(visit func(seq uint64, took, empty time.Duration)) {
	h.mu.Lock()
	timed := h.timed
	h.timed = nil
	h.mu.Unlock()
	for _, t := range timed {
		visit(t.seq, t.took, t.empty)
	}
}
func (h *fakeHook) Counters() hook.Counters { return hook.Counters{Launches: h.Head()} }
