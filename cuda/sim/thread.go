package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// Thread is the driver as one host thread sees it, with that thread's clock. It
// implements cuda.Driver.
//
// A call begins at the later of the thread's clock and the GPU's, and moves the
// thread's clock on by what the call costs its caller. Work that the call
// queues is issued at the moment the call begins. Allocation, freeing and
// mapping take effect at once; Advise takes effect when the call begins.
type Thread struct {
	g    *GPU
	name string
	now  time.Duration
}

var _ cuda.Driver = (*Thread)(nil)

// Thread is a new host thread.
func (g *GPU) Thread(name string) *Thread { return &Thread{g: g, name: name} }

// Name is the thread's name.
func (t *Thread) Name() string { return t.name }

// Now is the thread's virtual time.
func (t *Thread) Now() time.Duration {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	return max(t.now, t.g.now)
}

// begin is when the call that is being made begins.
func (t *Thread) begin() time.Duration {
	t.now = max(t.now, t.g.now)
	return t.now
}

// spend is begin, and moves the thread's clock on.
func (t *Thread) spend(d time.Duration) time.Duration {
	at := t.begin()
	t.now += d
	return at
}

func fail(code int, call, format string, args ...any) error {
	return cuda.NewError(code, call).WithDetail(fmt.Errorf(format, args...))
}

const (
	invalidValue      = 1
	outOfMemory       = 2
	alreadyMapped     = 208
	notMapped         = 211
	invalidHandle     = 400
	hostRegistered    = 712
	hostNotRegistered = 713
	notSupported      = 801
)

// Info describes the simulated card.
func (t *Thread) Info() cuda.DeviceInfo {
	p := t.g.profile
	return cuda.DeviceInfo{
		Name: p.DeviceName, UUID: "GPU-00000000-5349-4d55-4c41-544544000000",
		TotalBytes: t.g.capacityBytes, ComputeMajor: p.ComputeMajor, ComputeMinor: p.ComputeMinor,
		DriverVersion: p.DriverVersion, CUDAVersion: p.CUDAVersion, SimulatedHardware: true,
	}
}

// Capabilities follow the profile's CUDA version.
func (t *Thread) Capabilities() cuda.Capabilities {
	v := t.g.profile.CUDAVersion
	return cuda.Capabilities{
		ManagedMemory: true, ConcurrentManagedAccess: true, PageableMemoryAccess: true,
		VirtualMemory: true, PrefetchBatch: v >= 13000, DiscardBatch: v >= 13000,
		StreamMemOps: true, FunctionParamInfo: v >= 12040, HostNUMA: true,
	}
}

// BindThread does nothing here.
func (t *Thread) BindThread() error { return nil }

// MemInfo reports what no client holds. Chunks that managed memory holds count
// as taken even when they could be evicted, as on the real driver.
func (t *Thread) MemInfo() (free, total int64, err error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.StreamCall)
	return g.capacityBytes - g.usedBytes(), g.capacityBytes, nil
}

// MemAlloc takes plain device memory, evicting managed chunks when it must.
func (t *Thread) MemAlloc(bytes int64) (cuda.Ptr, error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.MemAllocCall)
	if bytes <= 0 {
		return 0, fail(invalidValue, "cuMemAlloc", "%d bytes asked for", bytes)
	}
	size := (bytes + plainAlign - 1) / plainAlign * plainAlign
	before := g.usedBytes()
	g.plainBytes += size
	grow := g.usedBytes() - before
	g.plainBytes -= size
	if err := t.makeRoom(grow, "cuMemAlloc"); err != nil {
		return 0, err
	}
	g.plainBytes += size
	p := g.place(plainAddress, size, plainAlign)
	g.plain = append(g.plain, &plainAlloc{cuda.Range{Base: p, Bytes: size}})
	return p, nil
}

// makeRoom evicts for bytes of memory that is not managed; the caller waits for the copies.
func (t *Thread) makeRoom(bytes int64, call string) error {
	g := t.g
	out, ok := g.shrink(bytes)
	if !ok {
		return fail(outOfMemory, call, "%d bytes more with %d of %d bytes in use, of which %d are managed chunks",
			bytes, g.usedBytes(), g.capacityBytes, g.chunks*blockBytes)
	}
	t.spend(perByte(out, g.profile.EvictBytesPerSecond))
	return nil
}

// MemFree frees plain or managed memory. Work that still uses it is not waited for.
func (t *Thread) MemFree(p cuda.Ptr) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.MemFreeCall)
	if i, ok := findPlain(g.plain, p); ok && g.plain[i].Base == p {
		g.plainBytes -= g.plain[i].Bytes
		g.plain = remove(g.plain, i)
		return nil
	}
	i := g.findSegment(p)
	if i == len(g.managed) || g.managed[i].Base != p {
		return fail(invalidValue, "cuMemFree", "%#x is not the start of an allocation", uint64(p))
	}
	s := g.managed[i]
	s.freed = true
	for k := range s.blocks {
		if b := &s.blocks[k]; b.moving == nil {
			g.dropBlock(b)
		}
	}
	g.managedBytes -= s.Bytes
	g.managed = remove(g.managed, i)
	return nil
}

// HostAlloc takes pinned memory.
func (t *Thread) HostAlloc(bytes int64) (cuda.Ptr, error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes <= 0 {
		t.spend(g.profile.HostAllocCall)
		return 0, fail(invalidValue, "cuMemHostAlloc", "%d bytes asked for", bytes)
	}
	t.spend(g.profile.HostAllocCall + perByte(bytes, g.profile.HostAllocBytesPerSecond))
	p := g.place(pinnedAddress, bytes, 4*kib)
	g.pinned = append(g.pinned, &plainAlloc{cuda.Range{Base: p, Bytes: bytes}})
	return p, nil
}

// HostFree frees pinned memory.
func (t *Thread) HostFree(p cuda.Ptr) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.MemFreeCall)
	i, ok := findPlain(g.pinned, p)
	if !ok || g.pinned[i].Base != p {
		return fail(invalidValue, "cuMemFreeHost", "%#x is not the start of a pinned allocation", uint64(p))
	}
	g.pinned = remove(g.pinned, i)
	return nil
}

// HostRegister pins memory of the caller: any addresses outside the simulated card's own.
func (t *Thread) HostRegister(p cuda.Ptr, bytes int64) error {
	const call = "cuMemHostRegister"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	r := cuda.Range{Base: p, Bytes: bytes}
	if bytes <= 0 || r.End() < p || kindOf(p) != addressKinds || kindOf(r.End()-1) != addressKinds || p < firstAddress && r.End() > firstAddress {
		t.spend(g.profile.HostAllocCall)
		return fail(invalidValue, call, "%#x + %d bytes is not memory of the caller", uint64(p), bytes)
	}
	t.spend(g.profile.HostAllocCall + perByte(bytes, g.profile.HostRegisterBytesPerSecond))
	i, _ := findPlain(g.registered, p)
	if i < len(g.registered) && g.registered[i].Base < r.End() {
		return fail(hostRegistered, call, "%#x is registered already", uint64(g.registered[i].Base))
	}
	g.registered = slices.Insert(g.registered, i, &plainAlloc{r})
	return nil
}

// AllocationAt is the plain, pinned, registered or managed allocation that p lies in.
func (t *Thread) AllocationAt(p cuda.Ptr) (r cuda.Range, ok bool) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.StreamCall)
	for _, list := range [][]*plainAlloc{g.plain, g.pinned, g.registered} {
		if i, found := findPlain(list, p); found {
			return list[i].Range, true
		}
	}
	if pieces, found := g.pieces(cuda.Range{Base: p, Bytes: 1}, false, nil); found {
		return pieces[0].seg.Range, true
	}
	return cuda.Range{}, false
}

// HostUnregister undoes HostRegister.
func (t *Thread) HostUnregister(p cuda.Ptr) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.MemFreeCall)
	i, ok := findPlain(g.registered, p)
	if !ok || g.registered[i].Base != p {
		return fail(hostNotRegistered, "cuMemHostUnregister", "%#x is not the start of registered memory", uint64(p))
	}
	g.registered = remove(g.registered, i)
	return nil
}

// noContents is why device code does not run here.
func noContents(call string) error {
	return fail(notSupported, call, "simulated memory has no contents for a kernel to work on")
}

// LoadModule fails: simulated memory has no contents.
func (t *Thread) LoadModule([]byte) (cuda.Module, error) { return 0, noContents("cuModuleLoadDataEx") }

// UnloadModule fails: there are no modules.
func (t *Thread) UnloadModule(cuda.Module) error { return noContents("cuModuleUnload") }

// ModuleFunction fails: there are no modules.
func (t *Thread) ModuleFunction(cuda.Module, string) (cuda.Function, error) {
	return 0, noContents("cuModuleGetFunction")
}

// Launch fails: there are no functions. Kernels of the job go through GPU.Launch.
func (t *Thread) Launch(cuda.Function, [3]uint32, [3]uint32, cuda.Stream, ...uint64) error {
	return noContents("cuLaunchKernel")
}

// LaunchAgain fails: there are no functions.
func (t *Thread) LaunchAgain(*cuda.RecordedLaunch, cuda.Stream) error {
	return noContents("cuLaunchKernel")
}

// MemAllocManaged takes managed memory; each allocation starts a block of its own.
func (t *Thread) MemAllocManaged(bytes int64) (cuda.Ptr, error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.ManagedAllocCall)
	if bytes <= 0 {
		return 0, fail(invalidValue, "cuMemAllocManaged", "%d bytes asked for", bytes)
	}
	if g.limitBytes > 0 && g.managedBytes+bytes > g.limitBytes {
		return 0, cuda.NewError(outOfMemory, "cuMemAllocManaged").WithDetail(
			&cuda.ManagedLimitError{RequestedBytes: bytes, LiveBytes: g.managedBytes, LimitBytes: g.limitBytes})
	}
	p := g.place(managedAddress, bytes, blockBytes)
	g.managed = append(g.managed, newSegment(cuda.Range{Base: p, Bytes: bytes}))
	g.managedBytes += bytes
	return p, nil
}

// managedPieces checks the ranges of a call on managed memory.
func (g *memory) managedPieces(call string, ranges []cuda.Range, whole bool) ([][]piece, error) {
	out := make([][]piece, 0, len(ranges))
	for _, r := range ranges {
		if r.Bytes <= 0 {
			return nil, fail(invalidValue, call, "range of %d bytes at %#x", r.Bytes, uint64(r.Base))
		}
		p, ok := g.pieces(r, whole, nil)
		if !ok {
			return nil, fail(invalidValue, call, "%#x + %d bytes is not managed memory", uint64(r.Base), r.Bytes)
		}
		out = append(out, p)
	}
	return out, nil
}

func (g *GPU) stream(call string, s cuda.Stream) (*stream, error) {
	if st := g.streams[s]; st != nil {
		return st, nil
	}
	return nil, fail(invalidHandle, call, "stream %d does not exist", s)
}

// Prefetch moves ranges. The caller pays the software part, and for moves to
// the host on an idle stream also the mapping, which the driver does in the
// calling thread.
func (t *Thread) Prefetch(ranges []cuda.Range, to cuda.Location, s cuda.Stream) error {
	const call = "cuMemPrefetchAsync"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	at := t.begin()
	st, err := g.stream(call, s)
	if err != nil {
		return err
	}
	pieces, err := g.managedPieces(call, ranges, false)
	if err != nil {
		return err
	}
	idle := !st.busy && st.idle <= at
	for _, p := range pieces {
		software, mapping := g.prefetchCost(p, to)
		t.spend(software)
		if idle {
			t.spend(mapping)
		}
	}
	g.submit(st, at, func(done func()) { g.startMove(pieces, to, done) })
	return nil
}

// Discard drops contents in stream order. Leaves that a range covers only in
// part keep theirs.
func (t *Thread) Discard(ranges []cuda.Range, s cuda.Stream) error {
	const call = "cuMemDiscardBatchAsync"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	at := t.begin()
	if g.profile.CUDAVersion < 13000 {
		return fail(notSupported, call, "needs CUDA 13.0, the simulated driver has %d.%d", g.profile.CUDAVersion/1000, g.profile.CUDAVersion%1000/10)
	}
	if s == 0 {
		return fail(invalidValue, call, "the legacy default stream is not allowed: use a stream of your own")
	}
	st, err := g.stream(call, s)
	if err != nil {
		return err
	}
	pieces, err := g.managedPieces(call, ranges, true)
	if err != nil {
		return err
	}
	cost := func() time.Duration {
		var n int64
		for _, r := range pieces {
			for _, p := range r {
				for i, end := p.blockRange(); i < end; i++ {
					b := &p.seg.blocks[i]
					n += b.bytes(p.mask(i) & (b.dev | b.host) &^ b.dead)
				}
			}
		}
		return g.profile.DiscardCall + perGiB(n, g.profile.DiscardPerGiB)
	}
	t.spend(cost())
	g.submit(st, at, func(done func()) {
		g.after(cost(), func() {
			for _, r := range pieces {
				for _, p := range r {
					if !p.seg.freed {
						g.discardPiece(p)
					}
				}
			}
			done()
		})
	})
	return nil
}

func (g *memory) discardPiece(p piece) {
	for i, end := p.blockRange(); i < end; i++ {
		b := &p.seg.blocks[i]
		m := p.mask(i) & b.valid
		g.stats.DiscardedBytes += b.bytes(m & (b.dev | b.host) &^ b.dead)
		if b.moving != nil {
			b.discardLater |= m
		} else {
			g.discardBlock(b, m)
		}
	}
}

// Advise sets or clears a hint on a range.
func (t *Thread) Advise(r cuda.Range, a cuda.Advice, l cuda.Location) error {
	const call = "cuMemAdvise"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if a < cuda.SetReadMostly || a > cuda.UnsetAccessedBy {
		return fail(invalidValue, call, "advice %d", a)
	}
	ranges, err := g.managedPieces(call, []cuda.Range{r}, false)
	if err != nil {
		return err
	}
	var dropped int64
	for _, p := range ranges[0] {
		for i, end := p.blockRange(); i < end && a == cuda.UnsetReadMostly; i++ {
			b := &p.seg.blocks[i]
			dropped += b.bytes(p.mask(i) & b.readMostly & b.dev & b.host)
		}
	}
	at := t.spend(g.profile.AdviseCall + perGiB(dropped, g.profile.UnduplicatePerGiB))
	apply := func() {
		for _, p := range ranges[0] {
			for i, end := p.blockRange(); i < end && !p.seg.freed; i++ {
				g.adviseBlock(&p.seg.blocks[i], p.mask(i)&p.seg.blocks[i].valid, a, l)
			}
		}
	}
	if at == g.now {
		apply()
	} else {
		g.schedule(at, apply)
	}
	return nil
}

func (g *memory) adviseBlock(b *block, m mask, a cuda.Advice, l cuda.Location) {
	switch a {
	case cuda.SetReadMostly:
		b.readMostly |= m
	case cuda.UnsetReadMostly:
		b.readMostly &^= m
		if b.moving == nil {
			// The duplicate on the device goes, for nothing.
			g.setDevice(b, b.dev&^(m&b.host))
			g.relist(b)
		}
	case cuda.SetPreferredLocation:
		b.preferHost &^= m
		if l == cuda.Host {
			b.preferHost |= m
		}
	case cuda.UnsetPreferredLocation:
		b.preferHost &^= m
	case cuda.SetAccessedBy:
		if l == cuda.Device {
			b.accessedBy |= m
		}
	case cuda.UnsetAccessedBy:
		if l == cuda.Device {
			b.accessedBy &^= m
		}
	}
	b.refresh()
}

// StreamCreate makes a stream.
func (t *Thread) StreamCreate() (cuda.Stream, error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.StreamCreateCall)
	g.nextObject++
	s := cuda.Stream(g.nextObject)
	g.streams[s] = &stream{id: s}
	return s, nil
}

// StreamDestroy makes the handle invalid; work already queued still runs.
func (t *Thread) StreamDestroy(s cuda.Stream) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.StreamCreateCall)
	if s == 0 {
		return fail(invalidHandle, "cuStreamDestroy", "the default stream cannot be destroyed")
	}
	if _, err := g.stream("cuStreamDestroy", s); err != nil {
		return err
	}
	delete(g.streams, s)
	return nil
}

// await steps the simulator until done holds, and the thread's clock with it.
func (t *Thread) await(call string, done func() bool) error {
	g := t.g
	for {
		g.mu.Lock()
		err := g.sticky()
		over := err != nil || done()
		if over {
			t.begin()
		}
		g.mu.Unlock()
		if over {
			return err
		}
		if !g.Step() {
			g.mu.Lock()
			over := done()
			g.mu.Unlock()
			if over {
				continue
			}
			return cuda.NewError(600, call).WithDetail(errors.New("the simulation has nothing left to run, so this wait would never end: open the gate or record the event first"))
		}
	}
}

// StreamSynchronize waits for what is queued now.
func (t *Thread) StreamSynchronize(s cuda.Stream) error {
	g := t.g
	g.mu.Lock()
	st, err := g.stream("cuStreamSynchronize", s)
	if err != nil {
		g.mu.Unlock()
		return err
	}
	t.spend(g.profile.StreamCall)
	target := st.submitted
	g.mu.Unlock()
	return t.await("cuStreamSynchronize", func() bool { return st.completed >= target })
}

// Synchronize waits for what is queued now on any stream.
func (t *Thread) Synchronize() error {
	g := t.g
	g.mu.Lock()
	targets := make(map[*stream]uint64, len(g.streams))
	for _, st := range g.streams {
		targets[st] = st.submitted
	}
	t.spend(g.profile.StreamCall)
	g.mu.Unlock()
	return t.await("cuCtxSynchronize", func() bool {
		for st, target := range targets {
			if st.completed < target {
				return false
			}
		}
		return true
	})
}

// query lets the simulator run up to the thread's clock, then asks.
func (t *Thread) query(done func() bool) (bool, error) {
	g := t.g
	g.runUntil(t.now, done)
	g.mu.Lock()
	defer g.mu.Unlock()
	return done(), g.sticky()
}

// StreamQuery says whether everything queued is done at the thread's time.
func (t *Thread) StreamQuery(s cuda.Stream) (bool, error) {
	g := t.g
	g.mu.Lock()
	st, err := g.stream("cuStreamQuery", s)
	t.spend(g.profile.StreamCall)
	g.mu.Unlock()
	if err != nil {
		return false, err
	}
	return t.query(func() bool { return st.completed == st.submitted })
}

// StreamCapturing says that nothing is captured here.
func (t *Thread) StreamCapturing(cuda.Stream) bool { return false }

// StreamWaitEvent makes the stream wait for the event's last record before this call.
func (t *Thread) StreamWaitEvent(s cuda.Stream, e cuda.Event) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	st, err := g.stream("cuStreamWaitEvent", s)
	if err != nil {
		return err
	}
	ev, err := g.event("cuStreamWaitEvent", e)
	if err != nil {
		return err
	}
	at, value := t.spend(g.profile.StreamCall), ev.recorded
	g.submit(st, at, func(done func()) { g.wait(st, &ev.reached, value, done) })
	return nil
}

func (g *GPU) event(call string, e cuda.Event) (*eventState, error) {
	if ev := g.events[e]; ev != nil {
		return ev, nil
	}
	return nil, fail(invalidHandle, call, "event %d does not exist", e)
}

// StreamWriteValue32 raises the word at p in stream order. A word never goes
// down here: a value cyclically below it has no effect.
func (t *Thread) StreamWriteValue32(s cuda.Stream, p cuda.Ptr, v uint32) error {
	const call = "cuStreamWriteValue32"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	st, err := g.stream(call, s)
	if err != nil {
		return err
	}
	if p%4 != 0 || !g.accessible(cuda.Range{Base: p, Bytes: 4}) {
		return fail(invalidValue, call, "%#x is not a word of accessible memory", uint64(p))
	}
	at := t.spend(g.profile.StreamCall)
	g.submit(st, at, func(done func()) {
		c := g.word(p)
		if value, ok := c.ahead(v); ok {
			c.raise(value)
		}
		done()
	})
	return nil
}

// EventCreate makes an event.
func (t *Thread) EventCreate() (cuda.Event, error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.StreamCall)
	g.nextObject++
	e := cuda.Event(g.nextObject)
	g.events[e] = &eventState{}
	return e, nil
}

// EventDestroy makes the handle invalid.
func (t *Thread) EventDestroy(e cuda.Event) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.StreamCall)
	if _, err := g.event("cuEventDestroy", e); err != nil {
		return err
	}
	delete(g.events, e)
	return nil
}

// EventRecord queues the event on the stream.
func (t *Thread) EventRecord(e cuda.Event, s cuda.Stream) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	ev, err := g.event("cuEventRecord", e)
	if err != nil {
		return err
	}
	st, err := g.stream("cuEventRecord", s)
	if err != nil {
		return err
	}
	at := t.spend(g.profile.StreamCall)
	ev.recorded++
	value := ev.recorded
	g.submit(st, at, func(done func()) {
		ev.reached.raise(value)
		done()
	})
	return nil
}

// EventQuery says whether the last record was reached at the thread's time.
func (t *Thread) EventQuery(e cuda.Event) (bool, error) {
	g := t.g
	g.mu.Lock()
	ev, err := g.event("cuEventQuery", e)
	t.spend(g.profile.StreamCall)
	g.mu.Unlock()
	if err != nil {
		return false, err
	}
	return t.query(func() bool { return ev.reached.value >= ev.recorded })
}

// EventSynchronize waits for the last record.
func (t *Thread) EventSynchronize(e cuda.Event) error {
	g := t.g
	g.mu.Lock()
	ev, err := g.event("cuEventSynchronize", e)
	if err != nil {
		g.mu.Unlock()
		return err
	}
	t.spend(g.profile.StreamCall)
	value := ev.recorded
	g.mu.Unlock()
	return t.await("cuEventSynchronize", func() bool { return ev.reached.value >= value })
}
