package correlate

import (
	"math/rand/v2"
	"testing"
)

// TestSizesAreLookedUp: what was looked up is not what is answered once something else has been learnt, for sizes of one place of the
// small table either.
func TestSizesAreLookedUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s, want := sizeMap{varies: true}, map[int64]int64{}
	for range 20_000 {
		past := 512 * (1 + rng.Int64N(4*newestLooked))
		if rng.IntN(8) == 0 {
			now := 512 * (1 + rng.Int64N(1000))
			s.learn(past, now, 0)
			s.varies, want[past] = true, now
		}
		expected, known := want[past]
		if !known {
			expected = past
		}
		if got := s.of(past); got != expected {
			t.Fatalf("%d bytes are expected to be %d, not %d", past, got, expected)
		}
	}
	if s.varies = false; s.of(512) != 512 {
		t.Error("what does not change is expected to")
	}
}

// TestUseAfter: the use that was found last is not answered when it is not the first after a position, whichever way that went.
func TestUseAfter(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	in := &instance{}
	for position := range int64(3000) {
		if rng.IntN(3) == 0 {
			in.uses = append(in.uses, position)
		}
		if len(in.uses) > 200 { // the oldest are forgotten
			in.uses = append(in.uses[:0], in.uses[rng.IntN(150):]...)
		}
		at := position - rng.Int64N(100)
		if rng.IntN(20) == 0 {
			at = rng.Int64N(position + 10)
		}
		if got, want := in.after(at), indexAfter(in.uses, at); got != want {
			t.Fatalf("use %d of %d is the first after %d, not %d", got, len(in.uses), at, want)
		}
	}
}
