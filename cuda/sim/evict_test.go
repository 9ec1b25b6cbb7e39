package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// order is the blocks of m that have lost their place on the device, as the
// driver took them. Every block must have been evicted at most once.
type order struct{ got []int }

func (o *order) watch(g *GPU, m cuda.Range) {
	g.Observe(func(e Event) {
		if e.Kind == EventMigration && e.Cause == CauseEviction && e.Range.Base >= m.Base && e.Range.Base < m.End() {
			if i := int(int64(e.Range.Base-m.Base) / blockBytes); !slices.Contains(o.got, i) {
				o.got = append(o.got, i)
			}
		}
	})
}

func (r *rig) touchKernel(a ...cuda.Range) {
	k := Kernel{Name: "touch"}
	for _, x := range a {
		k.Accesses = append(k.Accesses, Access{Range: x})
	}
	r.run(k)
}

func TestEvictionOrder(t *testing.T) {
	const n = 8
	cases := []struct {
		name string
		do   func(r *rig, b []cuda.Range) // after the n blocks came in order and fill the card
		want []int                        // evicted when 3 more come
		free int64                        // chunks taken without a transfer
	}{
		{"oldest activity first", func(*rig, []cuda.Range) {}, []int{0, 1, 2}, 0},
		{"a kernel that finds its block does not refresh it", func(r *rig, b []cuda.Range) { r.touchKernel(b[0]) }, []int{0, 1, 2}, 0},
		{"a prefetch with nothing to do refreshes", func(r *rig, b []cuda.Range) { r.prefetch(cuda.Device, b[0], b[2]) }, []int{1, 3, 4}, 0},
		{"blocks sent home go first and for nothing", func(r *rig, b []cuda.Range) { r.prefetch(cuda.Host, b[5]) }, []int{0, 1}, 1},
		{"discarded blocks go first and for nothing", func(r *rig, b []cuda.Range) { r.must(r.th.Discard(b[3:5], r.s)) }, []int{0}, 2},
		{"a half discarded block keeps its place and moves the other half", func(r *rig, b []cuda.Range) {
			r.must(r.th.Discard([]cuda.Range{{Base: b[0].Base, Bytes: mib}}, r.s))
		}, []int{0, 1, 2}, 0},
	}
	for _, how := range []string{"prefetch", "faults"} {
		for _, c := range cases {
			t.Run(how+"/"+c.name, func(t *testing.T) {
				r := newRig(t, Options{CapacityBytes: n * blockBytes})
				m := r.managed(n * blockBytes)
				more := r.managed(3 * blockBytes)
				blocks := chunksOf(m, blockBytes)
				for _, b := range blocks {
					r.prefetch(cuda.Device, b)
				}
				c.do(r, blocks)
				r.sync()
				var o order
				o.watch(r.g, m)
				before := r.g.Stats()
				if how == "prefetch" {
					r.prefetch(cuda.Device, more)
					r.sync()
				} else {
					r.touchKernel(more)
				}
				if !slices.Equal(o.got, c.want) {
					t.Errorf("evicted %v, want %v", o.got, c.want)
				}
				after := r.g.Stats()
				if got := after.ReclaimedChunks - before.ReclaimedChunks; got != c.free {
					t.Errorf("%d chunks reclaimed for nothing, want %d", got, c.free)
				}
				if got := r.g.ResidentIn(more); got != more.Bytes {
					t.Errorf("%d of %d new bytes resident", got, more.Bytes)
				}
			})
		}
	}
}

func TestEvictionOrderWithDiscardedList(t *testing.T) {
	p := h200()
	p.DiscardKeepsMapping = true
	r := newRigOn(t, p, Options{CapacityBytes: 6 * blockBytes})
	m := r.managed(6 * blockBytes)
	b := chunksOf(m, blockBytes)
	for _, x := range b {
		r.prefetch(cuda.Device, x)
	}
	r.must(r.th.Discard([]cuda.Range{b[4]}, r.s)) // discarded, still mapped
	r.prefetch(cuda.Host, b[5])                   // unused
	r.sync()
	if n := r.g.ResidentIn(b[4]); n != blockBytes {
		t.Fatalf("a discarded block that keeps its mapping has %d bytes on the device", n)
	}
	faults := r.g.Stats().Faults
	r.touchKernel(b[4])
	if f := r.g.Stats().Faults - faults; f != 0 {
		t.Errorf("%d faults on a mapped discarded block", f)
	}
	var chunks []int
	more := chunksOf(r.managed(3*blockBytes), blockBytes)
	for _, x := range more {
		r.prefetch(cuda.Device, x)
		r.sync()
		for i := range b {
			if blk := &r.g.managed[0].blocks[i]; !blk.chunk && !slices.Contains(chunks, i) {
				chunks = append(chunks, i)
			}
		}
	}
	if want := []int{5, 4, 0}; !slices.Equal(chunks, want) {
		t.Errorf("chunks taken from %v, want unused, discarded, used = %v", chunks, want)
	}
	if s := r.g.Stats(); s.EvictedBytes != blockBytes {
		t.Errorf("%d bytes copied out, want one block's", s.EvictedBytes)
	}
	// A prefetch ends the discard.
	r.must(r.th.Discard([]cuda.Range{b[3]}, r.s))
	r.prefetch(cuda.Device, b[3])
	r.sync()
	if blk := &r.g.managed[0].blocks[3]; blk.dead != 0 || blk.list != listUsed {
		t.Errorf("after prefetching a discarded block: dead %#x, list %d", blk.dead, blk.list)
	}
}

// In-driver eviction costs the bare copy, serially with the move that needs the chunk.
func TestEvictionIsSerial(t *testing.T) {
	r := newRig(t, Options{CapacityBytes: gib})
	a, b := r.managed(gib), r.managed(gib)
	r.prefetch(cuda.Host, b)
	r.prefetch(cuda.Device, a)
	copyIn, copyOut := 1.073741824/48.5, 1.073741824/55
	about(t, "prefetch over a full card, s", r.took(func() { r.prefetch(cuda.Device, b) }).Seconds(), copyIn+copyOut)
	r.prefetch(cuda.Host, a)
	about(t, "faults over a full card, s", r.took(func() { r.touchKernel(a) }).Seconds(), 0.1234+copyOut)
	s := r.g.Stats()
	if s.EvictedBytes != 2*gib {
		t.Errorf("%d bytes evicted, want 2 GiB", s.EvictedBytes)
	}
}

func TestPlainMemoryEvictsManaged(t *testing.T) {
	r := newRig(t, Options{CapacityBytes: 64 * mib})
	m := r.managed(64 * mib)
	r.prefetch(cuda.Device, m)
	r.sync()
	from := r.th.Now()
	p, err := r.th.MemAlloc(20 * mib)
	r.must(err)
	if d, min := r.th.Now()-from, perByte(20*mib, 55e9); d < min {
		t.Errorf("evicting 20 MiB took %v, faster than the bus (%v)", d, min)
	}
	r.g.Run()
	if got := r.g.ResidentBytes(); got != 44*mib {
		t.Errorf("%d bytes resident beside 20 MiB, want 44 MiB", got)
	}
	h, err := r.th.MemCreate(40*mib, cuda.Device)
	r.must(err)
	if _, err := r.th.MemAlloc(8 * mib); !isCode(err, cuda.ErrOutOfMemory) {
		t.Errorf("8 MiB more than the card: %v", err)
	}
	if got := r.g.UsedBytes(); got != 64*mib {
		t.Errorf("%d bytes in use, want all", got)
	}
	r.must(r.th.MemFree(p))
	r.must(r.th.MemRelease(h))
	if free, total, _ := r.th.MemInfo(); total != 64*mib || free != 60*mib {
		t.Errorf("free %d of %d after freeing", free, total)
	}
}

func TestKernelLargerThanMemoryStreams(t *testing.T) {
	r := newRig(t, Options{CapacityBytes: 32 * mib})
	m := r.managed(128 * mib)
	r.prefetch(cuda.Host, m)
	r.sync()
	before := r.g.Stats()
	r.touchKernel(m)
	s := r.g.Stats()
	if got := s.H2DBytes - before.H2DBytes; got != m.Bytes {
		t.Errorf("%d bytes in, want each block once", got)
	}
	if got := s.EvictedBytes - before.EvictedBytes; got != 96*mib {
		t.Errorf("%d bytes evicted, want what does not fit", got)
	}
	if got := r.g.ResidentIn(cuda.Range{Base: m.Base + 96*cuda.Ptr(mib), Bytes: 32 * mib}); got != 32*mib {
		t.Errorf("%d bytes of the tail resident", got)
	}
}

// With not one root chunk free of plain memory, kernels reach over the bus and prefetches give up.
func TestNoRoomAtAll(t *testing.T) {
	r := newRig(t, Options{CapacityBytes: 16 * mib})
	_, err := r.th.MemAlloc(15 * mib)
	r.must(err)
	m := r.managed(8 * mib)
	r.prefetch(cuda.Device, m)
	r.touchKernel(m)
	if s := r.g.Stats(); s.NoRoomBlocks != 8 || s.RemoteBytes != 2*m.Bytes || r.g.ResidentBytes() != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTail(t *testing.T) {
	r := newRig(t, Options{CapacityBytes: 8 * blockBytes})
	m := r.managed(3*mib + 100) // the second block reaches one leaf and 100 bytes further
	r.prefetch(cuda.Host, m)
	r.sync()
	r.prefetch(cuda.Device, m)
	r.sync()
	if got := r.g.ResidentBytes(); got != m.Bytes {
		t.Errorf("%d bytes resident of an allocation of %d", got, m.Bytes)
	}
	if s := r.g.Stats(); s.H2DBytes != m.Bytes {
		t.Errorf("%d bytes moved", s.H2DBytes)
	}
	if got := r.g.UsedBytes(); got != 2*blockBytes {
		t.Errorf("%d bytes in use, want two root chunks", got)
	}
	part := cuda.Range{Base: m.Base + 1000, Bytes: 2 * mib}
	if got := r.g.ResidentIn(part); got != part.Bytes {
		t.Errorf("%d bytes resident in an unaligned part of %d", got, part.Bytes)
	}
	end := cuda.Range{Base: m.End() - 50, Bytes: 50}
	if got := r.g.ResidentIn(end); got != 50 {
		t.Errorf("%d bytes resident in the last 50", got)
	}
}

func TestDiscardKeepsNeighbours(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(2 * mib)
	r.prefetch(cuda.Device, m)
	r.must(r.th.Discard([]cuda.Range{{Base: m.Base + 1, Bytes: mib}}, r.s))
	r.sync()
	// The first leaf is covered only in part, and so is the last.
	if got, want := r.g.ResidentBytes(), 2*mib-15*leafBytes; got != want {
		t.Errorf("%d bytes kept, want %d", got, want)
	}
}

func TestInUseMovesAreCounted(t *testing.T) {
	r := newRig(t, Options{})
	m := r.managed(4 * blockBytes)
	r.prefetch(cuda.Device, m)
	r.sync()
	s := r.stream()
	r.g.Launch(s, Kernel{Duration: time.Second, Accesses: []Access{{Range: m}}})
	r.g.Step()
	r.prefetch(cuda.Host, cuda.Range{Base: m.Base, Bytes: 2 * blockBytes})
	r.sync()
	if n := r.g.Stats().InUseMoves; n != 2 {
		t.Errorf("%d moves of blocks in use, want 2", n)
	}
}
