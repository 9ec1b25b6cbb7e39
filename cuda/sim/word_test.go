package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

func TestRegisteredMemory(t *testing.T) {
	rig := newRig(t, Options{})
	th, s := rig.th, rig.s
	const own = cuda.Ptr(0x7f00_0000_0000)
	dev, err := th.MemAlloc(4 * mib)
	rig.must(err)
	if err := th.CopyAsync(dev, own, 4*mib, s); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Fatalf("a copy from memory that is not registered: %v", err)
	}
	before := th.Now()
	rig.must(th.HostRegister(own, 8*mib))
	if took, want := th.Now()-before, perByte(8*mib, h200().HostRegisterBytesPerSecond); took < want || took > want+time.Millisecond {
		t.Errorf("registering took %v, want %v", took, want)
	}
	for _, r := range []cuda.Range{{Base: own + 4096, Bytes: 1}, {Base: own - 4096, Bytes: 8192}, {Base: own, Bytes: 8 * mib}} {
		if err := th.HostRegister(r.Base, r.Bytes); !errors.Is(err, cuda.ErrHostRegistered) {
			t.Errorf("%+v again: %v", r, err)
		}
	}
	for _, r := range []cuda.Range{{Base: dev, Bytes: 4096}, {Base: firstAddress - 4096, Bytes: 8192}, {Base: own + 1<<30, Bytes: -1}} {
		if err := th.HostRegister(r.Base, r.Bytes); !errors.Is(err, cuda.ErrInvalidValue) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	rig.must(th.CopyAsync(dev, own+cuda.Ptr(4*mib), 4*mib, s))
	rig.must(th.StreamSynchronize(s))
	if err := th.CopyAsync(dev, own+cuda.Ptr(6*mib), 4*mib, s); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("past the end: %v", err)
	}
	if err := th.HostUnregister(own + 4096); !errors.Is(err, cuda.ErrHostNotRegistered) {
		t.Errorf("not the start: %v", err)
	}
	rig.must(th.HostUnregister(own))
	rig.must(th.HostRegister(own, mib))
}

// A copy stream writes a word behind each copy; a compute stream waits for it.
func TestWordsOrderStreams(t *testing.T) {
	for _, start := range []uint32{0, 0xffff_fffe} { // the second wraps around
		rig := newRig(t, Options{})
		g, th := rig.g, rig.th
		copies, compute := rig.s, rig.stream()
		host, err := th.HostAlloc(64 * mib)
		rig.must(err)
		dev, err := th.MemAlloc(64 * mib)
		rig.must(err)
		word, err := th.HostAlloc(64)
		rig.must(err)
		for v := uint32(0); v != start; v += start / 2 { // up to start, by less than half a turn
			rig.must(th.StreamWriteValue32(copies, word, v+start/2))
		}
		rig.must(th.StreamSynchronize(copies))
		var at [2]time.Duration
		began := g.Now()
		for i := range at {
			v := start + 1 + uint32(i)
			g.WaitValue32(compute, word, v)
			g.Callback(compute, func(now time.Duration) { at[i] = now })
			rig.must(th.CopyAsync(dev, host, 64*mib, copies))
			rig.must(th.StreamWriteValue32(copies, word, v))
		}
		rig.must(th.StreamSynchronize(compute))
		one := perByte(64*mib, h200().CopyBytesPerSecond)
		if at[0]-began < one || at[1] < at[0]+one {
			t.Errorf("from %#x: released at %v, a copy takes %v", start, at, one)
		}
		if w := g.Word(word); w != start+2 {
			t.Errorf("the word is %#x, want %#x", w, start+2)
		}
		g.WaitValue32(compute, word, start-5)                  // long reached
		rig.must(th.StreamWriteValue32(copies, word, start+1)) // never down
		rig.must(th.StreamSynchronize(compute))
		rig.must(th.StreamSynchronize(copies))
		if w := g.Word(word); w != start+2 {
			t.Errorf("the word fell to %#x", w)
		}
	}
}

func TestWordsElsewhere(t *testing.T) {
	rig := newRig(t, Options{})
	th, s := rig.th, rig.s
	p, err := th.HostAlloc(64)
	rig.must(err)
	for _, bad := range []cuda.Ptr{0, p + 2, p + 64, 0x7f00_0000_0000} {
		if err := th.StreamWriteValue32(s, bad, 1); !errors.Is(err, cuda.ErrInvalidValue) {
			t.Errorf("at %#x: %v", uint64(bad), err)
		}
	}
	if _, err := th.LoadModule([]byte("x")); !errors.Is(err, cuda.ErrNotSupported) {
		t.Errorf("device code: %v", err)
	}
}
