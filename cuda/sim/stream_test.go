package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

func TestAtOrder(t *testing.T) {
	g := New(h200(), Options{})
	var got []int
	for i, at := range []time.Duration{30, 10, 20, 10, 0, 30, 10} {
		g.At(at, func() { got = append(got, i) })
	}
	g.Run()
	if want := []int{4, 1, 3, 6, 2, 0, 5}; !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
	if g.Now() != 30 || g.Step() {
		t.Errorf("now %v after the last event", g.Now())
	}
	g.At(5, func() {
		if g.Now() != 30 {
			t.Errorf("a time that has passed ran at %v", g.Now())
		}
	})
	g.Run()
}

func TestStreamOrder(t *testing.T) {
	r := newRig(t, Options{})
	a, b := r.stream(), r.stream()
	e, err := r.th.EventCreate()
	r.must(err)
	var log []string
	note := func(what string) func(time.Duration) {
		return func(at time.Duration) { log = append(log, fmt.Sprintf("%s@%d", what, at/time.Millisecond)) }
	}
	base := r.th.Now()
	r.g.At(base, func() {
		gate := r.g.NewGate()
		r.g.Launch(a, Kernel{Duration: 10 * time.Millisecond, Started: note("k1"), Done: note("k1 over")})
		r.must(r.th.EventRecord(e, a))
		r.must(r.th.StreamWaitEvent(b, e))
		r.g.Launch(b, Kernel{Duration: 5 * time.Millisecond, Started: note("k2")})
		r.g.Callback(b, note("callback"))
		r.g.Launch(a, Kernel{Duration: 20 * time.Millisecond, Started: note("k3")})
		r.g.WaitGate(a, gate, 2)
		r.g.Launch(a, Kernel{Duration: time.Millisecond, Started: note("k4"), Done: note("k4 over")})
		r.g.At(base+40*time.Millisecond, func() { gate.Open(1) })
		r.g.At(base+50*time.Millisecond, func() { gate.Open(3) })
		r.g.At(base+60*time.Millisecond, func() { gate.Open(2) })
	})
	r.g.Run()
	want := []string{"k1@0", "k1 over@10", "k2@10", "k3@10", "callback@15", "k4@50", "k4 over@51"}
	if !slices.Equal(log, want) {
		t.Errorf("got  %v\nwant %v", log, want)
	}
	s := r.g.Stats()
	if s.BusyTime != 36*time.Millisecond || s.Kernels != 4 {
		t.Errorf("busy %v in %d kernels", s.BusyTime, s.Kernels)
	}
	// From the end of k3 at 30 ms to the opening at 50 ms nothing ran.
	if d := s.WaitStall; d < 20*time.Millisecond || d > 20*time.Millisecond+10*us || s.StallTime != d {
		t.Errorf("wait stall %v, stall %v", d, s.StallTime)
	}
}

func TestSynchronizeAndQuery(t *testing.T) {
	r := newRig(t, Options{})
	e, err := r.th.EventCreate()
	r.must(err)
	if done, err := r.th.EventQuery(e); !done || err != nil {
		t.Errorf("an event never recorded: %v %v", done, err)
	}
	from := r.th.Now()
	r.g.Launch(r.s, Kernel{Duration: time.Millisecond})
	r.must(r.th.EventRecord(e, r.s))
	r.g.Launch(r.s, Kernel{Duration: time.Millisecond})
	if done, _ := r.th.StreamQuery(r.s); done {
		t.Error("done before it ran")
	}
	// Polling moves the thread's clock, so it ends.
	polls := 0
	for done := false; !done; polls++ {
		if done, err = r.th.EventQuery(e); err != nil || polls > 2000 {
			t.Fatal(err, polls)
		}
	}
	if d := r.th.Now() - from; d < 980*us || d > 1010*us {
		t.Errorf("event seen after %v", d)
	}
	r.sync()
	if d := r.th.Now() - from; d < 1980*us || d > 2010*us {
		t.Errorf("synchronised after %v", d)
	}
	r.must(r.th.EventSynchronize(e))
	r.must(r.th.EventDestroy(e))
	gate := r.g.NewGate()
	s := r.stream()
	r.g.WaitGate(s, gate, 1)
	if err := r.th.StreamSynchronize(s); !isCode(err, cuda.ErrNotReady) {
		t.Errorf("waiting for a gate that nobody opens: %v", err)
	}
	if err := r.th.Synchronize(); !isCode(err, cuda.ErrNotReady) {
		t.Errorf("the same for all streams: %v", err)
	}
	gate.Open(1)
	r.must(r.th.Synchronize())
	if done, err := r.th.StreamQuery(s); !done || err != nil {
		t.Errorf("the stream is done: %t, %v", done, err)
	}
	r.must(r.th.StreamDestroy(s))
	if err := r.th.StreamSynchronize(s); !isCode(err, cuda.ErrInvalidHandle) {
		t.Errorf("destroyed stream: %v", err)
	}
}

// Prefetches on a stream wait for the kernels before them.
func TestPrefetchInStreamOrder(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(blockBytes)
	r.prefetch(cuda.Device, m)
	r.sync()
	from := r.g.Now()
	r.g.Launch(r.s, Kernel{Duration: time.Millisecond, Accesses: []Access{{Range: m}}})
	r.prefetch(cuda.Host, m)
	var gone time.Duration
	r.g.Observe(func(e Event) { gone = e.Begin })
	r.sync()
	if gone-from < time.Millisecond {
		t.Errorf("moved %v after the kernel began", gone-from)
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t, Options{CapacityBytes: 64 * mib, ManagedLimitBytes: 32 * mib})
	m := r.managed(16 * mib)
	v100Rig := newRigOn(t, v100(), Options{})
	old := v100Rig.managed(mib)
	rsv, err := r.th.AddressReserve(4*mib, 0, 0)
	r.must(err)
	h, err := r.th.MemCreate(2*mib, cuda.Device)
	r.must(err)
	r.must(r.th.Map(rsv, 2*mib, h))
	one := func(_ any, err error) error { return err }
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"alloc 0", one(r.th.MemAlloc(0)), cuda.ErrInvalidValue},
		{"alloc too much", one(r.th.MemAlloc(gib)), cuda.ErrOutOfMemory},
		{"managed over the limit", one(r.th.MemAllocManaged(17 * mib)), cuda.ErrManagedLimit},
		{"managed over the limit is out of memory", one(r.th.MemAllocManaged(17 * mib)), cuda.ErrOutOfMemory},
		{"host alloc 0", one(r.th.HostAlloc(0)), cuda.ErrInvalidValue},
		{"free twice", r.th.MemFree(m.Base + 1), cuda.ErrInvalidValue},
		{"prefetch of nothing", r.th.Prefetch([]cuda.Range{{Base: m.Base}}, cuda.Device, r.s), cuda.ErrInvalidValue},
		{"prefetch past the end", r.th.Prefetch([]cuda.Range{{Base: m.Base, Bytes: 17 * mib}}, cuda.Device, r.s), cuda.ErrInvalidValue},
		{"prefetch on no stream", r.th.Prefetch([]cuda.Range{m}, cuda.Device, 999), cuda.ErrInvalidHandle},
		{"discard on the default stream", r.th.Discard([]cuda.Range{m}, 0), cuda.ErrInvalidValue},
		{"discard before 13.0", v100Rig.th.Discard([]cuda.Range{old}, v100Rig.s), cuda.ErrNotSupported},
		{"copy to nowhere", r.th.CopyAsync(1, m.Base, 1, r.s), cuda.ErrInvalidValue},
		{"advise nowhere", r.th.Advise(cuda.Range{Base: 1, Bytes: 1}, cuda.SetReadMostly, cuda.Device), cuda.ErrInvalidValue},
		{"unaligned handle", one(r.th.MemCreate(mib, cuda.Device)), cuda.ErrInvalidValue},
		{"handle too large", one(r.th.MemCreate(128*mib, cuda.Device)), cuda.ErrOutOfMemory},
		{"map twice", r.th.Map(rsv, 2*mib, h), cuda.ErrAlreadyMapped},
		{"map half a handle", r.th.Map(rsv+2*cuda.Ptr(mib), mib, h), cuda.ErrInvalidValue},
		{"unmap a hole", r.th.Unmap(rsv, 4*mib), cuda.ErrNotMapped},
		{"free a reservation in use", r.th.AddressFree(rsv, 4*mib), cuda.ErrInvalidValue},
		{"release nothing", r.th.MemRelease(77), cuda.ErrInvalidValue},
	} {
		if !isCode(c.err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
		}
	}
	// A handle may be mapped at two addresses, and lives until unmapped and released.
	r.must(r.th.Map(rsv+2*cuda.Ptr(mib), 2*mib, h))
	r.must(r.th.MemRelease(h))
	used := r.g.UsedBytes()
	r.must(r.th.Unmap(rsv, 2*mib))
	if r.g.UsedBytes() != used {
		t.Error("memory freed while still mapped")
	}
	r.must(r.th.Unmap(rsv+2*cuda.Ptr(mib), 2*mib))
	if r.g.UsedBytes() != used-2*mib {
		t.Error("memory not freed after the last unmap")
	}
}

func TestProfiles(t *testing.T) {
	for _, p := range Profiles() {
		got, err := ProfileByName(p.Name)
		if err != nil || got.Name != p.Name {
			t.Errorf("%s: %v", p.Name, err)
		}
		for what, rate := range map[string]float64{
			"prefetch": p.PrefetchBytesPerSecond, "duplicate": p.DuplicateBytesPerSecond, "fault": p.FaultCopyBytesPerSecond,
			"evict": p.EvictBytesPerSecond, "remote read": p.RemoteReadBytesPerSecond, "remote write": p.RemoteWriteBytesPerSecond,
			"to host": float64(blockBytes) / p.ToHostCopyPerBlock.Seconds(), "managed copy": p.ManagedCopyBytesPerSecond,
		} {
			if rate <= 0 || rate > p.CopyBytesPerSecond*1.0001 {
				t.Errorf("%s: %s at %.3g bytes/s on a bus of %.3g", p.Name, what, rate, p.CopyBytesPerSecond)
			}
		}
		if p.DuplexBytesPerSecond > 2*p.CopyBytesPerSecond || p.DuplexBytesPerSecond < p.CopyBytesPerSecond {
			t.Errorf("%s: both directions %.3g", p.Name, p.DuplexBytesPerSecond)
		}
		d := New(p, Options{}).Thread("t")
		if i := d.Info(); !i.SimulatedHardware || i.TotalBytes != p.MemoryBytes {
			t.Errorf("%+v", i)
		}
		if c := d.Capabilities(); c.DiscardBatch != (p.CUDAVersion >= 13000) {
			t.Errorf("%+v", c)
		}
	}
	_, err := ProfileByName("h2000")
	if want := `unknown GPU profile "h2000": use one of h200, a100-40g-pcie4, v100-32g-pcie3`; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}
