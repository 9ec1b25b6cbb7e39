package faults

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/penstock-gpu/penstock/trace"
)

// producer is the driver's side of a ring in plain memory.
type producer struct {
	queue, control []byte
	mask           uint32
}

func newProducer(entries int) *producer {
	control := unsafe.Slice((*byte)(unsafe.Pointer(&make([]uint64, 4096/8)[0])), 4096) // aligned for atomics
	return &producer{queue: make([]byte, entries*EntryBytes), control: control, mask: uint32(entries - 1)}
}

func (p *producer) index(at int) *uint32 { return (*uint32)(unsafe.Pointer(&p.control[at])) }

// send does as the driver does: one slot stays free, and an event that finds none is counted.
func (p *producer) send(entry []byte) bool {
	put := atomic.LoadUint32(p.index(ctrlPutBehind)) & p.mask
	if (put+1)&p.mask == atomic.LoadUint32(p.index(ctrlGetAhead))&p.mask {
		atomic.AddUint64((*uint64)(unsafe.Pointer(&p.control[ctrlDropped+8*int(entry[0])])), 1)
		return false
	}
	copy(p.queue[put*EntryBytes:], entry)
	put = (put + 1) & p.mask
	atomic.StoreUint32(p.index(ctrlPutAhead), put)
	atomic.StoreUint32(p.index(ctrlPutBehind), put)
	return true
}

func (p *producer) ring(t *testing.T) *ring {
	t.Helper()
	r, err := newRing(p.queue, p.control)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRingWrapsAround(t *testing.T) {
	p := newProducer(8)
	r := p.ring(t)
	next, want := uint32(0), uint32(0)
	for round := range 50 { // 50 rounds of 0 to 6 entries pass the end of the ring at every offset
		for range round % 7 {
			if !p.send(faultEntry(1, 1, 1, 0x1000, 1, next)) {
				t.Fatal("the ring is full too early")
			}
			next++
		}
		if n := r.waiting(); n != round%7 {
			t.Fatalf("%d waiting, want %d", n, round%7)
		}
		for _, e := range r.drain(nil) {
			if e.Batch != want {
				t.Fatalf("event %d came instead of %d", e.Batch, want)
			}
			want++
		}
	}
	if want != next || r.dropped() != 0 || r.unknown != 0 {
		t.Errorf("read %d of %d, %d dropped, %d unknown", want, next, r.dropped(), r.unknown)
	}
}

func TestRingOverflow(t *testing.T) {
	p := newProducer(8)
	r := p.ring(t)
	for i := range uint32(10) {
		p.send(faultEntry(1, 1, 1, 0x1000, 1, i))
	}
	p.send(migrationEntry(1, 0, 1, 0x1000, 4096, 1, 2))
	if r.dropped() != 4 { // 7 fit, 3 faults and a migration do not
		t.Errorf("%d dropped, want 4", r.dropped())
	}
	events := r.drain(nil)
	if len(events) != 7 || events[6].Batch != 6 {
		t.Fatalf("old events were overwritten: %+v", events)
	}
	if !p.send(migrationEntry(1, 0, 1, 0x1000, 4096, 1, 2)) {
		t.Error("no room after a drain")
	}
	if events = r.drain(events[:0]); len(events) != 1 || events[0].Kind != trace.KindMigration {
		t.Errorf("after the overflow: %+v", events)
	}
}

func TestRingCountsNonsense(t *testing.T) {
	p := newProducer(16)
	r := p.ring(t)
	for _, kind := range []byte{0, 5, 7, 63} {
		b := make([]byte, EntryBytes)
		b[0] = kind
		p.send(b)
	}
	p.send(faultEntry(1, 1, 1, 0x1000, 1, 9))
	if e := r.drain(nil); len(e) != 1 || e[0].Batch != 9 || r.unknown != 4 {
		t.Errorf("%+v, %d unknown", e, r.unknown)
	}
}

// A kernel with a bug must not make the reader leave the ring.
func TestRingMasksIndices(t *testing.T) {
	p := newProducer(8)
	r := p.ring(t)
	atomic.StoreUint32(p.index(ctrlPutBehind), 0xffffffff)
	if n := len(r.drain(nil)) + int(r.unknown); n != 7 {
		t.Errorf("%d entries read, want 7", n)
	}
	atomic.StoreUint32(p.index(ctrlGetBehind), 0xfffffff0)
	r.drain(nil)
	if r.waiting() != 0 {
		t.Errorf("%d waiting", r.waiting())
	}
}

func TestRingAppends(t *testing.T) {
	p := newProducer(8)
	r := p.ring(t)
	p.send(faultEntry(1, 1, 1, 0x1000, 1, 1))
	buffer := make([]Event, 1, 4)
	buffer[0].Batch = 77
	got := r.drain(buffer)
	if len(got) != 2 || got[0].Batch != 77 || got[1].Batch != 1 || &got[0] != &buffer[0] {
		t.Errorf("%+v", got)
	}
}

func TestRingConcurrently(t *testing.T) {
	const events = 20000
	p := newProducer(256)
	r := p.ring(t)
	var wg sync.WaitGroup
	var done atomic.Bool
	sent := 0
	wg.Go(func() {
		for i := range uint32(events) {
			if p.send(faultEntry(1, 1, 1, uint64(i)<<12, uint64(i), i)) {
				sent++
			}
			if i%512 == 0 {
				runtime.Gosched()
			}
		}
		done.Store(true)
	})
	got, last := 0, int64(-1)
	var buffer []Event
	for stop := false; !stop; {
		stop = done.Load() // look once more after the producer has stopped
		buffer = r.drain(buffer[:0])
		for _, e := range buffer {
			if e.Address != uint64(e.Batch)<<12 || e.BeginNanos != int64(e.Batch) {
				t.Fatalf("torn event %+v", e)
			}
			if int64(e.Batch) <= last {
				t.Fatalf("event %d after %d", e.Batch, last)
			}
			last = int64(e.Batch)
		}
		got += len(buffer)
		if len(buffer) == 0 {
			runtime.Gosched()
		}
	}
	wg.Wait()
	if got != sent || uint64(events-sent) != r.dropped() {
		t.Errorf("sent %d, read %d, dropped %d of %d", sent, got, r.dropped(), events)
	}
}

func TestNewRingRefuses(t *testing.T) {
	for _, bytes := range []int{0, 63, 64, 3 * 64, 8*64 + 1} {
		if _, err := newRing(make([]byte, bytes), make([]byte, 4096)); err == nil {
			t.Errorf("a queue of %d bytes was taken", bytes)
		}
	}
	if _, err := newRing(make([]byte, 128), make([]byte, ctrlBytes-1)); err == nil {
		t.Error("a short control block was taken")
	}
}

func FuzzDrain(f *testing.F) {
	f.Add(faultEntry(2, 1, 1, 0x7f0000201000, 5000, 17), uint32(3), uint32(1))
	f.Add(migrationEntry(4, 1, 0, 0x200000, 65536, 100, 250), uint32(0xffffffff), uint32(7))
	f.Fuzz(func(t *testing.T, b []byte, put, get uint32) {
		p := newProducer(8)
		copy(p.queue, b)
		r := p.ring(t)
		atomic.StoreUint32(p.index(ctrlPutBehind), put)
		atomic.StoreUint32(p.index(ctrlGetBehind), get)
		n := r.waiting()
		if got := len(r.drain(nil)) + int(r.unknown); got != n || r.waiting() != 0 {
			t.Fatalf("%d waiting, %d read, %d left", n, got, r.waiting())
		}
	})
}

func BenchmarkDrain(b *testing.B) {
	p := newProducer(1 << 12)
	r, _ := newRing(p.queue, p.control)
	entry := faultEntry(2, 1, 1, 0x7f0000201000, 5000, 17)
	var buffer []Event
	for b.Loop() {
		for range 1024 {
			p.send(entry)
		}
		buffer = r.drain(buffer[:0])
	}
	if len(buffer) != 1024 {
		b.Fatal("events were lost")
	}
	b.SetBytes(1024 * EntryBytes)
}
