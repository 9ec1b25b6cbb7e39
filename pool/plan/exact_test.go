package plan

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/raced"
)

// The eleven hard instances of google/minimalloc are placed within capacity.
func TestMiniMalloc(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "shared", "data", "minimalloc", "*.csv"))
	if len(files) == 0 {
		t.Skip("no shared placement instances on this machine")
	}
	begun := time.Now()
	for _, file := range files {
		name, rest, _ := strings.Cut(filepath.Base(file), ".")
		capacity, err := strconv.ParseInt(strings.TrimSuffix(rest, ".csv"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		// With the race detector the search is ten times slower; the quickest must do.
		if (raced.On || testing.Short()) && !strings.Contains("BC", name) {
			continue
		}
		in, err := ReadCSVFile(file)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		p, err := Place(context.Background(), in.Requests, Options{CapacityBytes: capacity, TimeLimit: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d requests, %d of %d bytes, bound %d, %v", name, len(in.Requests), p.Bytes, capacity, p.BoundBytes, time.Since(at).Round(time.Millisecond))
		if p.Bytes > capacity {
			t.Errorf("%s: %d bytes do not fit in %d", name, p.Bytes, capacity)
		}
		if i, j, bad := overlapsPlainly(in.Requests, p.Offsets); bad {
			t.Errorf("%s: requests %d and %d overlap", name, i, j)
		}
	}
	t.Logf("all: %v", time.Since(begun).Round(time.Millisecond))
}

// perfect cuts a rectangle of time and memory into requests without any rest.
func perfect(r *rand.Rand, n int, times, bytes int64) []Request {
	type rectangle struct {
		Span
		bytes int64
	}
	all := []rectangle{{Span{0, times}, bytes}}
	for len(all) < n {
		i := r.IntN(len(all))
		a := all[i]
		b := a
		if r.IntN(2) == 0 {
			if a.Upper-a.Lower < 2 {
				continue
			}
			cut := a.Lower + 1 + r.Int64N(a.Upper-a.Lower-1)
			a.Upper, b.Lower = cut, cut
		} else {
			if a.bytes < 2 {
				continue
			}
			a.bytes = 1 + r.Int64N(a.bytes-1)
			b.bytes -= a.bytes
		}
		all[i] = a
		all = append(all, b)
	}
	var requests []Request
	for _, a := range all {
		requests = append(requests, Request{Span: a.Span, Bytes: a.bytes})
	}
	r.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	return requests
}

func TestPerfectPackingsAreFound(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 40 {
		requests := perfect(r, 5+r.IntN(25), 30, 1000)
		p, err := Place(context.Background(), requests, Options{TimeLimit: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if p.Bytes != p.BoundBytes {
			t.Errorf("%d requests: %d bytes, and %d are enough", len(requests), p.Bytes, p.BoundBytes)
		}
	}
}

// leastBytes tries every order of first fit without skipping: exact, and slow.
func leastBytes(p *problem) int64 {
	least := int64(maxBytes)
	var place func(s *shelf, left []int32, height int64)
	place = func(s *shelf, left []int32, height int64) {
		if height >= least {
			return
		}
		if len(left) == 0 {
			least = height
			return
		}
		for k, i := range left {
			b := &p.buffers[i]
			at := s.find(b, firstFit)
			t := &shelf{wraps: s.wraps, placed: append([]placed(nil), s.placed...)}
			t.put(b, at)
			rest := append(append([]int32(nil), left[:k]...), left[k+1:]...)
			place(t, rest, max(height, at+b.bytes))
		}
	}
	all := make([]int32, len(p.buffers))
	for i := range all {
		all[i] = int32(i)
	}
	place(&shelf{wraps: p.wraps}, all, 0)
	return least
}

// On small problems the exact search must agree with brute force: what it finds
// exists, and what it refutes does not.
func TestExactAgreesWithBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	above := 0
	for n := range 150 {
		var requests []Request
		for range 3 + r.IntN(5) {
			lower := r.Int64N(8)
			requests = append(requests, Request{Span: Span{lower, lower + 1 + r.Int64N(5)}, Bytes: 1 + r.Int64N(6)})
			if n%3 == 0 {
				requests[len(requests)-1].AlignBytes = 1 << r.IntN(3)
			}
		}
		p, err := newProblem(requests)
		if err != nil {
			t.Fatal(err)
		}
		least := leastBytes(p)
		if least > p.boundBytes {
			above++
		}
		ranks := newRanker(p, uint64(n))
		for capacity := max(1, least-3); capacity <= least+1; capacity++ {
			for range 3 {
				e := newExact(p)
				e.capacity, e.stop = capacity, func() bool { return false }
				if found := e.run(ranks.next(e.dead), 1<<40); found != (capacity >= least) {
					t.Fatalf("%+v in %d bytes: found %v, but the least is %d", requests, capacity, found, least)
				} else if !found {
					continue
				}
				offsets := make([]int64, len(requests))
				for k, i := range p.index {
					offsets[i] = e.offsets[k]
				}
				if err := Check(requests, offsets, capacity); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if above < 10 {
		t.Errorf("the bound is the answer in all but %d problems: they are too easy", above)
	}
}

func TestLuby(t *testing.T) {
	for i, want := range []int64{1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8, 1} {
		if got := luby(i + 1); got != want {
			t.Errorf("luby(%d) = %d, want %d", i+1, got, want)
		}
	}
}

func TestTimeLimitIsKept(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	requests := perfect(r, 2000, 4000, 1<<40)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx   context.Context
		limit time.Duration
	}{{context.Background(), 300 * time.Millisecond}, {ctx, time.Hour}} {
		begun := time.Now()
		p, err := Place(c.ctx, requests, Options{TimeLimit: c.limit})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if err := Check(requests, p.Offsets, p.Bytes); err != nil {
			t.Error(err)
		}
	}
}
