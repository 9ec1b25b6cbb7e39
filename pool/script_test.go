package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/pool/internal/model"
)

// trainee is a job of one stream that repeats itself, but for now and then.
type trainee struct {
	client
	sizes    []int64
	unsteady bool
	late     []allocation // of an iteration before
}

func (x *trainee) odd() bool { return x.unsteady && x.rng.IntN(400) == 0 }

// something asks the pool what it needs the script's end for, or does what is not planned.
func (x *trainee) something() {
	switch x.rng.IntN(7) {
	case 0:
		x.p.Stats()
	case 1:
		if a := x.live[x.rng.IntN(len(x.live))]; !x.p.Owns(a.p) {
			x.t.Errorf("%#x is live, and not the pool's", uint64(a.p))
		}
	case 2:
		if a := x.live[x.rng.IntN(len(x.live))]; true {
			if r, ok := x.p.Containing(a.p + 1); !ok || r.Base != a.p {
				x.t.Errorf("%#x lies in %+v", uint64(a.p), r)
			}
		}
	case 3:
		x.record(1)
		x.m.Finish(1, x.rng)
	case 4:
		x.malloc(x.sizes[0], 2)
		x.m.Finish(2, x.rng)
	case 5:
		x.p.EmptyCache()
	case 6:
		x.malloc(x.sizes[x.rng.IntN(len(x.sizes))], 0)
	}
}

// iteration allocates forward and frees backward, with memory that lives for short in both.
func (x *trainee) iteration() {
	for len(x.late) > 0 {
		x.live = append(x.live, x.late[0])
		x.late = x.late[1:]
		x.free(len(x.live) - 1)
	}
	first := len(x.live)
	short := func(bytes int64) {
		x.malloc(bytes, 0)
		if n := len(x.live); n > first {
			x.free(n - 1)
		}
	}
	for i, bytes := range x.sizes {
		if x.odd() {
			bytes += 4096
		}
		if !x.odd() {
			x.malloc(bytes, 0)
		}
		short(x.sizes[(i+3)%len(x.sizes)])
		short(1000 + int64(i%5)*512) // of no plan
		if x.odd() && len(x.live) > 0 {
			x.something()
		}
	}
	for len(x.live) > first {
		i := len(x.live) - 1
		if x.unsteady && x.rng.IntN(40) == 0 {
			i = first + x.rng.IntN(len(x.live)-first) // in another order
		}
		if x.odd() { // the requests to come are as ever
			x.late = append(x.late, x.live[i])
			x.live = append(x.live[:i], x.live[i+1:]...)
		} else {
			x.free(i)
		}
		short(x.sizes[i%len(x.sizes)] / 2)
	}
}

func (x *trainee) liveBytes() (n int64) {
	for _, a := range append(append([]allocation{}, x.live...), x.late...) {
		n += a.bytes
	}
	return n
}

// TestScript: the front follows the plan of a job that repeats itself; when it does something else no memory
// is given out twice, and what is live and where is known as if the pool had served it all.
func TestScript(t *testing.T) {
	for seed := uint64(0); seed < uint64(short.Of(24, 8)); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			m := model.New(1 << 34)
			p := newFronted(t, Config{}, m, true)
			x := &trainee{client: client{t: t, m: m, p: p, rng: rng, empties: 1 << 30}}
			for range 60 + rng.IntN(200) {
				x.sizes = append(x.sizes, 2<<20+512*rng.Int64N(12<<11))
			}
			const iterations = 60
			for i := range iterations {
				x.unsteady = seed%4 > 0 && i > 15 && i%5 != 0
				x.iteration()
				if p.planned.Wait(); t.Failed() {
					t.Fatalf("iteration %d", i)
				}
				if want := x.liveBytes(); p.LiveBytes() != want {
					t.Fatalf("iteration %d: %d bytes are live, want %d", i, p.LiveBytes(), want)
				}
				if i%7 == 6 {
					if err := errors.Join(p.Check(), segments.Check(p.Segments(), p.LiveBytes())); err != nil {
						t.Fatalf("iteration %d: %v", i, err)
					}
				}
			}
			s := p.Stats()
			if s.Allocs-s.Frees != int64(len(x.live)+len(x.late)) {
				t.Errorf("%d allocations and %d frees, %d live", s.Allocs, s.Frees, len(x.live)+len(x.late))
			}
			if seed%4 == 0 && s.Scripted*2 < s.Planned {
				t.Errorf("%d of %d planned requests were served by the front", s.Scripted, s.Planned)
			}
			t.Logf("plan %s (%s): %d of %d planned served by the front", s.PlanState, s.PlanWhy, s.Scripted, s.Planned)
			for x.live = append(x.live, x.late...); len(x.live) > 0; {
				x.free(0)
			}
			if err := p.Check(); err != nil || p.LiveBytes() != 0 {
				t.Errorf("%v, %d bytes are live", err, p.LiveBytes())
			}
		})
	}
}

// TestScriptEndsWithTheFront: what the front has done by a plan is known when it no longer serves, and when two
// threads end the script at a time.
func TestScriptEndsWithTheFront(t *testing.T) {
	m := model.New(1 << 34)
	p := newFronted(t, Config{}, m, true)
	rng := rand.New(rand.NewPCG(1, 1))
	x := &trainee{client: client{t: t, m: m, p: p, rng: rng, empties: 1 << 30}}
	for range 100 {
		x.sizes = append(x.sizes, 2<<20+512*rng.Int64N(12<<11))
	}
	for range 12 {
		x.iteration()
		p.planned.Wait()
	}
	scripted := func() bool {
		served, _ := p.front.Following()
		return served > 0
	}
	if !scripted() {
		t.Fatalf("no script after 12 iterations: %+v", p.Stats())
	}
	x.malloc(x.sizes[0], 0)
	first := x.live[len(x.live)-1]
	if how := p.front.Hold(first.p); how != front.Held || !scripted() {
		t.Fatalf("a planned allocation was not freed by the front: %d", how)
	}
	_ = m.Release(first.p, first.bytes, []uint64{0})
	if x.live = x.live[:len(x.live)-1]; p.Free(first.p) == nil {
		t.Error("what was freed is freed again")
	}
	for range 4 { // and the script begins again
		x.iteration()
	}
	if !scripted() {
		t.Fatal("no script")
	}
	var threads sync.WaitGroup
	var mu sync.Mutex
	for range 4 {
		threads.Go(func() {
			for k := range 50 {
				q, err := p.Malloc(int64(2+k%9)<<20, 0)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				err = m.Claim(q, int64(2+k%9)<<20, 0)
				mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				_ = m.Release(q, int64(2+k%9)<<20, []uint64{0})
				if err := p.Free(q); err != nil {
					t.Error(err)
				}
			}
		})
	}
	threads.Wait()
	p.ServeFront(false)
	if want := x.liveBytes(); p.LiveBytes() != want {
		t.Errorf("%d bytes are live, want %d", p.LiveBytes(), want)
	}
	for len(x.live) > 0 {
		x.free(0)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if at, _ := p.front.Take(x.sizes[0], 0); at != 0 {
		t.Errorf("%#x is given out when the front does not serve", uint64(at))
	}
}
