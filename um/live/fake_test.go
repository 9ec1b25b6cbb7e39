package live

import (
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

const (
	mib = 1 << 20
	// blockBytes is what the driver keeps accounts in of managed memory.
	blockBytes = 2 * mib
)

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
	d.next += cuda.Ptr((bytes + blockBytes - 1) / blockBytes * blockBytes)
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
		for p := r.Base; p < r.End(); p += blockBytes {
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
	d.mostBytes = max(d.mostBytes, d.used+int64(len(d.onDevice))*blockBytes)
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
	for p := r.Base; p < r.End(); p += blockBytes {
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
