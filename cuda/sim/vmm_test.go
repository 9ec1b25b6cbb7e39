package sim

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

func TestReserveHints(t *testing.T) {
	r := newRig(t, Options{})
	if r.th.Granularity() != blockBytes {
		t.Fatal("granularity")
	}
	a, err := r.th.AddressReserve(64*mib, 0, 0)
	r.must(err)
	taken, err := r.th.AddressReserve(2*mib, 0, a+cuda.Ptr(2*mib))
	r.must(err)
	if taken >= a && taken < a+cuda.Ptr(64*mib) {
		t.Errorf("a taken hint was given out: %#x", uint64(taken))
	}
	r.must(r.th.AddressFree(a, 64*mib))
	again, err := r.th.AddressReserve(64*mib, 0, a)
	r.must(err)
	if again != a {
		t.Errorf("a free hint was not taken: %#x", uint64(again))
	}
	big, err := r.th.AddressReserve(2*mib, gib, 0)
	r.must(err)
	if big%cuda.Ptr(gib) != 0 {
		t.Errorf("%#x is not aligned to 1 GiB", uint64(big))
	}
	for _, bad := range [][2]int64{{mib, 0}, {0, 0}, {2 * mib, 3}} {
		if _, err := r.th.AddressReserve(bad[0], bad[1], 0); !isCode(err, cuda.ErrInvalidValue) {
			t.Errorf("reserve %v: %v", bad, err)
		}
	}
}

// A kernel over a range half in device and half in host handles reaches over the bus for one half.
func TestKernelOnMappedMemory(t *testing.T) {
	r := newRig(t, Options{})
	p, err := r.th.AddressReserve(64*mib, 0, 0)
	r.must(err)
	for i, l := range []cuda.Location{cuda.Device, cuda.Host} {
		h, err := r.th.MemCreate(32*mib, l)
		r.must(err)
		r.must(r.th.Map(p+cuda.Ptr(int64(i)*32*mib), 32*mib, h))
	}
	r.must(r.th.SetAccess(p, 64*mib))
	all := cuda.Range{Base: p, Bytes: 64 * mib}
	about(t, "read half over the bus, GB/s", gbs(32*mib, r.took(func() {
		r.run(Kernel{Accesses: []Access{{Range: all, Read: true}}})
	})), 50)
	if got := r.g.Stats().RemoteBytes; got != 32*mib {
		t.Errorf("%d bytes over the bus", got)
	}
	dst, err := r.th.MemAlloc(64 * mib)
	r.must(err)
	before := r.g.Stats().H2DBytes
	r.must(r.th.CopyAsync(dst, p, 64*mib, r.s))
	r.sync()
	if got := r.g.Stats().H2DBytes - before; got != 32*mib {
		t.Errorf("the copy moved %d bytes to the device", got)
	}
}

func TestHostFree(t *testing.T) {
	r := newRig(t, Options{})
	p, err := r.th.HostAlloc(mib)
	r.must(err)
	if err := r.th.HostFree(p + 1); !isCode(err, cuda.ErrInvalidValue) {
		t.Error(err)
	}
	r.must(r.th.HostFree(p))
	if err := r.th.CopyAsync(p, p, 1, r.s); !isCode(err, cuda.ErrInvalidValue) {
		t.Errorf("copy with freed memory: %v", err)
	}
}

// Freed, discarded and advised while it moves: the ledger holds at every event
// (the slice lets go of what is no longer wanted).
func TestChangesUnderway(t *testing.T) {
	for _, c := range []struct {
		name     string
		to       cuda.Location
		do       func(r *rig, th *Thread, m cuda.Range, s cuda.Stream)
		resident int64
	}{
		{"free on the way in", cuda.Device, func(r *rig, th *Thread, m cuda.Range, _ cuda.Stream) { r.must(th.MemFree(m.Base)) }, 0},
		{"free on the way out", cuda.Host, func(r *rig, th *Thread, m cuda.Range, _ cuda.Stream) { r.must(th.MemFree(m.Base)) }, 0},
		{"discard on the way in", cuda.Device, func(r *rig, th *Thread, m cuda.Range, s cuda.Stream) {
			r.must(th.Discard([]cuda.Range{{Base: m.Base, Bytes: 4 * blockBytes}}, s))
		}, 12 * blockBytes},
		{"read-mostly set and unset on the way in", cuda.Device, func(r *rig, th *Thread, m cuda.Range, _ cuda.Stream) {
			r.must(th.Advise(m, cuda.SetReadMostly, cuda.Device))
			r.must(th.Advise(m, cuda.UnsetReadMostly, cuda.Device))
		}, 16 * blockBytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{CapacityBytes: 64 * mib})
			m := r.managed(16 * blockBytes)
			r.prefetch(cuda.Host, m)
			if c.to == cuda.Host {
				r.prefetch(cuda.Device, m)
			}
			r.sync()
			other := r.stream()
			r.prefetch(c.to, m)
			r.g.At(r.g.Now()+300*us, func() { c.do(r, r.g.Thread("other"), m, other) })
			for r.g.Step() {
				if err := r.g.Check(); err != nil {
					t.Fatalf("at %v: %v", r.g.Now(), err)
				}
			}
			if got := r.g.ResidentBytes(); got != c.resident {
				t.Errorf("%d bytes resident at the end, want %d", got, c.resident)
			}
			if used := r.g.UsedBytes(); used < c.resident || c.resident == 0 && used != 0 {
				t.Errorf("%d bytes in use", used)
			}
		})
	}
}

// Two threads of the host may call at once.
func TestConcurrentCallers(t *testing.T) {
	g := New(h200(), Options{CapacityBytes: 64 * mib})
	done := make(chan error, 4)
	for range cap(done) {
		go func() {
			th := g.Thread("worker")
			done <- func() error {
				if err := th.BindThread(); err != nil {
					return err
				}
				s, err := th.StreamCreate()
				if err != nil {
					return err
				}
				for range 20 {
					p, err := th.MemAllocManaged(24 * mib)
					if err != nil {
						return err
					}
					r := cuda.Range{Base: p, Bytes: 24 * mib}
					for _, to := range []cuda.Location{cuda.Device, cuda.Host} {
						if err := th.Prefetch([]cuda.Range{r}, to, s); err != nil {
							return err
						}
						g.Launch(s, Kernel{Duration: time.Millisecond, Accesses: []Access{{Range: r}}})
					}
					if err := th.StreamSynchronize(s); err != nil {
						return err
					}
					if err := th.MemFree(p); err != nil {
						return err
					}
				}
				return th.StreamDestroy(s)
			}()
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	g.Run()
	if err := g.Check(); err != nil {
		t.Error(err)
	}
	if g.ResidentBytes() != 0 || g.UsedBytes() != 0 {
		t.Errorf("%d bytes resident, %d in use at the end", g.ResidentBytes(), g.UsedBytes())
	}
}

// besideCopies is what a copy takes in one direction, and addresses and a handle to map beside it.
func besideCopies(r *rig, bytes int64, out bool) (dst, src, p cuda.Ptr, h cuda.Handle) {
	dst, err := r.th.MemAlloc(bytes)
	r.must(err)
	src, err = r.th.HostAlloc(bytes)
	r.must(err)
	if out {
		dst, src = src, dst
	}
	p, err = r.th.AddressReserve(bytes, 0, 0)
	r.must(err)
	h, err = r.th.MemCreate(bytes, cuda.Device)
	r.must(err)
	return dst, src, p, h
}

// Access is set by the engine that copies to the host, between two copies that are
// not queued behind each other, or after a time slice (bench/results/vmm-threads.json).
func TestMappingWaitsForCopiesOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		copies int
		out    bool
		us     float64
	}{
		{"nothing is copied", 0, true, 26},
		{"one copy out", 1, true, 26 + 152},
		{"copies out behind one another", 8, true, 26 + 1020},
		{"copies in", 8, false, 26},
	} {
		r := newRig(t, Options{})
		dst, src, p, h := besideCopies(r, 8*mib, c.out)
		r.must(r.th.Map(p, 8*mib, h))
		for range c.copies {
			r.must(r.th.CopyAsync(dst, src, 8*mib, r.s))
		}
		from := r.th.Now()
		r.must(r.th.SetAccess(p, 8*mib))
		about(t, "set access, "+c.name+", us", float64(r.th.Now()-from)/1e3, c.us)
	}
}

// Memory that is released is cleared by the engine that copies to the device (bench/probe/vmm_create.cu).
func TestReleasedMemoryIsCleared(t *testing.T) {
	const bytes = float64(64 * mib)
	alone, clearing := bytes/55e9*1e6, 5+bytes/415e9*1e6
	for _, c := range []struct {
		name       string
		out, stays bool // the copy's direction; the handle is still mapped
		us         float64
	}{
		{"a copy in", false, false, alone + clearing},
		{"a copy in, and the memory is still mapped", false, true, alone},
		{"a copy out", true, false, alone},
	} {
		r := newRig(t, Options{})
		dst, src, p, h := besideCopies(r, 64*mib, c.out)
		if c.stays {
			r.must(r.th.Map(p, 64*mib, h))
		}
		r.must(r.th.MemRelease(h))
		from := r.th.Now()
		r.must(r.th.CopyAsync(dst, src, 64*mib, r.s))
		r.must(r.th.StreamSynchronize(r.s))
		about(t, c.name+" beside it, us", float64(r.th.Now()-from)/1e3, c.us)
	}
}

// Once a job has launched, calls on device handles take what they took in jobs.
func TestMappingInAJob(t *testing.T) {
	r := newRig(t, Options{})
	r.run(Kernel{})
	p, err := r.th.AddressReserve(32*mib, 0, 0)
	r.must(err)
	var h cuda.Handle
	costs := r.g.profile.DeviceInJob
	for _, c := range []struct {
		name string
		want Costs
		f    func() error
	}{
		{"create", costs.Create, func() (err error) { h, err = r.th.MemCreate(32*mib, cuda.Device); return }},
		{"map", costs.Map, func() error { return r.th.Map(p, 32*mib, h) }},
		{"set access", costs.SetAccess, func() error { return r.th.SetAccess(p, 32*mib) }},
		{"unmap", costs.Unmap, func() error { return r.th.Unmap(p, 32*mib) }},
		{"release", costs.Release, func() error { return r.th.MemRelease(h) }},
	} {
		from := r.th.Now()
		r.must(c.f())
		if took := r.th.Now() - from; took != c.want.At(32*mib) || took <= 0 {
			t.Errorf("%s takes %v, not %v", c.name, took, c.want.At(32*mib))
		}
	}
}

// TestMappingTakesTurns: threads that map wait for each other, and no call is made to
// wait for one that begins after it has ended.
func TestMappingTakesTurns(t *testing.T) {
	r := newRig(t, Options{})
	p := r.g.profile
	create, between := p.Device.Create.At(2*mib), p.StreamCreateCall
	if p.Device.Map.At(2*mib) >= between {
		t.Fatal("mapping does not fit between")
	}
	at, err := r.th.AddressReserve(2*mib, 0, 0)
	r.must(err)
	r.g.Run()
	a, b := r.g.Thread("a"), r.g.Thread("b")
	begin := a.Now()
	h, err := a.MemCreate(2*mib, cuda.Device)
	r.must(err)
	_, err = a.StreamCreate() // waits for nobody
	r.must(err)
	_, err = a.MemCreate(2*mib, cuda.Device)
	r.must(err)
	if took := a.Now() - begin; took != 2*create+between {
		t.Errorf("a thread alone takes %v, not %v", took, 2*create+between)
	}
	r.must(b.Map(at, 2*mib, h))
	if took := b.Now() - begin; took != create+p.Device.Map.At(2*mib) {
		t.Errorf("mapping in the gap ends after %v, not %v", took, create+p.Device.Map.At(2*mib))
	}
	r.must(b.Unmap(at, 2*mib))
	if took := b.Now() - begin; took != 2*create+between+p.Device.Unmap.At(2*mib) {
		t.Errorf("unmapping, which takes longer than what is left of the gap, ends after %v, not %v", took, 2*create+between+p.Device.Unmap.At(2*mib))
	}
}

// TestCPUSlowdown: the job's CPU is slower while bytes cross the bus, by which way they go.
func TestCPUSlowdown(t *testing.T) {
	r := newRig(t, Options{})
	device, err := r.th.MemAlloc(64 * mib)
	r.must(err)
	host, err := r.th.HostAlloc(64 * mib)
	r.must(err)
	other := r.stream()
	p := r.g.Profile()
	for _, c := range []struct {
		name    string
		in, out int64
		want    float64
	}{
		{"idle", 0, 0, 1},
		{"in", 32 * mib, 0, 1 + p.CopiesInSlowCPU},
		{"out", 0, 32 * mib, 1 + p.CopiesOutSlowCPU},
		{"both ways", 32 * mib, 32 * mib, 1 + p.CopiesInSlowCPU + p.CopiesOutSlowCPU},
	} {
		if c.in > 0 {
			r.must(r.th.CopyAsync(device, host, c.in, r.s))
		}
		if c.out > 0 {
			r.must(r.th.CopyAsync(host+cuda.Ptr(32*mib), device+cuda.Ptr(32*mib), c.out, other))
		}
		during := 0.0
		r.g.At(r.th.Now()+100*us, func() { during = r.g.CPUSlowdown() })
		r.g.Run()
		if during != c.want || r.g.CPUSlowdown() != 1 {
			t.Errorf("%s: %g during copies, %g after, want %g and 1", c.name, during, r.g.CPUSlowdown(), c.want)
		}
	}
	if p.CopiesInSlowCPU <= 0 || p.CopiesOutSlowCPU <= 0 {
		t.Errorf("nothing was tested: %g, %g", p.CopiesInSlowCPU, p.CopiesOutSlowCPU)
	}
}

// TestAllocationAt: the allocation that an address lies in, but none that is mapped piece by piece.
func TestAllocationAt(t *testing.T) {
	r := newRig(t, Options{})
	plain, err := r.th.MemAlloc(mib)
	r.must(err)
	pinned, err := r.th.HostAlloc(mib)
	r.must(err)
	managed, err := r.th.MemAllocManaged(4 * mib)
	r.must(err)
	for _, want := range []cuda.Range{{Base: plain, Bytes: mib}, {Base: pinned, Bytes: mib}, {Base: managed, Bytes: 4 * mib}} {
		if got, ok := r.th.AllocationAt(want.End() - 1); !ok || got != want {
			t.Errorf("%v: %v, %v", want, got, ok)
		}
	}
	mapped, err := r.th.AddressReserve(2*mib, 0, 0)
	r.must(err)
	h, err := r.th.MemCreate(2*mib, cuda.Device)
	r.must(err)
	r.must(r.th.Map(mapped, 2*mib, h))
	r.must(r.th.MemFree(plain))
	for _, p := range []cuda.Ptr{mapped, plain, 4096} {
		if got, ok := r.th.AllocationAt(p); ok {
			t.Errorf("%#x: %v", uint64(p), got)
		}
	}
}
