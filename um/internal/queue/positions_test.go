package queue

import (
	"math/rand"
	"slices"
	"testing"
)

func TestPositions(t *testing.T) {
	for seed := range int64(50) {
		rng := rand.New(rand.NewSource(seed))
		var p Positions
		var want []int64
		next := int64(0)
		for range 3000 {
			switch k := rng.Intn(8); {
			case k < 4:
				next += 1 + rng.Int63n(3)
				p.Add(next)
				want = append(want, next)
			case k == 4 && next > 3: // an older operation turns out to name it as well
				x := rng.Int63n(next)
				if i, there := slices.BinarySearch(want, x); !there {
					p.Add(x)
					want = slices.Insert(want, i, x)
				}
			case k == 5 && len(want) > 0:
				i := rng.Intn(len(want))
				p.Remove(want[i])
				want = slices.Delete(want, i, i+1)
			case k == 6:
				p.Remove(next + 1) // which is not there
			default:
				for range rng.Intn(6) {
					if len(want) > 0 {
						p.Remove(want[0])
						want = want[1:]
					}
				}
			}
			if !slices.Equal(p.All(), want) || p.Len() != len(want) {
				t.Fatalf("seed %d: %v, want %v", seed, p.All(), want)
			}
			if len(want) > 0 && (p.First() != want[0] || p.Last() != want[len(want)-1]) {
				t.Fatalf("seed %d: from %d to %d, want %v", seed, p.First(), p.Last(), want)
			}
		}
	}
}

// BenchmarkPositions: one comes and one goes, while many are there.
func BenchmarkPositions(b *testing.B) {
	var p Positions
	for i := range int64(60000) {
		p.Add(i)
	}
	b.ReportAllocs()
	for i := int64(60000); b.Loop(); i++ {
		p.Add(i)
		p.Remove(p.First())
	}
}
