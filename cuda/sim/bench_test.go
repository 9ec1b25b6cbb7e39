package sim

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// BenchmarkReplay is the shape of a replay: 25,000 launches that touch
// thousands of resident blocks each, and 100,000 block moves beside them.
func BenchmarkReplay(b *testing.B) {
	for range b.N {
		g := New(h200(), Options{CapacityBytes: 24 * gib})
		th := g.Thread("mover")
		in, _ := th.StreamCreate()
		out, _ := th.StreamCreate()
		compute, _ := th.StreamCreate()
		var tensors []cuda.Range
		for range 40 {
			p, err := th.MemAllocManaged(512*mib + 4096)
			if err != nil {
				b.Fatal(err)
			}
			tensors = append(tensors, cuda.Range{Base: p, Bytes: 512*mib + 4096})
		}
		if err := th.Prefetch(tensors, cuda.Device, in); err != nil {
			b.Fatal(err)
		}
		if err := th.StreamSynchronize(in); err != nil {
			b.Fatal(err)
		}
		for i := range 25000 {
			k := Kernel{Duration: 40 * time.Microsecond}
			for j := range 10 {
				k.Accesses = append(k.Accesses, Access{Range: tensors[(i+j)%32]})
			}
			g.Launch(compute, k)
			if i%125 == 0 {
				t := tensors[32+i/125%8]
				to := cuda.Location(i / 125 % 2)
				if err := th.Prefetch(chunksOf(t, 64*mib), to, []cuda.Stream{out, in}[to]); err != nil {
					b.Fatal(err)
				}
			}
		}
		for i := range 400 {
			t := tensors[i%8]
			if err := th.Prefetch([]cuda.Range{t}, cuda.Location(i/8%2), out); err != nil {
				b.Fatal(err)
			}
		}
		g.Run()
		if err := g.Check(); err != nil {
			b.Fatal(err)
		}
		s := g.Stats()
		b.ReportMetric(float64(s.PrefetchedBytes+s.SentHomeBytes)/float64(blockBytes), "moves")
	}
}

// BenchmarkFaults is the same on demand paging: every launch misses.
func BenchmarkFaults(b *testing.B) {
	for range b.N {
		g := New(h200(), Options{CapacityBytes: 4 * gib})
		th := g.Thread("host")
		s, _ := th.StreamCreate()
		var tensors []cuda.Range
		for range 16 {
			p, _ := th.MemAllocManaged(512 * mib)
			tensors = append(tensors, cuda.Range{Base: p, Bytes: 512 * mib})
		}
		for i := range 400 {
			g.Launch(s, Kernel{Duration: time.Millisecond, Accesses: []Access{{Range: tensors[i%16]}}})
		}
		g.Run()
		b.ReportMetric(float64(g.Stats().EvictedBlocks), "evictions")
	}
}
