package sim

import (
	"math"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// rig is a GPU with one thread, checked when the test ends.
type rig struct {
	*testing.T
	g  *GPU
	th *Thread
	s  cuda.Stream
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	return newRigOn(t, h200(), o)
}

func newRigOn(t *testing.T, p Profile, o Options) *rig {
	t.Helper()
	g := New(p, o)
	r := &rig{T: t, g: g, th: g.Thread("host")}
	r.s = r.stream()
	t.Cleanup(func() {
		g.Run()
		if err := g.Check(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) stream() cuda.Stream {
	s, err := r.th.StreamCreate()
	r.must(err)
	return s
}

func (r *rig) managed(bytes int64) cuda.Range {
	p, err := r.th.MemAllocManaged(bytes)
	r.must(err)
	return cuda.Range{Base: p, Bytes: bytes}
}

func (r *rig) prefetch(to cuda.Location, ranges ...cuda.Range) {
	r.Helper()
	r.must(r.th.Prefetch(ranges, to, r.s))
}

func (r *rig) sync() {
	r.Helper()
	r.must(r.th.StreamSynchronize(r.s))
}

// took is the virtual time that f takes, synchronised before and after.
func (r *rig) took(f func()) time.Duration {
	r.Helper()
	r.sync()
	from := r.th.Now()
	r.g.At(from, func() {}) // bring the GPU's clock up to the thread's
	r.g.Run()
	f()
	r.sync()
	return r.th.Now() - from
}

func (r *rig) run(k Kernel) {
	r.g.Launch(r.s, k)
	r.sync()
}

func gbs(bytes int64, d time.Duration) float64 { return float64(bytes) / d.Seconds() / 1e9 }

// about fails when got is further than 10 % from want.
func about(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.1*want {
		t.Errorf("%s: got %.4g, measured %.4g (%+.0f %%)", what, got, want, 100*(got/want-1))
	} else {
		t.Logf("%s: %.4g (measured %.4g)", what, got, want)
	}
}

// within fails when got is outside [lo, hi] by more than 10 %.
func within(t *testing.T, what string, got, lo, hi float64) {
	t.Helper()
	if got < 0.9*lo || got > 1.1*hi {
		t.Errorf("%s: got %.4g, measured %.4g to %.4g", what, got, lo, hi)
	}
}

func chunksOf(r cuda.Range, bytes int64) (out []cuda.Range) {
	for at := int64(0); at < r.Bytes; at += bytes {
		out = append(out, cuda.Range{Base: r.Base + cuda.Ptr(at), Bytes: min(bytes, r.Bytes-at)})
	}
	return out
}

func TestCalibrationCopy(t *testing.T) {
	r := newRig(t, Options{})
	dev, err := r.th.MemAlloc(gib)
	r.must(err)
	host, err := r.th.HostAlloc(gib)
	r.must(err)
	m := r.managed(gib)
	r.prefetch(cuda.Device, m)

	copyOn := func(th *Thread, s cuda.Stream, dst, src cuda.Ptr, piece int64) {
		for at := int64(0); at < gib; at += piece {
			r.must(th.CopyAsync(dst+cuda.Ptr(at), src+cuda.Ptr(at), piece, s))
		}
	}
	for _, c := range []struct {
		what  string
		piece int64
		want  float64
	}{{"64 KiB", 64 * kib, 16}, {"2 MiB", 2 * mib, 51}, {"16 MiB", 16 * mib, 54}, {"1 GiB", gib, 55}} {
		about(t, "H2D in pieces of "+c.what, gbs(gib, r.took(func() { copyOn(r.th, r.s, dev, host, c.piece) })), c.want)
		about(t, "D2H in pieces of "+c.what, gbs(gib, r.took(func() { copyOn(r.th, r.s, host, dev, c.piece) })), c.want)
	}
	other, th := r.stream(), r.g.Thread("other")
	about(t, "both directions", gbs(2*gib, r.took(func() {
		copyOn(r.th, r.s, dev, host, gib)
		copyOn(th, other, host, dev, gib)
		r.must(r.th.StreamSynchronize(other))
	})), 92)
	about(t, "managed on the device to pinned", gbs(gib, r.took(func() { copyOn(r.th, r.s, host, m.Base, 16*mib) })), 52)
	from := r.th.Now()
	r.must(r.th.CopyAsync(dev, host, 64*kib, r.s))
	about(t, "submit a copy, us", float64(r.th.Now()-from)/1e3, 1.4)
	from = r.th.Now()
	_, err = r.th.HostAlloc(gib)
	r.must(err)
	about(t, "cuMemHostAlloc", gbs(gib, r.th.Now()-from), 1.6)
}

func TestCalibrationPrefetch(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(gib)
	r.prefetch(cuda.Device, m)
	r.sync()
	about(t, "to the host, first time", gbs(gib, r.took(func() { r.prefetch(cuda.Host, m) })), 3.9)
	about(t, "to the device, one call", gbs(gib, r.took(func() { r.prefetch(cuda.Device, m) })), 48)
	within(t, "to the host, later", gbs(gib, r.took(func() { r.prefetch(cuda.Host, m) })), 9, 16)
	about(t, "to the device, 512 calls", gbs(gib, r.took(func() {
		for _, c := range chunksOf(m, 2*mib) {
			r.prefetch(cuda.Device, c)
		}
	})), 17)
	about(t, "resident, us a call", r.took(func() {
		for _, c := range chunksOf(m, 2*mib) {
			r.prefetch(cuda.Device, c)
		}
	}).Seconds()*1e6/512, 6)
	within(t, "to the host, 512 calls", gbs(gib, r.took(func() {
		for _, c := range chunksOf(m, 2*mib) {
			r.prefetch(cuda.Host, c)
		}
	})), 9, 16)

	// Four threads with a stream each: the software overlaps, the copy does not.
	about(t, "to the device, 4 threads of 16 MiB calls", gbs(gib, r.took(func() { r.threads(4, m, 16*mib, cuda.Device) })), 50)
	within(t, "to the host, 16 threads", gbs(gib, r.took(func() { r.threads(16, m, 16*mib, cuda.Host) })), 9, 16)

	back := r.managed(gib)
	r.prefetch(cuda.Device, back)
	r.prefetch(cuda.Host, back)
	r.prefetch(cuda.Device, back)
	about(t, "both directions", gbs(2*gib, r.took(func() {
		s := r.stream()
		r.must(r.g.Thread("out").Prefetch([]cuda.Range{back}, cuda.Host, s))
		r.prefetch(cuda.Device, m)
		r.must(r.th.StreamSynchronize(s))
	})), 16)

	r.prefetch(cuda.Device, m)
	about(t, "discard, ms", r.took(func() { r.must(r.th.Discard([]cuda.Range{m}, r.s)) }).Seconds()*1e3, 3.8)
	about(t, "to the host after a discard", gbs(gib, r.took(func() { r.prefetch(cuda.Host, m) })), 16)
	r.prefetch(cuda.Device, m)
	r.sync()
	before := r.g.Stats().H2DBytes
	about(t, "discard and to the device, ms", r.took(func() {
		r.must(r.th.Discard([]cuda.Range{m}, r.s))
		r.prefetch(cuda.Device, m)
	}).Seconds()*1e3, 8.7)
	if n := r.g.Stats().H2DBytes - before; n != 0 {
		t.Errorf("%d bytes moved to populate discarded memory", n)
	}
}

// threads prefetches a part of m from each of n threads, each call after the last on its own stream.
func (r *rig) threads(n int, m cuda.Range, chunk int64, to cuda.Location) {
	var streams []cuda.Stream
	for _, part := range chunksOf(m, m.Bytes/int64(n)) {
		th, s := r.g.Thread("mover"), r.stream()
		for _, c := range chunksOf(part, chunk) {
			r.must(th.Prefetch([]cuda.Range{c}, to, s))
		}
		streams = append(streams, s)
	}
	for _, s := range streams {
		r.must(r.th.StreamSynchronize(s))
	}
}

func TestCalibrationReadMostly(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(gib)
	r.prefetch(cuda.Host, m)
	r.must(r.th.Advise(m, cuda.SetReadMostly, cuda.Device))
	within(t, "duplicate", gbs(gib, r.took(func() { r.prefetch(cuda.Device, m) })), 26, 46)
	if n := r.g.ResidentIn(m); n != gib {
		t.Fatalf("%d bytes on the device after duplicating", n)
	}
	// To the host does not free a duplicate.
	r.prefetch(cuda.Host, m)
	r.sync()
	if n := r.g.ResidentIn(m); n != gib {
		t.Errorf("prefetch to the host freed the duplicate: %d bytes left", n)
	}
	before := r.g.Stats()
	about(t, "unset read-mostly, ms", r.took(func() { r.must(r.th.Advise(m, cuda.UnsetReadMostly, cuda.Device)) }).Seconds()*1e3, 1.5)
	r.g.Run()
	if n := r.g.ResidentIn(m); n != 0 {
		t.Errorf("%d bytes on the device after the drop", n)
	}
	if d := r.g.Stats().D2HBytes - before.D2HBytes; d != 0 {
		t.Errorf("the drop moved %d bytes", d)
	}
	about(t, "then faults read it from the host copy", gbs(gib, r.took(func() {
		r.run(Kernel{Accesses: []Access{{Range: m, Read: true}}})
	})), 8.7)
	r.prefetch(cuda.Host, m)
	r.must(r.th.Advise(m, cuda.SetReadMostly, cuda.Device))
	r.prefetch(cuda.Device, m)
	about(t, "write to a duplicate", gbs(gib, r.took(func() {
		r.run(Kernel{Accesses: []Access{{Range: m, Write: true}}})
	})), 0.07)
	if n := r.g.ResidentIn(m); n != gib {
		t.Errorf("%d bytes on the device after the write", n)
	}
}

func TestCalibrationFaults(t *testing.T) {
	r := newRig(t, Options{})
	for _, c := range []struct {
		what  string
		bytes int64
	}{{"64 MiB", 64 * mib}, {"1 GiB", gib}} {
		m := r.managed(c.bytes)
		r.prefetch(cuda.Host, m)
		r.sync()
		before := r.g.Stats()
		about(t, "fault in "+c.what, gbs(c.bytes, r.took(func() {
			r.run(Kernel{Accesses: []Access{{Range: m}}})
		})), 8.7)
		after := r.g.Stats()
		if got := after.H2DBytes - before.H2DBytes; got != c.bytes {
			t.Errorf("%s: %d bytes moved", c.what, got)
		}
		if c.bytes == 64*mib {
			about(t, "fault entries", float64(after.Faults-before.Faults), 3458)
			about(t, "fault batches", float64(after.FaultBatches-before.FaultBatches), 15)
		}
	}
	// Without a transfer, the software part is left.
	m := r.managed(gib)
	before := r.g.Stats().H2DBytes
	about(t, "populate by faults, ms", r.took(func() {
		r.run(Kernel{Accesses: []Access{{Range: m}}})
	}).Seconds()*1e3, 123.4-19.5)
	if d := r.g.Stats().H2DBytes - before; d != 0 {
		t.Errorf("populating by faults moved %d bytes", d)
	}
}

func TestCalibrationRemote(t *testing.T) {
	r := newRig(t, Options{})
	p, err := r.th.HostAlloc(gib)
	r.must(err)
	pinned := cuda.Range{Base: p, Bytes: gib}
	m := r.managed(gib)
	r.prefetch(cuda.Host, m)
	r.must(r.th.Advise(m, cuda.SetPreferredLocation, cuda.Host))
	r.must(r.th.Advise(m, cuda.SetAccessedBy, cuda.Device))
	for _, c := range []struct {
		what string
		a    Access
		want float64
	}{
		{"read pinned in place", Access{Range: pinned, Read: true}, 50},
		{"write pinned in place", Access{Range: pinned, Write: true}, 52},
		{"read managed in place", Access{Range: m, Read: true}, 50},
		{"write managed in place", Access{Range: m, Write: true}, 52},
	} {
		about(t, c.what, gbs(gib, r.took(func() { r.run(Kernel{Accesses: []Access{c.a}}) })), c.want)
	}
	if f := r.g.Stats().Faults; f != 0 {
		t.Errorf("%d faults on memory accessed in place", f)
	}
}

func TestCalibrationVMM(t *testing.T) {
	r := newRig(t, Options{})
	type row struct {
		bytes                                   int64
		location                                cuda.Location
		create, mapping, access, unmap, release float64 // us; 0 is not measured
	}
	for _, c := range []row{
		{2 * mib, cuda.Device, 11, 1.3, 27, 20, 12},
		{32 * mib, cuda.Device, 11, 0.9, 25, 15, 22},
		{256 * mib, cuda.Device, 18, 0.9, 40, 19, 104},
		{2 * mib, cuda.Host, 478, 1.5, 76, 42, 50},
		{16 * mib, cuda.Host, 0, 2, 305, 72, 0},
		{64 * mib, cuda.Host, 13000, 4, 850, 179, 0},
	} {
		p, err := r.th.AddressReserve(c.bytes, 0, 0)
		r.must(err)
		var h cuda.Handle
		cost := func(what string, want float64, f func() error) {
			from := r.th.Now()
			r.must(f())
			if want > 0 {
				about(t, c.location.String()+" "+what+", us", float64(r.th.Now()-from)/1e3, want)
			}
		}
		cost("create", c.create, func() (err error) { h, err = r.th.MemCreate(c.bytes, c.location); return })
		cost("map", c.mapping, func() error { return r.th.Map(p, c.bytes, h) })
		cost("set access", c.access, func() error { return r.th.SetAccess(p, c.bytes) })
		cost("unmap", c.unmap, func() error { return r.th.Unmap(p, c.bytes) })
		cost("release", c.release, func() error { return r.th.MemRelease(h) })
		r.must(r.th.AddressFree(p, c.bytes))
	}
	for _, c := range []struct {
		handles, mib int64
		ms           float64
	}{{512, 2, 18}, {51, 20, 1.9}} {
		bytes := c.mib * mib
		p, err := r.th.AddressReserve(c.handles*bytes, 0, 0)
		r.must(err)
		for i := range c.handles {
			h, err := r.th.MemCreate(bytes, cuda.Device)
			r.must(err)
			r.must(r.th.Map(p+cuda.Ptr(i*bytes), bytes, h))
		}
		from := r.th.Now()
		r.must(r.th.SetAccess(p, c.handles*bytes))
		about(t, "set access over many handles, ms", (r.th.Now()-from).Seconds()*1e3, c.ms)
	}
	if err := r.g.Check(); err != nil {
		t.Error(err)
	}
}
