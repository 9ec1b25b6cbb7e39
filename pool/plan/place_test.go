package plan

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/raced"
)

// overlapsPlainly compares every pair, piece by piece.
func overlapsPlainly(requests []Request, offsets []int64) (int, int, bool) {
	pieces := func(r Request) []Span { return []Span{r.Span, r.Again} }
	for i, a := range requests {
		for j, b := range requests[:i] {
			if offsets[i] >= offsets[j]+b.Bytes || offsets[j] >= offsets[i]+a.Bytes {
				continue
			}
			for _, s := range pieces(a) {
				for _, t := range pieces(b) {
					if s.Lower < t.Upper && t.Lower < s.Upper && s.Lower < s.Upper && t.Lower < t.Upper {
						return i, j, true
					}
				}
			}
		}
	}
	return 0, 0, false
}

func randomRequests(r *rand.Rand, n int, wraps, aligned bool) []Request {
	var all []Request
	for range n {
		lower := r.Int64N(100)
		q := Request{Span: Span{lower, lower + 1 + r.Int64N(40)}, Bytes: r.Int64N(1000)}
		if wraps && r.IntN(5) == 0 {
			q.Span.Lower += 200
			q.Span.Upper += 200
			q.Again = Span{0, 1 + r.Int64N(50)}
		}
		if aligned && r.IntN(2) == 0 {
			q.AlignBytes = 1 << r.IntN(8)
		}
		all = append(all, q)
	}
	return all
}

func TestPlacementsDoNotOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		requests := randomRequests(r, 1+r.IntN(60), r.IntN(2) == 0, r.IntN(2) == 0)
		placement, err := Place(context.Background(), requests, Options{TimeLimit: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if i, j, bad := overlapsPlainly(requests, placement.Offsets); bad {
			t.Fatalf("requests %d %+v and %d %+v overlap at %d and %d", i, requests[i], j, requests[j], placement.Offsets[i], placement.Offsets[j])
		}
		if placement.Bytes < placement.BoundBytes {
			t.Fatalf("%d bytes are below the bound %d", placement.Bytes, placement.BoundBytes)
		}
	}
}

func TestCheckFindsOverlaps(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	found := 0
	for range 3000 {
		requests := randomRequests(r, 2+r.IntN(6), r.IntN(2) == 0, false)
		offsets := make([]int64, len(requests))
		for i := range offsets {
			offsets[i] = r.Int64N(5000)
			requests[i].Bytes++
		}
		_, _, bad := overlapsPlainly(requests, offsets)
		err := Check(requests, offsets, maxBytes)
		if bad != (err != nil) {
			t.Fatalf("overlap %v, but Check says %v: %+v at %v", bad, err, requests, offsets)
		}
		if bad {
			found++
		}
	}
	if found < 300 || found > 2700 {
		t.Errorf("%d of 3000 had overlaps: the test is one-sided", found)
	}
}

func TestSkylineDoesNotOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for range 300 {
		requests := randomRequests(r, 1+r.IntN(80), r.IntN(2) == 0, r.IntN(2) == 0)
		p, err := newProblem(requests)
		if err != nil {
			t.Fatal(err)
		}
		placed, offsets := make([]int64, len(p.buffers)), make([]int64, len(requests))
		height := p.skyline(p.order(orderings()[0]), placed)
		for k, i := range p.index {
			offsets[i] = placed[k]
		}
		if err := Check(requests, offsets, height); err != nil {
			t.Fatal(err)
		}
	}
}

// The time limit holds for a million requests, and there is a placement all the same.
func TestAMillionRequests(t *testing.T) {
	raced.Skip(t)
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := rand.New(rand.NewPCG(19, 20))
	requests := make([]Request, 1_000_000)
	for i := range requests {
		lower := r.Int64N(2_000_000)
		requests[i] = Request{Span: Span{lower, lower + 1 + r.Int64N(1<<r.IntN(16))}, Bytes: 512 * (1 + r.Int64N(1<<r.IntN(12)))}
	}
	begun := time.Now()
	p, err := Place(context.Background(), requests, Options{TimeLimit: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	t.Logf("%.3f of the bound in %v", float64(p.Bytes)/float64(p.BoundBytes), took)
	if took > time.Minute {
		t.Errorf("took %v", took)
	}
}
