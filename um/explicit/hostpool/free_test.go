package hostpool

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

const (
	mib     = 1 << 20
	origin  = cuda.Ptr(0x7f00_0000_0000)
	segment = 16 * Granularity
)

// model is the free list as a bit for each unit.
type model []bool

func (m model) mark(t *testing.T, e Extent, free bool) {
	t.Helper()
	for i := int64(e.Base-origin) / Granularity; i < int64(e.End()-origin)/Granularity; i++ {
		if m[i] == free {
			t.Fatalf("unit %d of %+v was free=%v already", i, e, free)
		}
		m[i] = free
	}
}

func (m model) check(t *testing.T, f *freeList) {
	t.Helper()
	seen := make(model, len(m))
	var bytes int64
	for i, e := range f.extents {
		bytes += e.Bytes
		seen.mark(t, e, true)
		if f.segment(e.Base) != f.segment(e.End()-1) {
			t.Fatalf("%+v crosses segments", e)
		}
		if i > 0 && f.extents[i-1].End() == e.Base && f.segment(f.extents[i-1].Base) == f.segment(e.Base) {
			t.Fatalf("%+v and %+v are not joined", f.extents[i-1], e)
		}
	}
	if bytes != f.bytes {
		t.Fatalf("%d bytes free, %d counted", bytes, f.bytes)
	}
	for i := range m {
		if m[i] != seen[i] {
			t.Fatalf("unit %d: free=%v in the model, %v in the list", i, m[i], seen[i])
		}
	}
}

func TestFreeListAgainstAModel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		const units = 5*16 + 7 // the last segment is short
		f, m := &freeList{origin: origin}, make(model, units)
		for left := int64(units * Granularity); left > 0; {
			e := Extent{Base: f.end(), Bytes: min(segment>>r.IntN(3), left)}
			m.mark(t, e, true)
			f.grow(e.Bytes)
			left -= e.Bytes
		}
		var used []Extent
		for range 400 {
			if n := r.Int64N(12) + 1; r.IntN(2) == 0 && n*Granularity <= f.bytes {
				largest := int64(0)
				for _, e := range f.extents {
					largest = max(largest, e.Bytes)
				}
				got := f.take(n * Granularity)
				var sum int64
				for _, e := range got {
					m.mark(t, e, false)
					sum += e.Bytes
				}
				if sum != n*Granularity || largest >= sum && len(got) != 1 {
					t.Fatalf("%d units asked for with %d bytes free in a piece: %+v", n, largest, got)
				}
				used = append(used, got...)
			} else if len(used) > 0 {
				i := r.IntN(len(used))
				e := used[i]
				if part := r.Int64N(e.Bytes / Granularity); part > 0 { // only its first part
					used[i] = Extent{Base: e.Base + cuda.Ptr(part*Granularity), Bytes: e.Bytes - part*Granularity}
					e.Bytes = part * Granularity
				} else {
					used = append(used[:i], used[i+1:]...)
				}
				m.mark(t, e, true)
				if err := f.give(e); err != nil {
					t.Fatal(err)
				}
			}
			m.check(t, f)
		}
	}
}

func TestGiveRefusesWhatIsNotInUse(t *testing.T) {
	f := &freeList{origin: origin}
	f.grow(segment)
	f.grow(segment)
	a := f.take(4 * Granularity)[0]
	if len(f.extents) != 2 || a.Base != origin {
		t.Fatalf("%+v of %+v", a, f.extents)
	}
	for _, e := range []Extent{
		{Base: a.Base, Bytes: a.Bytes + Granularity}, {Base: a.End(), Bytes: Granularity}, {Base: a.Base + 1, Bytes: Granularity},
		{Base: a.Base, Bytes: Granularity - 1}, {Base: a.Base, Bytes: 0}, {Base: a.Base, Bytes: -Granularity}, {Base: origin - Granularity, Bytes: Granularity},
		{Base: origin + 2*segment, Bytes: Granularity}, {Base: origin + segment - Granularity, Bytes: 2 * Granularity}, {Base: 0, Bytes: Granularity},
		{Base: ^cuda.Ptr(0) - 2*Granularity + 1, Bytes: Granularity}, {Base: a.Base, Bytes: 1 << 62},
	} {
		if err := f.give(e); err == nil {
			t.Errorf("%+v was taken back", e)
		}
	}
	if err := f.give(a); err != nil || len(f.extents) != 2 || f.bytes != 2*segment {
		t.Errorf("%v, %+v", err, f.extents)
	}
}

func BenchmarkTakeGiveFragmented(b *testing.B) {
	const units = 32 << 10 // 64 GiB
	f := &freeList{origin: origin}
	for range units * Granularity >> 30 {
		f.grow(1 << 30)
	}
	for i := cuda.Ptr(1); i < units; i += 2 { // every second unit is free
		f.remove(Extent{Base: origin + i*Granularity, Bytes: Granularity})
	}
	for b.Loop() {
		for _, e := range f.take(8 * Granularity) {
			_ = f.give(e)
		}
	}
}
