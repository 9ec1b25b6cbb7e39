package pool

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/internal/model"
)

// benchmarkPairs frees one of some allocations and makes another, from a warm cache.
func benchmarkPairs(b *testing.B, c Config, from, step int64, parallel bool) {
	m := model.New(1 << 36)
	p, err := New(c, m, m, m)
	if err != nil {
		b.Fatal(err)
	}
	const kept = 24
	pairs := func(seed uint64, next func() bool) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var live [kept]cuda.Ptr
		swap := func() {
			i := rng.IntN(kept)
			if live[i] != 0 {
				if err := p.Free(live[i]); err != nil {
					b.Error(err)
				}
			}
			if live[i], err = p.Malloc(from+int64(rng.IntN(13))*step, 0); err != nil {
				b.Error(err)
			}
		}
		for range 2000 {
			swap()
		}
		for next() {
			swap()
		}
	}
	b.ResetTimer()
	if !parallel {
		pairs(1, b.Loop)
		return
	}
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) { pairs(rand.Uint64(), pb.Next) })
}

func BenchmarkSmall(b *testing.B)         { benchmarkPairs(b, Config{Unplanned: true}, 512, 80<<10, false) }
func BenchmarkLarge(b *testing.B)         { benchmarkPairs(b, Config{Unplanned: true}, mib+512, mib/4, false) }
func BenchmarkLargeRecorded(b *testing.B) { benchmarkPairs(b, Config{}, mib+512, mib/4, false) }
func BenchmarkSmallThreads(b *testing.B) {
	benchmarkPairs(b, Config{Unplanned: true}, 512, 80<<10, true)
}
func BenchmarkLargeThreads(b *testing.B) {
	benchmarkPairs(b, Config{Unplanned: true}, mib+512, mib/4, true)
}

// BenchmarkPlanned replays an iteration that is followed: the time of an allocation
// with its free.
func BenchmarkPlanned(b *testing.B) {
	m := model.New(1 << 36)
	p, err := New(Config{}, m, m, m)
	if err != nil {
		b.Fatal(err)
	}
	const layers = 300
	var live [layers]cuda.Ptr
	requests := 0
	iteration := func() {
		for k := range int64(layers) {
			live[k], _ = p.Malloc((3+k%17)*mib/2+k*512, 0)
			t, _ := p.Malloc(2*mib, 0)
			_ = p.Free(t) // it is live
			requests += 2
		}
		for k := layers - 1; k >= 0; k-- {
			_ = p.Free(live[k])
		}
	}
	for range 8 {
		iteration()
		p.planned.Wait()
	}
	if s := p.Stats(); s.PlanState != "followed" {
		b.Fatalf("%+v: the plan is not followed", s)
	}
	requests = 0
	for b.Loop() {
		iteration()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests), "ns/request")
}
