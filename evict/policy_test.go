package evict

import (
	"math"
	"math/rand"
	"sort"
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	never := int64(math.MaxInt64)
	for _, test := range []struct {
		policy Policy
		name   string
		a, b   Candidate // a leaves first
	}{
		{LRU, "the longest unused", Candidate{LastUse: 1, NextUse: 5}, Candidate{LastUse: 2, NextUse: 50}},
		{DeepUM, "what the next kernels do not need", Candidate{Migrated: 9}, Candidate{Migrated: 1, Predicted: true}},
		{DeepUM, "the least recently migrated", Candidate{Migrated: 1, LastUse: 9}, Candidate{Migrated: 2, LastUse: 1}},
		{NextUse, "the farthest", Candidate{NextUse: 50, LastUse: 9}, Candidate{NextUse: 5, LastUse: 1}},
		{NextUse, "what is never used", Candidate{NextUse: never}, Candidate{NextUse: 5000}},
		{NextUse, "clean before dirty", Candidate{NextUse: 5, Clean: true, LastUse: 9}, Candidate{NextUse: 5, LastUse: 1}},
		{NextUse, "the longest unused among equals", Candidate{NextUse: 5, LastUse: 1}, Candidate{NextUse: 5, LastUse: 2}},
		{NextUse, "the least recently migrated last", Candidate{NextUse: 5, Migrated: 1}, Candidate{NextUse: 5, Migrated: 2}},
	} {
		if !test.policy.Before(&test.a, &test.b) || test.policy.Before(&test.b, &test.a) {
			t.Errorf("%s: %s does not leave first", test.policy.Name(), test.name)
		}
	}
}

// A sort needs a strict weak order whatever the predictions say.
func TestStrictWeakOrder(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	pick := []int64{0, 1, 2, 7, math.MaxInt64 - 1, math.MaxInt64}
	var all []Candidate
	for range 60 {
		all = append(all, Candidate{
			NextUse: pick[rng.Intn(len(pick))], LastUse: pick[rng.Intn(3)], Migrated: pick[rng.Intn(3)],
			Predicted: rng.Intn(2) == 0, Clean: rng.Intn(2) == 0,
		})
	}
	for _, p := range []Policy{LRU, DeepUM, NextUse} {
		for i := range all {
			if p.Before(&all[i], &all[i]) {
				t.Fatalf("%s: %+v before itself", p.Name(), all[i])
			}
			for j := range all {
				for k := range all {
					a, b, c := &all[i], &all[j], &all[k]
					if p.Before(a, b) && p.Before(b, c) && !p.Before(a, c) {
						t.Fatalf("%s: not transitive: %+v, %+v, %+v", p.Name(), *a, *b, *c)
					}
				}
			}
		}
		sort.Slice(all, func(i, j int) bool { return p.Before(&all[i], &all[j]) })
	}
}

func TestByName(t *testing.T) {
	for _, p := range []Policy{LRU, DeepUM, NextUse} {
		if got, err := ByName(p.Name()); err != nil || got != p {
			t.Errorf("%s: %v, %v", p.Name(), got, err)
		}
	}
	if _, err := ByName("fifo"); err == nil || !strings.Contains(err.Error(), `"fifo"`) || !strings.Contains(err.Error(), "next-use") {
		t.Errorf("got %v", err)
	}
}

func TestWatermarks(t *testing.T) {
	w := DefaultWatermarks(3200)
	if w != (Watermarks{LowBytes: 100, HighBytes: 200}) {
		t.Fatalf("%+v", w)
	}
	for _, test := range []struct {
		free     int64
		underWay bool
		want     int64
	}{{150, false, 0}, {150, true, 50}, {99, false, 101}, {200, true, 0}, {-5, false, 205}} {
		if got := w.Shortfall(test.free, test.underWay); got != test.want {
			t.Errorf("%d free, under way %t: %d to leave, want %d", test.free, test.underWay, got, test.want)
		}
	}
}
