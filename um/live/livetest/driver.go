package livetest

import (
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

const (
	MiB = 1 << 20
	// blockBytes is what the driver keeps accounts in of managed memory.
	blockBytes = 2 * MiB
)

// Driver is a driver that keeps accounts and moves nothing. Calls that the
// engine does not make are those of the nil interface.
type Driver struct {
	cuda.Driver
	Mu          sync.Mutex
	Total, Used int64
	Next        cuda.Ptr
	plain       map[cuda.Ptr]int64
	prefetched  []cuda.Location
	Discarded   int
	MoveError   error
	Block       chan struct{} // moves wait for it to be closed; nil: they do not
	Caps        cuda.Capabilities
	events      map[cuda.Event]bool // whether it has been reached
	onDevice    map[cuda.Ptr]bool   // managed memory, by block
	most        int                 // blocks that were there at any time
	mostBytes   int64               // plain memory and blocks at any time
	Streams     int                 // made
	Ended       error               // of the context
	capturing   cuda.Stream         // a stream that captures; 0: none
	unseen      bool                // it has begun to since it was last asked
	captured    map[cuda.Event]bool // events that were recorded on it meanwhile
}

func NewDriver(total int64) *Driver {
	return &Driver{
		Total: total, Next: 1 << 40, plain: map[cuda.Ptr]int64{}, events: map[cuda.Event]bool{}, captured: map[cuda.Event]bool{}, onDevice: map[cuda.Ptr]bool{},
		Caps: cuda.Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true, StreamMemOps: true, DiscardBatch: true},
	}
}

var began = time.Now()

func (d *Driver) Info() cuda.DeviceInfo                 { return cuda.DeviceInfo{TotalBytes: d.Total} }
func (d *Driver) Capabilities() cuda.Capabilities       { return d.Caps }
func (d *Driver) BindThread() error                     { return nil }
func (d *Driver) Now() time.Duration                    { return time.Since(began) }
func (d *Driver) StreamDestroy(cuda.Stream) error       { return nil }
func (d *Driver) StreamSynchronize(s cuda.Stream) error { return nil }
func (d *Driver) Synchronize() error                    { return nil }

func (d *Driver) StreamCreate() (cuda.Stream, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.Streams++
	return cuda.Stream(d.Streams), nil
}

func (d *Driver) MemInfo() (free, total int64, err error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.Total - d.Used, d.Total, d.Ended
}

func (d *Driver) address(bytes int64) cuda.Ptr {
	p := d.Next
	d.Next += cuda.Ptr((bytes + blockBytes - 1) / blockBytes * blockBytes)
	return p
}

func (d *Driver) MemAlloc(bytes int64) (cuda.Ptr, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Used+bytes > d.Total {
		return 0, cuda.NewError(2, "cuMemAlloc")
	}
	d.Used += bytes
	d.noteBytes()
	p := d.address(bytes)
	d.plain[p] = bytes
	return p, nil
}

func (d *Driver) MemFree(p cuda.Ptr) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.plain[p] == 0 {
		return cuda.NewError(1, "cuMemFree")
	}
	d.Used -= d.plain[p]
	delete(d.plain, p)
	return nil
}

func (d *Driver) HostAlloc(bytes int64) (cuda.Ptr, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.address(bytes), nil
}

func (d *Driver) MemAllocManaged(bytes int64) (cuda.Ptr, error) { return d.HostAlloc(bytes) }

func (d *Driver) Prefetch(r []cuda.Range, to cuda.Location, s cuda.Stream) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.await()
	if d.MoveError == nil {
		d.prefetched = append(d.prefetched, to)
		d.set(r, to == cuda.Device)
	}
	return d.MoveError
}

// await waits until moves may go on. The caller holds the lock, which is released meanwhile.
func (d *Driver) await() {
	if b := d.Block; b != nil {
		d.Mu.Unlock()
		<-b
		d.Mu.Lock()
	}
}

func (d *Driver) set(ranges []cuda.Range, on bool) {
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

func (d *Driver) noteBytes() {
	d.mostBytes = max(d.mostBytes, d.Used+int64(len(d.onDevice))*blockBytes)
}

// PeakBytes is the most that plain memory and blocks took together at any time.
func (d *Driver) PeakBytes() int64 {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.mostBytes
}

// Peak is the most blocks that were on the device at any time.
func (d *Driver) Peak() int {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.most
}

// Blocks is how many are on the device.
func (d *Driver) Blocks() int64 {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return int64(len(d.onDevice))
}

// PlainUsed is how much plain memory is allocated.
func (d *Driver) PlainUsed() int64 {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.Used
}

// Holds says whether a range is wholly on the device.
func (d *Driver) Holds(r cuda.Range) bool {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for p := r.Base; p < r.End(); p += blockBytes {
		if !d.onDevice[p] {
			return false
		}
	}
	return true
}

func (d *Driver) Discard(r []cuda.Range, s cuda.Stream) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.Discarded++
	d.await()
	if d.MoveError == nil {
		d.set(r, false)
	}
	return d.MoveError
}

func (d *Driver) EventCreate() (cuda.Event, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	e := cuda.Event(len(d.events) + 1)
	d.events[e] = false
	return e, nil
}

func (d *Driver) EventDestroy(e cuda.Event) error { return nil }

func (d *Driver) EventRecord(e cuda.Event, s cuda.Stream) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.events[e], d.captured[e] = false, s == d.capturing && s != 0
	return nil
}

func (d *Driver) StreamCapturing(s cuda.Stream) bool {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return s == d.capturing && s != 0 && !d.unseen
}

func (d *Driver) Capture(s cuda.Stream, unseen bool) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.capturing, d.unseen = s, unseen
}

func (d *Driver) EventQuery(e cuda.Event) (bool, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.captured[e] {
		return false, cuda.NewError(907, "cuEventQuery")
	}
	return d.events[e], nil
}

func (d *Driver) ReachEvents() {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for e := range d.events {
		d.events[e] = true
	}
}

func (d *Driver) Moves() (in, out int) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for _, to := range d.prefetched {
		if to == cuda.Device {
			in++
		} else {
			out++
		}
	}
	return in, out
}
