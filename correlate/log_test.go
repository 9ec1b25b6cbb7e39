package correlate

import (
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

// TestLog compares the log with a slice, through many additions, losses at the front and at the end.
func TestLog(t *testing.T) {
	for seed := range int64(short.Of(20, 4)) {
		rng := rand.New(rand.NewSource(seed))
		var l log[int]
		var all []int // by number
		first := 0    // remembered for certain
		for range 400 {
			switch rng.Intn(4) {
			case 0, 1:
				for range rng.Intn(3000) {
					x := rng.Int()
					if n := l.add(x); n != int64(len(all)) {
						t.Fatalf("seed %d: element %d gets the number %d", seed, len(all), n)
					}
					all = append(all, x)
				}
			case 2:
				first += rng.Intn(len(all) - first + 1)
				l.forget(int64(first))
			case 3:
				all = all[:len(all)-rng.Intn(min(2000, len(all)-first)+1)]
				l.truncate(int64(len(all)))
			}
			for i := first; i < len(all); i++ {
				if *l.at(int64(i)) != all[i] {
					t.Fatalf("seed %d: element %d of %d to %d is %d, want %d", seed, i, first, len(all), *l.at(int64(i)), all[i])
				}
			}
			if l.end != int64(len(all)) || l.end-l.base > int64(len(all)-first)+chunkMask {
				t.Fatalf("seed %d: elements %d to %d, want %d to %d", seed, l.base, l.end, first, len(all))
			}
		}
	}
}
