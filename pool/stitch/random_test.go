package stitch

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/pool/internal/model"
)

var randomOps = flag.Int("ops", 100_000, "operations of the random tests")

// TestRandom: no overlap, no use before the streams are done, no leak.
func TestRandom(t *testing.T) {
	for _, c := range []Config{
		{},
		{Strategy: Lazy, MinBytes: 2 * pageBytes, SpaceBytes: 64 * pageBytes},
		{Strategy: Never},
		{MinBytes: pageBytes, SpaceBytes: 1},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) { randomRun(t, c, *randomOps/short.Of(4, 16)) })
	}
}

type allocation struct {
	p       cuda.Ptr
	bytes   int64
	streams []uint64
}

func randomRun(t *testing.T, c Config, ops int) {
	const streams, capacity = 4, 512 << 20
	rng := rand.New(rand.NewPCG(1, uint64(c.Strategy)))
	m := model.New(capacity)
	p, err := New(c, m, m, m)
	if err != nil {
		t.Fatal(err)
	}
	var live []allocation
	var liveBytes int64
	drop := func(i int) {
		a := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		liveBytes -= a.bytes
		if err := m.Release(a.p, a.bytes, a.streams); err != nil {
			t.Fatal(err)
		}
		if err := p.Free(a.p); err != nil {
			t.Fatal(err)
		}
	}
	refused := 0
	for op := range ops {
		stream := uint64(rng.IntN(streams))
		switch k := rng.IntN(100); {
		case k < 45 && liveBytes < capacity:
			bytes := 1 + rng.Int64N(1<<rng.IntN(27))
			q, err := p.Malloc(bytes, stream)
			if err != nil {
				if liveBytes+bytes < capacity/4 {
					t.Fatalf("operation %d: %d bytes refused with %d live of %d: %v", op, bytes, liveBytes, int64(capacity), err)
				}
				refused++
				continue
			}
			if err := m.Claim(q, bytes, stream); err != nil {
				t.Fatalf("operation %d: %v", op, err)
			}
			live = append(live, allocation{q, bytes, []uint64{stream}})
			liveBytes += bytes
			m.Queue(stream)
		case k < 85 && len(live) > 0:
			drop(rng.IntN(len(live)))
		case k < 90 && len(live) > 0:
			a := &live[rng.IntN(len(live))]
			p.RecordStream(a.p, stream)
			if a.streams[0] != stream {
				a.streams = append(a.streams, stream)
			}
			m.Queue(stream)
		case k < 98:
			m.Finish(stream, rng)
		case op%1000 == 0:
			p.EmptyCache()
		case op%10 == 0:
			p.Trim(rng.Int64N(capacity / 4))
		}
		if op%5000 == 0 {
			if err := p.Check(); err != nil {
				t.Fatalf("operation %d: %v", op, err)
			}
			if n, taken, _, _ := m.Left(); n != p.Stats().ReservedBytes || n != taken {
				t.Fatalf("operation %d: %d bytes of handles exist, %d are reserved, %d taken", op, n, p.Stats().ReservedBytes, taken)
			}
		}
	}
	s := p.Stats()
	t.Logf("%d allocations, %d refused; %d stitches, %d reused, %d freed", s.Allocs, refused, s.Stitches, s.StitchReuses, s.StitchFrees)
	for len(live) > 0 {
		drop(0)
	}
	p.EmptyCache()
	physical, taken, mappings, ranges := m.Left()
	if s := p.Stats(); s.ReservedBytes != 0 || s.LiveBytes != 0 || physical != 0 || taken != 0 || mappings != 0 || ranges > 2 {
		t.Errorf("left at the end: %+v, %d bytes of handles, %d taken, %d mappings, %d address ranges (two arenas expected)", s, physical, taken, mappings, ranges)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}
