package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// delivered is what has crossed the bus by now, each way.
func (g *GPU) delivered() (d [2]float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settle()
	d[cuda.Host], d[cuda.Device] = float64(g.stats.D2HBytes), float64(g.stats.H2DBytes)
	for i := range g.bus {
		for _, f := range g.bus[i].flows {
			d[i] -= max(0, f.remaining)
		}
	}
	return d
}

// storm runs a random program on a small card and returns its trace: every
// event and the final state. It checks the ledger and the bus all along.
func storm(t *testing.T, p Profile, seed uint64, steps int) string {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	g := New(p, Options{CapacityBytes: 48 * mib})
	threads := []*Thread{g.Thread("a"), g.Thread("b"), g.Thread("c")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var streams []cuda.Stream
	for range 4 {
		s, err := threads[0].StreamCreate()
		must(err)
		streams = append(streams, s)
	}
	pinned, err := threads[0].HostAlloc(64 * mib)
	must(err)
	gate := g.NewGate()
	var seq uint64
	var live, plain []cuda.Range
	trace := ""
	g.Observe(func(e Event) { trace += fmt.Sprintln(e) })
	part := func() cuda.Range {
		r := live[rnd.IntN(len(live))]
		at := rnd.Int64N(r.Bytes)
		return cuda.Range{Base: r.Base + cuda.Ptr(at), Bytes: 1 + rnd.Int64N(r.Bytes-at)}
	}
	lastTime, last := g.Now(), g.delivered()
	check := func() {
		t.Helper()
		if err := g.Check(); err != nil {
			t.Fatalf("seed %d at %v: %v", seed, g.Now(), err)
		}
		now, d := g.Now(), g.delivered()
		seconds := (now - lastTime).Seconds()
		for i := range d {
			if d[i]-last[i] > p.CopyBytesPerSecond*seconds+64 {
				t.Fatalf("seed %d: %.0f bytes to the %v in %v", seed, d[i]-last[i], cuda.Location(i), now-lastTime)
			}
		}
		if sum := d[0] + d[1] - last[0] - last[1]; sum > p.DuplexBytesPerSecond*seconds+64 {
			t.Fatalf("seed %d: %.0f bytes both ways in %v", seed, sum, now-lastTime)
		}
		lastTime, last = now, d
	}
	for range steps {
		th, s := threads[rnd.IntN(len(threads))], streams[rnd.IntN(len(streams))]
		switch op := rnd.IntN(20); {
		case len(live) == 0 || op == 0 && len(live) < 12:
			bytes := 1 + rnd.Int64N(20*mib)
			b, err := th.MemAllocManaged(bytes)
			must(err)
			live = append(live, cuda.Range{Base: b, Bytes: bytes})
		case op == 1 && len(live) > 4 && seed%2 == 0:
			// Kernels still queued on it would be illegal, so drain first.
			gate.Open(seq)
			g.Run()
			i := rnd.IntN(len(live))
			must(th.MemFree(live[i].Base))
			live = append(live[:i], live[i+1:]...)
		case op == 2:
			if b, err := th.MemAlloc(1 + rnd.Int64N(8*mib)); err == nil {
				plain = append(plain, cuda.Range{Base: b})
			} else if !isCode(err, cuda.ErrOutOfMemory) {
				t.Fatal(err)
			}
		case op == 3 && len(plain) > 0:
			must(th.MemFree(plain[len(plain)-1].Base))
			plain = plain[:len(plain)-1]
		case op < 8:
			var k Kernel
			k.Duration = time.Duration(rnd.IntN(500)) * us
			for range 1 + rnd.IntN(3) {
				k.Accesses = append(k.Accesses, Access{Range: part(), Read: rnd.IntN(2) == 0, Write: rnd.IntN(3) == 0})
			}
			g.Launch(s, k)
		case op < 12:
			must(th.Prefetch([]cuda.Range{part(), part()}, cuda.Location(rnd.IntN(2)), s))
		case op == 12 && p.CUDAVersion >= 13000:
			must(th.Discard([]cuda.Range{part()}, s))
		case op == 13:
			must(th.Advise(part(), cuda.Advice(rnd.IntN(6)), cuda.Location(rnd.IntN(2))))
		case op == 14:
			r := part()
			a, b := pinned, r.Base
			if rnd.IntN(2) == 0 {
				a, b = b, a
			}
			must(th.CopyAsync(a, b, r.Bytes, s))
		case op == 15:
			seq++
			g.WaitGate(s, gate, seq)
		case op == 16:
			gate.Open(seq)
		}
		for range rnd.IntN(12) {
			g.Step()
		}
		check()
	}
	gate.Open(seq)
	for g.Step() {
		check()
	}
	for _, s := range streams {
		if done, err := threads[0].StreamQuery(s); !done || err != nil {
			t.Fatalf("seed %d: stream %d never ends: %v", seed, s, err)
		}
	}
	if len(g.inFlight) != 0 || g.uvm.busy || g.faultThread.busy || len(g.roomWaiters) != 0 {
		t.Fatalf("seed %d: something is still under way", seed)
	}
	if d := g.delivered(); int64(d[0]+0.5) != g.stats.D2HBytes || int64(d[1]+0.5) != g.stats.H2DBytes {
		t.Fatalf("seed %d: delivered %v of %d and %d", seed, d, g.stats.D2HBytes, g.stats.H2DBytes)
	}
	return trace + fmt.Sprintf("%v %+v", g.Now(), g.Stats())
}

func TestRandomPrograms(t *testing.T) {
	kept := h200()
	kept.DiscardKeepsMapping = true
	profiles := append(Profiles(), kept)
	for seed := range uint64(40) {
		storm(t, profiles[seed/2%uint64(len(profiles))], seed, 250)
	}
}

func TestDeterminism(t *testing.T) {
	for seed := uint64(100); seed < 104; seed++ {
		if a, b := storm(t, h200(), seed, 150), storm(t, h200(), seed, 150); a != b {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}

func FuzzPrograms(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(2))
	f.Fuzz(func(t *testing.T, seed uint64) { storm(t, Profiles()[seed%3], seed, 60) })
}
