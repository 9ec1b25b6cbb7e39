package record

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestInOrder(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	var spare []place
	for n := range 300 {
		var in []place
		now := time.Duration(0)
		for i := range n {
			if now += time.Duration(draw.IntN(3)); draw.IntN(20) == 0 {
				now = time.Duration(draw.IntN(40))
			}
			in = append(in, place{now, i})
		}
		want := slices.Clone(in)
		slices.SortStableFunc(want, func(x, y place) int { return cmp.Compare(x.time, y.time) })
		var got []place
		if got, spare = inOrder(in, spare); !slices.Equal(got, want) {
			t.Fatalf("%d places: %v, want %v", n, got, want)
		}
	}
}
