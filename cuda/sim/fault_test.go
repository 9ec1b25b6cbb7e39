package sim

import (
	"errors"
	"math/bits"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

func isCode(err error, sentinel error) bool { return errors.Is(err, sentinel) }

func TestGrow(t *testing.T) {
	const all = ^mask(0)
	for _, c := range []struct {
		name              string
		fault, dev, valid mask
		want              mask
	}{
		{"one leaf of an empty block stays alone", 1, 0, all, 1},
		{"its neighbour comes alone too: half of four is not more than 51 %", 2, 1, all, 2},
		{"three of four bring the fourth", 4, 3, all, 0b1100},
		{"five of eight bring eight", 1 << 4, 0xf, all, 0xf0},
		{"nine of sixteen bring sixteen", 1 << 8, 0xff, all, 0xff00},
		{"seventeen of 32 bring the block", 1 << 16, 0xffff, all, 0xffff0000},
		{"half of the block by itself is not enough", 0x0000ffff, 0, all, 0x0000ffff},
		{"a subtree without a fault is left alone", 1, 0xff000000, all, 1},
		{"short block: three of its four leaves", 4, 3, 0xf, 0xc},
		{"everything faults", all, 0, all, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := grow(c.fault, c.dev, c.valid, 51); got != c.want {
				t.Errorf("grow(%#x, %#x, %#x) = %#x, want %#x", c.fault, c.dev, c.valid, got, c.want)
			}
		})
	}
}

// Leaves touched one after the other bring a whole block in few services.
func TestGrowSequential(t *testing.T) {
	var dev mask
	services := 0
	for i := range blockLeafs {
		if dev>>i&1 == 0 {
			dev |= grow(1<<i, dev, ^mask(0), 51)
			services++
		}
	}
	if dev != ^mask(0) || services != 6 {
		t.Errorf("%d services, %d leaves", services, bits.OnesCount32(dev))
	}
}

func TestFaultEvents(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(8 * blockBytes)
	r.prefetch(cuda.Host, m)
	r.sync()
	var faults, coherence, prefetched int64
	r.g.Observe(func(e Event) {
		switch {
		case e.Kind == EventFaults:
			faults += e.Faults
			if e.Kernel != "k" || e.End <= e.Begin {
				t.Errorf("%+v", e)
			}
		case e.To == cuda.Device && e.Cause == CauseCoherence:
			coherence += e.Range.Bytes
		case e.To == cuda.Device && e.Cause == CausePrefetch:
			prefetched += e.Range.Bytes
		default:
			t.Errorf("%+v", e)
		}
	})
	// 20 of 32 leaves of one block: the tree prefetcher brings the other 12.
	r.run(Kernel{Name: "k", Accesses: []Access{{Range: cuda.Range{Base: m.Base, Bytes: 20 * leafBytes}, Read: true}}})
	if coherence != 20*leafBytes || prefetched != 12*leafBytes {
		t.Errorf("coherence %d, prefetch %d", coherence, prefetched)
	}
	if s := r.g.Stats(); s.Faults != faults || s.FaultBatches != 1 || s.FaultedBytes != blockBytes {
		t.Errorf("%d faults reported, stats %+v", faults, s)
	}
}

func TestFaultsOverlapCompute(t *testing.T) {
	for _, c := range []struct{ duration, stall time.Duration }{{time.Second, 0}, {0, 0}} {
		r := newRig(t, Options{})
		m := r.managed(256 * mib)
		r.prefetch(cuda.Host, m)
		r.sync()
		var start, end time.Duration
		r.run(Kernel{Duration: c.duration, Accesses: []Access{{Range: m}},
			Started: func(at time.Duration) { start = at }, Done: func(at time.Duration) { end = at }})
		s := r.g.Stats()
		if s.BusyTime != c.duration || s.StallTime != end-start-c.duration {
			t.Errorf("busy %v, stall %v, took %v", s.BusyTime, s.StallTime, end-start)
		}
		if c.duration > 0 && end-start != c.duration {
			t.Errorf("took %v, want the duration alone", end-start)
		}
		if c.duration == 0 {
			about(t, "fault service alone, GB/s", gbs(m.Bytes, end-start), 8.7)
		}
	}
}

func TestKernelWaitsForMove(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(sliceBlocks * blockBytes)
	r.prefetch(cuda.Host, m)
	r.sync()
	before := r.g.Stats()
	s := r.stream()
	r.prefetch(cuda.Device, m)
	from := r.g.Now()
	var end time.Duration
	// By then the software part is over and the copy under way.
	r.g.At(from+150*us, func() {
		r.g.Launch(s, Kernel{Accesses: []Access{{Range: m}}, Done: func(at time.Duration) { end = at }})
	})
	r.g.Run()
	after := r.g.Stats()
	if after.Faults != before.Faults || after.H2DBytes-before.H2DBytes != m.Bytes {
		t.Errorf("faults %d, moved %d", after.Faults-before.Faults, after.H2DBytes-before.H2DBytes)
	}
	if arrival := from + h200().PrefetchCall + perByte(m.Bytes, 48.5e9); end < arrival || end > arrival+20*us {
		t.Errorf("kernel ended at %v, memory came at %v", end-from, arrival-from)
	}
}

func TestIllegalAccess(t *testing.T) {
	for _, c := range []struct {
		name string
		at   func(r *rig) cuda.Range
	}{
		{"null", func(*rig) cuda.Range { return cuda.Range{Base: 0, Bytes: 4} }},
		{"past the end", func(r *rig) cuda.Range { m := r.managed(mib); return cuda.Range{Base: m.Base, Bytes: mib + 1} }},
		{"freed", func(r *rig) cuda.Range { m := r.managed(mib); r.must(r.th.MemFree(m.Base)); return m }},
		{"reserved, not mapped", func(r *rig) cuda.Range {
			p, err := r.th.AddressReserve(2*mib, 0, 0)
			r.must(err)
			return cuda.Range{Base: p, Bytes: 2 * mib}
		}},
		{"mapped without access", func(r *rig) cuda.Range {
			p, err := r.th.AddressReserve(2*mib, 0, 0)
			r.must(err)
			h, err := r.th.MemCreate(2*mib, cuda.Device)
			r.must(err)
			r.must(r.th.Map(p, 2*mib, h))
			return cuda.Range{Base: p, Bytes: 2 * mib}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{})
			bad := c.at(r)
			r.g.Launch(r.s, Kernel{Name: "wild", Accesses: []Access{{Range: bad}}})
			if err := r.th.StreamSynchronize(r.s); !isCode(err, cuda.ErrIllegalAddress) {
				t.Errorf("got %v", err)
			}
			if !isCode(r.g.Err(), cuda.ErrIllegalAddress) {
				t.Errorf("Err() = %v", r.g.Err())
			}
		})
	}
}
