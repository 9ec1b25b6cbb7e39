package livetest

import (
	"slices"
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// Hook is the launch hook: launch plays a thread of the job.
type Hook struct {
	timing   bool
	TimedOps []Timing
	Mu       sync.Mutex
	Newest   uint64
	read     uint64
	Writing  uint64 // the newest operations, which are not in the ring yet
	Records  []hook.Record
	SlotOf   map[cuda.Ptr]uint32
	resident map[uint32]bool
	gates    map[int]uint64
	Done     map[int]uint64
	Handles  []uint64
	Mode     hook.Mode
	Modes    []hook.Mode
	Every    uint32
	bell     chan struct{}
	Asked    chan struct{} // closed when streams are asked how far they are; nil: nobody cares
}

// Timing is how long an operation took, as the hook tells it.
type Timing struct {
	Seq         uint64
	Took, Empty time.Duration
}

func NewHook() *Hook {
	return &Hook{SlotOf: map[cuda.Ptr]uint32{}, resident: map[uint32]bool{}, gates: map[int]uint64{}, Done: map[int]uint64{}, Handles: []uint64{0, 0x5000}, bell: make(chan struct{}, 1)}
}

// Queue queues an operation that names allocations, and says whether it is held back and its seq.
func (h *Hook) Queue(stream int, names ...cuda.Ptr) (seq uint64, gated bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Newest++
	r := hook.Record{Seq: h.Newest, Kind: hook.Launch, ID: 1, Stream: stream}
	for _, p := range names {
		s, ok := h.SlotOf[p]
		if !ok {
			continue
		}
		r.Slots = append(r.Slots, s)
		if !h.resident[s] && h.Mode == hook.Gated {
			r.Flags |= hook.FlagGated
		}
	}
	if h.Mode != hook.Off {
		h.Records = append(h.Records, r)
	}
	select {
	case h.bell <- struct{}{}:
	default:
	}
	return r.Seq, r.Flags&hook.FlagGated != 0
}

// QueueFlagged queues an operation that names nothing.
func (h *Hook) QueueFlagged(stream int, flags int) (seq uint64) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Newest++
	h.Records = append(h.Records, hook.Record{Seq: h.Newest, Kind: hook.Launch, ID: 1, Stream: stream, Flags: flags})
	return h.Newest
}

// Finish says that a stream has done everything up to seq.
func (h *Hook) Finish(stream int, seq uint64) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Done[stream] = seq
}

func (h *Hook) Gate(stream int) uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.gates[stream]
}

func (h *Hook) IsResident(p cuda.Ptr) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.resident[h.SlotOf[p]]
}

func (h *Hook) Publish(slot uint32, r cuda.Range, resident bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.SlotOf[r.Base], h.resident[slot] = slot, resident
}

func (h *Hook) Withdraw(slot uint32, r cuda.Range) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	delete(h.SlotOf, r.Base)
	delete(h.resident, slot)
}

func (h *Hook) SetResident(slot uint32, resident bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.resident[slot] = resident
}

func (h *Hook) OpenGate(stream int, seq uint64) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.gates[stream] = seq
}

func (h *Hook) Progress(stream int) uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Done[stream]
}

func (h *Hook) Streams() []uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return slices.Clone(h.Handles)
}

func (h *Hook) Head() uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Newest
}

func (h *Hook) Read() uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.read
}

func (h *Hook) Drain(visit func(*hook.Record)) int {
	h.Mu.Lock()
	records := h.Records
	h.Records, h.read = nil, h.Newest-h.Writing
	h.Mu.Unlock()
	for i := range records {
		visit(&records[i])
	}
	return len(records)
}

func (h *Hook) Wait(timeout time.Duration) {
	select {
	case <-h.bell:
	case <-time.After(timeout):
	}
}

func (h *Hook) SetMode(m hook.Mode) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Mode = m
	h.Modes = append(h.Modes, m)
}

func (h *Hook) FunctionName(id uint32) string { return "kernel" }
func (h *Hook) SetProgressEvery(n uint32)     { h.Every = n }
func (h *Hook) SetStamps(bool)                {}
func (h *Hook) Serve()                        {}
func (h *Hook) SynchronizeOthers() error      { return nil }
func (h *Hook) SetTiming(on bool)             { h.timing = on }
func (h *Hook) ReportAll() {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Asked != nil {
		close(h.Asked)
		h.Asked = nil
	}
}

func (h *Hook) Words(gate, progress cuda.Ptr) {}
func (h *Hook) TimingsLost() uint64           { return 7 }

func (h *Hook) Timings(visit func(seq uint64, took, empty time.Duration)) {
	h.Mu.Lock()
	timed := h.TimedOps
	h.TimedOps = nil
	h.Mu.Unlock()
	for _, t := range timed {
		visit(t.Seq, t.Took, t.Empty)
	}
}
func (h *Hook) Counters() hook.Counters { return hook.Counters{Launches: h.Head()} }
