package follow

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/penstock-gpu/penstock/pool/plan"
)

// steps makes steps of sizes, each alive until the end.
func steps(sizes []int64) *Steps {
	s := &Steps{Ticks: int64(2 * len(sizes))}
	var signer plan.Signer
	for range plan.SignatureCalls { // as at the end of the iteration before
		for _, n := range sizes[max(0, len(sizes)-plan.SignatureCalls):] {
			signer.Call(n)
		}
	}
	for i, n := range sizes {
		s.List = append(s.List, Step{Bytes: plan.RoundUp(n), Offset: unplaced, Lower: int64(i), Upper: int64(2*len(sizes) - i), signature: signer.Call(n)})
	}
	s.index()
	return s
}

// layered is an iteration of layers that are alike, between what is not.
func layered() (sizes []int64) {
	sizes = append(sizes, 50<<20, 7<<20, 9<<20)
	for range 20 {
		sizes = append(sizes, 4<<20, 2<<20, 4<<20, 16<<20, 16<<20, 4<<20)
	}
	return append(sizes, 100<<20, 100<<20, 33<<20)
}

// walk gives requests to a follower and counts those that are not the step wanted;
// -1 is a request that is no step.
func walk(f *Follower, sizes []int64, want []int) (wrong int) {
	for i, n := range sizes {
		step, ok := f.Next(n, 0)
		if !ok {
			step = -1
		}
		if step != want[i] {
			wrong++
		}
	}
	return wrong
}

func numbers(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// located is a follower that knows it is at the begin of an iteration.
func located(t *testing.T, sizes []int64) *Follower {
	t.Helper()
	f := NewFollower(steps(sizes))
	for range 2 {
		walk(f, sizes, numbers(len(sizes)))
	}
	if !f.located || f.next != 0 {
		t.Fatalf("not at the begin after two iterations: %+v", f)
	}
	return f
}

func TestFollowerResynchronises(t *testing.T) {
	base := layered()
	all := numbers(len(base))
	const at = 61 // in the middle of the layers, before a step of another size
	splice := func(from, to int, sizes []int64, want []int) ([]int64, []int) {
		s := append(append(append([]int64(nil), base[:from]...), sizes...), base[to:]...)
		w := append(append(append([]int(nil), all[:from]...), want...), all[to:]...)
		return s, w
	}
	for _, c := range []struct {
		name     string
		from, to int // of the iteration are replaced
		sizes    []int64
		want     []int
		mayMiss  int
	}{
		{"nothing", at, at, nil, nil, 0},
		{"extra", at, at, []int64{5 << 20}, []int{-1}, 0},
		{"many extra", at, at, []int64{5 << 20, 6 << 20, 5 << 20, 5 << 20, 6 << 20, 5 << 20, 5 << 20, 6 << 20}, []int{-1, -1, -1, -1, -1, -1, -1, -1}, 2},
		{"missing", at, at + 1, nil, nil, 1},
		{"resized", at, at + 1, []int64{3 << 20}, []int{-1}, 0},
		{"swapped", at, at + 2, []int64{base[at+1], base[at]}, []int{at + 1, at}, 0},
		{"a layer missing", 63, 69, nil, nil, 60}, // which one cannot be said before the layers end
	} {
		f := located(t, base)
		sizes, want := splice(c.from, c.to, c.sizes, c.want)
		if wrong := walk(f, sizes, want); wrong > c.mayMiss {
			t.Errorf("%s: %d requests are taken for other steps", c.name, wrong)
		}
		if wrong := walk(f, base, all); wrong > 0 {
			t.Errorf("%s: %d in the iteration after", c.name, wrong)
		}
	}
}

// TestFollowerFindsItsWay: from anywhere in an iteration.
func TestFollowerFindsItsWay(t *testing.T) {
	base := layered()
	for from := range len(base) {
		f := NewFollower(steps(base))
		walk(f, base[from:], numbers(len(base))[from:])
		walk(f, base, numbers(len(base)))
		if wrong := walk(f, base, numbers(len(base))); wrong > 0 {
			t.Errorf("begun at %d: %d requests of the third iteration are taken for other steps", from, wrong)
		}
	}
}

func TestRevise(t *testing.T) {
	base := layered()
	f := located(t, base)
	f.Forget()
	again := append([]int64(nil), base...)
	for i := 20; i < 60; i += 5 {
		again[i] += 4096
	}
	walk(f, again, numbers(len(base)))
	if !f.steps.Revise(f) {
		t.Fatal("no revision, with an eighth of the bytes missed")
	}
	for i, x := range f.steps.List {
		if x.Varies != (i >= 20 && i < 60 && i%5 == 0) {
			t.Errorf("step %d varies: %t", i, x.Varies)
		}
	}
	if share, err := f.steps.Plan(context.Background(), 0); err != nil || share < 0.5 || share > 0.999 {
		t.Errorf("share %v, %v", share, err)
	}
	for i, x := range f.steps.List {
		if x.Varies == (x.Offset >= 0) {
			t.Errorf("step %d varies: %t, offset %d", i, x.Varies, x.Offset)
		}
		for _, g := range x.Gaps {
			for k, y := range f.steps.List {
				if y.Offset >= 0 && y.Lower < x.Upper && x.Lower < y.Upper && y.Offset < g.Hi && g.Lo < y.Offset+y.Bytes {
					t.Errorf("the gap of step %d overlaps step %d", i, k)
				}
			}
		}
	}
	// A varying step is followed whatever its size.
	f = NewFollower(f.steps)
	for range 2 {
		walk(f, base, numbers(len(base)))
	}
	if wrong := walk(f, again, numbers(len(base))); wrong > 0 {
		t.Errorf("%d requests are taken for other steps", wrong)
	}
}

// FuzzFollower: whatever comes, the follower names steps that exist and knows its bounds.
func FuzzFollower(f *testing.F) {
	f.Add([]byte{1, 2, 3, 1, 2, 3, 9, 1, 2, 3}, uint8(2))
	f.Add([]byte("layers are alike, layers are alike"), uint8(0))
	f.Fuzz(func(t *testing.T, requests []byte, start uint8) {
		s := steps(layered())
		s.Start = int(start) % len(s.List)
		w := NewFollower(s)
		if start%2 == 1 {
			w = NewFollowerFromStart(s)
		}
		var buffer []Gap
		for _, b := range requests {
			i, ok := w.Next(int64(b%40)<<20, uint64(b%2))
			if i < 0 || i >= len(s.List) || !ok && i != 0 {
				t.Fatalf("step %d, %t", i, ok)
			}
			buffer = w.Coming(int(b), buffer)
			w.AtBegin()
		}
		s.Revise(w)
	})
}

// TestLayout holds the layout against bytes that are marked one by one.
func TestLayout(t *testing.T) {
	const pages = 64
	rng := rand.New(rand.NewPCG(1, 2))
	frees, passed := map[uint64]uint64{}, map[uint64]uint64{}
	l := NewLayout(pages*512, 0, 0, func(stream, freed uint64, wait bool) bool {
		if wait {
			passed[stream] = frees[stream]
		}
		return freed <= passed[stream]
	})
	type page struct {
		used          bool
		stream, freed uint64
	}
	var model [pages]page
	live := map[int64]int64{}
	for op := range 50_000 {
		stream := uint64(rng.IntN(3))
		switch rng.IntN(5) {
		case 0, 1:
			n := 1 + rng.Int64N(8)
			at := rng.Int64N(pages - n + 1)
			if rng.IntN(2) == 0 {
				if offset, ok := l.Fit(n*512, stream, []Gap{{0, 512 * rng.Int64N(pages)}}); ok {
					at = offset / 512
				} else {
					continue
				}
			}
			can := true
			for _, x := range model[at : at+n] {
				can = can && !x.used && (x.stream == stream || x.freed <= passed[x.stream])
			}
			ok := l.Place(at*512, n*512, n, stream)
			if ok && !can {
				t.Fatalf("operation %d: [%d,%d) is given to stream %d", op, at, at+n, stream)
			}
			if ok {
				live[at] = n
				for i := range model[at : at+n] {
					model[at+int64(i)] = page{used: true, stream: stream}
				}
			}
		case 2, 3:
			for at, n := range live {
				s := l.Stream(at * 512)
				frees[s]++
				if err := l.Free(at*512, frees[s]); err != nil {
					t.Fatal(err)
				}
				for i := range model[at : at+n] {
					model[at+int64(i)] = page{stream: s, freed: frees[s]}
				}
				delete(live, at)
				break
			}
		default:
			passed[stream] = frees[stream]
		}
		if err := l.Check(pages * 512); err != nil {
			t.Fatal(err)
		}
		if l.Used() != len(live) {
			t.Fatalf("%d in use, want %d", l.Used(), len(live))
		}
	}
	if l.Free(1, 1) == nil || l.Requested(1) != 0 {
		t.Error("something lies where nothing begins")
	}
}
