package stitch

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

var randomOps = flag.Int("ops", 200_000, "operations of the random test; 10000000 is the full number")

// shadow is a piece of physical memory that an allocation holds or held.
type shadow struct {
	at, end int64
	live    bool
	uses    map[uint64]int // by stream: the work that may touch it
}

// reference is what must hold of physical memory, whatever the addresses.
type reference struct {
	m       *machine
	handles map[cuda.Handle][]*shadow // by offset
}

// claim checks that memory may be given to a stream and notes that it is.
func (r *reference) claim(p cuda.Ptr, bytes int64, stream uint64) error {
	for _, e := range r.m.physical(p, bytes) {
		list := r.handles[e.handle]
		i := sort.Search(len(list), func(i int) bool { return list[i].end > e.at })
		j := i
		for ; j < len(list) && list[j].at < e.at+e.bytes; j++ {
			s := list[j]
			if s.live {
				return fmt.Errorf("handle %d [%d,%d) is given out twice: [%d,%d) is live", e.handle, e.at, e.at+e.bytes, s.at, s.end)
			}
			for other, until := range s.uses {
				if other != stream && r.m.done[other] < until {
					return fmt.Errorf("handle %d [%d,%d) is given to stream %d while stream %d is at %d of %d", e.handle, e.at, e.at+e.bytes, stream, other, r.m.done[other], until)
				}
			}
		}
		// What is covered in part lives on beside the new one.
		var with []*shadow
		for _, s := range list[i:j] {
			if s.at < e.at {
				with = append(with, &shadow{at: s.at, end: e.at, uses: s.uses})
			}
		}
		with = append(with, &shadow{at: e.at, end: e.at + e.bytes, live: true, uses: map[uint64]int{}})
		for _, s := range list[i:j] {
			if s.end > e.at+e.bytes {
				with = append(with, &shadow{at: e.at + e.bytes, end: s.end, uses: s.uses})
			}
		}
		r.handles[e.handle] = append(list[:i:i], append(with, list[j:]...)...)
	}
	return nil
}

// free notes that memory is no longer used after what is queued on the streams.
func (r *reference) free(p cuda.Ptr, bytes int64, streams []uint64) error {
	for _, e := range r.m.physical(p, bytes) {
		list := r.handles[e.handle]
		i := sort.Search(len(list), func(i int) bool { return list[i].end > e.at })
		if i == len(list) || !list[i].live || list[i].at != e.at || list[i].end != e.at+e.bytes {
			return fmt.Errorf("handle %d [%d,%d) is not what was given out", e.handle, e.at, e.at+e.bytes)
		}
		list[i].live = false
		for _, s := range streams {
			list[i].uses[s] = r.m.queued[s]
		}
	}
	return nil
}

// TestRandom: no overlap, no use before the streams are done, no leak.
func TestRandom(t *testing.T) {
	for _, c := range []Config{
		{},
		{Strategy: Lazy, MinBytes: 2 * pageBytes, SpaceBytes: 64 * pageBytes},
		{Strategy: Never},
		{MinBytes: pageBytes, SpaceBytes: 1},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) { randomRun(t, c, *randomOps/4) })
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
	m := newMachine(capacity)
	p, err := New(c, m, m, m)
	if err != nil {
		t.Fatal(err)
	}
	ref := &reference{m: m, handles: map[cuda.Handle][]*shadow{}}
	var live []allocation
	var liveBytes int64
	drop := func(i int) {
		a := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		liveBytes -= a.bytes
		if err := ref.free(a.p, a.bytes, a.streams); err != nil {
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
			if err := ref.claim(q, bytes, stream); err != nil {
				t.Fatalf("operation %d: %v", op, err)
			}
			live = append(live, allocation{q, bytes, []uint64{stream}})
			liveBytes += bytes
			m.queued[stream]++
		case k < 85 && len(live) > 0:
			drop(rng.IntN(len(live)))
		case k < 90 && len(live) > 0:
			a := &live[rng.IntN(len(live))]
			p.RecordStream(a.p, stream)
			if a.streams[0] != stream {
				a.streams = append(a.streams, stream)
			}
			m.queued[stream]++
		case k < 98:
			if m.done[stream] < m.queued[stream] {
				m.done[stream] += 1 + rng.IntN(m.queued[stream]-m.done[stream])
			}
		case op%1000 == 0:
			p.EmptyCache()
		case op%10 == 0:
			p.Trim(rng.Int64N(capacity / 4))
		}
		if op%5000 == 0 {
			if err := p.Check(); err != nil {
				t.Fatalf("operation %d: %v", op, err)
			}
			if n := m.physicalBytes(); n != p.Stats().ReservedBytes || n != m.taken {
				t.Fatalf("operation %d: %d bytes of handles exist, %d are reserved, %d taken", op, n, p.Stats().ReservedBytes, m.taken)
			}
		}
	}
	s := p.Stats()
	t.Logf("%d allocations, %d refused; %d stitches, %d reused, %d freed", s.Allocs, refused, s.Stitches, s.StitchReuses, s.StitchFrees)
	for len(live) > 0 {
		drop(0)
	}
	p.EmptyCache()
	if s := p.Stats(); s.ReservedBytes != 0 || s.LiveBytes != 0 || m.physicalBytes() != 0 || m.taken != 0 || len(m.mappings) != 0 {
		t.Errorf("left at the end: %+v, %d bytes of handles, %d mappings", s, m.physicalBytes(), len(m.mappings))
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if len(m.reserved) > 2 {
		t.Errorf("%d address ranges are left, two arenas expected", len(m.reserved))
	}
}
