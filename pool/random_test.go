package pool

import (
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/internal/model"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

var randomOps = flag.Int("ops", 100_000, "operations of the random test; 10000000 is the full number")

const (
	randomStreams  = 4
	randomThreads  = 8
	randomCapacity = 1 << 30
)

// allocation is what a thread of the test holds.
type allocation struct {
	p       cuda.Ptr
	bytes   int64
	streams []uint64
}

// client is one thread of the test.
type client struct {
	t    *testing.T
	m    *model.Machine
	p    fronted
	rng  *rand.Rand
	live []allocation
	ops  int
	// The caches are emptied once in so many operations.
	empties int
}

func (c *client) malloc(bytes int64, stream uint64) {
	c.ops--
	q, err := c.p.Malloc(bytes, stream)
	if err != nil {
		return // with so many threads memory is often spent
	}
	if err := c.m.Claim(q, bytes, stream); err != nil {
		c.t.Error(err)
		c.ops = 0
	}
	c.m.Queue(stream)
	c.live = append(c.live, allocation{q, bytes, []uint64{stream}})
}

func (c *client) free(i int) {
	c.ops--
	a := c.live[i]
	c.live[i] = c.live[len(c.live)-1]
	c.live = c.live[:len(c.live)-1]
	if err := c.m.Release(a.p, a.bytes, a.streams); err != nil {
		c.t.Error(err)
	}
	if err := c.p.Free(a.p); err != nil {
		c.t.Error(err)
		c.ops = 0
	}
}

func (c *client) record(stream uint64) {
	c.ops--
	a := &c.live[c.rng.IntN(len(c.live))]
	c.p.RecordStream(a.p, stream)
	a.streams = append(a.streams, stream)
	c.m.Queue(stream)
}

// random makes one operation at random.
func (c *client) random(most int64) {
	stream := uint64(c.rng.IntN(randomStreams))
	switch k := c.rng.IntN(100); {
	case k < 44 && len(c.live) < 60:
		c.malloc(1+c.rng.Int64N(most>>c.rng.IntN(12)), stream)
	case k < 88 && len(c.live) > 0:
		c.free(c.rng.IntN(len(c.live)))
	case k < 92 && len(c.live) > 0:
		c.record(stream)
	default:
		c.ops--
		c.m.Finish(stream, c.rng)
	}
	if c.rng.IntN(c.empties) == 0 {
		c.p.EmptyCache()
	}
}

// train makes the operations of one iteration: the same as those of the one before,
// but for some that are extra, missing or resized.
func (c *client) train(stream uint64) {
	const layers = 40
	first := len(c.live)
	for k := range int64(layers) {
		if c.rng.IntN(2000) == 0 {
			continue
		}
		bytes := (k*k%29 + 3) << 18
		if c.rng.IntN(2000) == 0 {
			bytes += 4096
		}
		c.malloc(bytes, stream)
		if c.rng.IntN(30) == 0 && len(c.live) > 0 {
			c.record((stream + 1) % randomStreams)
		}
		if k%3 == 0 {
			c.malloc(2<<20, stream)
			if n := len(c.live); n > first {
				c.free(n - 1)
			}
		}
		c.m.Finish(stream, c.rng)
	}
	for len(c.live) > first {
		c.free(len(c.live) - 1)
	}
	c.m.Finish((stream+1)%randomStreams, c.rng)
}

// TestRandom: threads and streams against the reference model. No memory is given
// out twice or before a stream is done with it, and none is left over.
func TestRandom(t *testing.T) {
	for _, k := range []struct {
		name     string
		config   Config
		trainers int   // threads that train
		others   int64 // largest request of the others
	}{
		{"noise", Config{}, 0, 32 << 20},
		{"training", Config{}, 1, 1 << 20}, // the others' requests are not planned
		{"training and noise", Config{}, 1, 8 << 20},
		{"two jobs", Config{Stitch: stitch.Config{Strategy: stitch.Lazy, SpaceBytes: 64 << 20}}, 2, 1 << 20},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			m := model.New(randomCapacity)
			p := newFronted(t, k.config, m, true)
			var threads sync.WaitGroup
			clients := make([]*client, randomThreads)
			for i := range clients {
				c := &client{t: t, m: m, p: p, rng: rand.New(rand.NewPCG(uint64(i), 1)), ops: *randomOps / 4 / randomThreads, empties: 20_000}
				if k.trainers > 0 { // which gives up the plan
					c.empties = 500_000
				}
				clients[i] = c
				threads.Add(1)
				go func() {
					defer threads.Done()
					for c.ops > 0 && !t.Failed() {
						if i < k.trainers {
							c.train(uint64(i))
						} else {
							c.random(k.others)
						}
					}
				}()
			}
			threads.Wait()
			p.planned.Wait()
			if err := errors.Join(p.Check(), checkSegments(p.Pool, clients)); err != nil {
				t.Fatal(err)
			}
			s := p.Stats()
			t.Logf("%d allocations; plan %s (%s): served %d, not %d; %d stitches, %d reused", s.Allocs, s.PlanState, s.PlanWhy, s.Planned, s.Unplanned, s.Stitches, s.StitchReuses)
			for _, c := range clients {
				for len(c.live) > 0 {
					c.free(0)
				}
			}
			p.Close()
			p.EmptyCache()
			physical, taken, mappings, ranges := m.Left()
			if s := p.Stats(); s.ReservedBytes != 0 || s.LiveBytes != 0 || physical != 0 || taken != 0 || mappings != 0 || ranges > 2 {
				t.Errorf("left at the end: %+v, %d bytes of handles, %d taken, %d mappings, %d address ranges (two arenas expected)", s, physical, taken, mappings, ranges)
			}
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
