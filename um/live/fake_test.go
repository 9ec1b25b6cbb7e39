package live

import (
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/uvm"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

const mib = 1 << 20

// fakeDriver is a driver that keeps accounts and moves nothing. Calls that the
// engine does not make are those of the nil interface.
type fakeDriver struct {
	cuda.Driver
	mu          sync.Mutex
	total, used int64
	next        cuda.Ptr
	plain       map[cuda.Ptr]int64
	prefetched  []cuda.Location
	discarded   int
	moveError   error
	block       chan struct{} // moves wait for it to be closed; nil: they do not
	caps        cuda.Capabilities
	events      map[cuda.Event]bool // whether it has been reached
	onDevice    map[cuda.Ptr]bool   // managed memory, by block
	most        int                 // blocks that were there at any time
	mostBytes   int64               // plain memory and blocks at any time
	streams     int                 // made
	ended       error               // of the context
	capturing   cuda.Stream         // a stream that captures; 0: none
	unseen      bool                // it has begun to since it was last asked
	captured    map[cuda.Event]bool // events that were recorded on it meanwhile
}

func newDriver(total int64) *fakeDriver {
	return &fakeDriver{
		total: total, next: 1 << 40, plain: map[cuda.Ptr]int64{}, events: map[cuda.Event]bool{}, captured: map[cuda.Event]bool{}, onDevice: map[cuda.Ptr]bool{},
		caps: cuda.Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true, StreamMemOps: true, DiscardBatch: true},
	}
}

var began = time.Now()

func (d *fakeDriver) Info() cuda.DeviceInfo                 { return cuda.DeviceInfo{TotalBytes: d.total} }
func (d *fakeDriver) Capabilities() cuda.Capabilities       { return d.caps }
func (d *fakeDriver) BindThread() error                     { return nil }
func (d *fakeDriver) Now() time.Duration                    { return time.Since(began) }
func (d *fakeDriver) StreamDestroy(cuda.Stream) error       { return nil }
func (d *fakeDriver) StreamSynchronize(s cuda.Stream) error { return nil }
func (d *fakeDriver) Synchronize() error                    { return nil }

func (d *fakeDriver) StreamCreate() (cuda.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams++
	return cuda.Stream(d.streams), nil
}

func (d *fakeDriver) MemInfo() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.total - d.used, d.total, d.ended
}

func (d *fakeDriver) address(bytes int64) cuda.Ptr {
	p := d.next
	d.next += cuda.Ptr((bytes + managed.BlockBytes - 1) / managed.BlockBytes * managed.BlockBytes)
	return p
}

func (d *fakeDriver) MemAlloc(bytes int64) (cuda.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used+bytes > d.total {
		return 0, cuda.NewError(2, "cuMemAlloc")
	}
	d.used += bytes
	d.noteBytes()
	p := d.address(bytes)
	d.plain[p] = bytes
	return p, nil
}

func (d *fakeDriver) MemFree(p cuda.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plain[p] == 0 {
		return cuda.NewError(1, "cuMemFree")
	}
	d.used -= d.plain[p]
	delete(d.plain, p)
	return nil
}

func (d *fakeDriver) HostAlloc(bytes int64) (cuda.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.address(bytes), nil
}

func (d *fakeDriver) MemAllocManaged(bytes int64) (cuda.Ptr, error) { return d.HostAlloc(bytes) }

func (d *fakeDriver) Prefetch(r []cuda.Range, to cuda.Location, s cuda.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.await()
	if d.moveError == nil {
		d.prefetched = append(d.prefetched, to)
		d.set(r, to == cuda.Device)
	}
	return d.moveError
}

// await waits until moves may go on. The caller holds the lock, which is released meanwhile.
func (d *fakeDriver) await() {
	if b := d.block; b != nil {
		d.mu.Unlock()
		<-b
		d.mu.Lock()
	}
}

func (d *fakeDriver) set(ranges []cuda.Range, on bool) {
	for _, r := range ranges {
		for p := r.Base; p < r.End(); p += managed.BlockBytes {
			if on {
				d.onDevice[p] = true
			} else {
				delete(d.onDevice, p)
			}
		}
	}
	d.most = max(d.most, len(d.onDevice))
	d.noteBytes()
}

func (d *fakeDriver) noteBytes() {
	d.mostBytes = max(d.mostBytes, d.used+int64(len(d.onDevice))*managed.BlockBytes)
}

// peakBytes is the most that plain memory and blocks took together at any time.
func (d *fakeDriver) peakBytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mostBytes
}

// peak is the most blocks that were on the device at any time.
func (d *fakeDriver) peak() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most
}

// blocks is how many are on the device.
func (d *fakeDriver) blocks() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int64(len(d.onDevice))
}

// plainUsed is how much plain memory is allocated.
func (d *fakeDriver) plainUsed() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}

// holds says whether a range is wholly on the device.
func (d *fakeDriver) holds(r cuda.Range) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := r.Base; p < r.End(); p += managed.BlockBytes {
		if !d.onDevice[p] {
			return false
		}
	}
	return true
}

func (d *fakeDriver) Discard(r []cuda.Range, s cuda.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.discarded++
	d.await()
	if d.moveError == nil {
		d.set(r, false)
	}
	return d.moveError
}

func (d *fakeDriver) EventCreate() (cuda.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := cuda.Event(len(d.events) + 1)
	d.events[e] = false
	return e, nil
}

func (d *fakeDriver) EventDestroy(e cuda.Event) error { return nil }

func (d *fakeDriver) EventRecord(e cuda.Event, s cuda.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events[e], d.captured[e] = false, s == d.capturing && s != 0
	return nil
}

func (d *fakeDriver) StreamCapturing(s cuda.Stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return s == d.capturing && s != 0 && !d.unseen
}

func (d *fakeDriver) capture(s cuda.Stream, unseen bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capturing, d.unseen = s, unseen
}

func (d *fakeDriver) EventQuery(e cuda.Event) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.captured[e] {
		return false, cuda.NewError(907, "cuEventQuery")
	}
	return d.events[e], nil
}

func (d *fakeDriver) reachEvents() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for e := range d.events {
		d.events[e] = true
	}
}

func (d *fakeDriver) moves() (in, out int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, to := range d.prefetched {
		if to == cuda.Device {
			in++
		} else {
			out++
		}
	}
	return in, out
}

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

// rig is an engine between the two.
type rig struct {
	*testing.T
	l *Live
	d *fakeDriver
	h *fakeHook
}

func defaults() Config {
	return Config{Policy: um.Penstock, BudgetBytes: 64 * mib, HostBudgetBytes: 64 * mib}
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	r := &rig{T: t, d: newDriver(1 << 30), h: newHook()}
	l, err := New(c, r.d, r.h, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r.l = l
	t.Cleanup(func() { _ = l.Close() }) // tests that expect nothing else close it themselves
	return r
}

// holdBack makes the engine believe that it can hold launches back, as with the
// unified-memory driver at hand. Its movers stay those of the fake driver.
func (r *rig) holdBack() {
	const workers = 4
	r.eventually("every worker has its mover", func() bool {
		r.d.mu.Lock()
		defer r.d.mu.Unlock()
		return r.d.streams == workers
	})
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.paged().space = new(uvm.Space)
}

func (r *rig) malloc(bytes int64, stream uint64) cuda.Ptr {
	r.Helper()
	p, err := r.l.Malloc(bytes, stream)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// eventually waits for what the engine's threads bring about.
func (r *rig) eventually(what string, holds func() bool) {
	r.Helper()
	for until := time.Now().Add(20 * time.Second); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(until) {
			r.Fatalf("not so after 20 s: %s\n%+v", what, r.l.Stats())
		}
	}
}

// paged is the managed engine in the process.
func (r *rig) paged() *paged { return r.l.engine.(*paged) }
