package evict

import (
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/correlate"
)

const pageBytes = 2 << 20 // the smallest chunk

func TestFarther(t *testing.T) {
	const mib = 1 << 20
	type victim struct{ next, chunk int64 }
	for _, test := range []struct {
		name        string
		first, then victim
	}{
		{"the larger of what is as far away", victim{1000, 32 * mib}, victim{1000, 2 * mib}},
		{"the larger, though it is nearer", victim{700, 32 * mib}, victim{2000, 2 * mib}},
		{"the smaller, when it is much farther away", victim{9000, 2 * mib}, victim{700, 32 * mib}},
		{"the farther of one size", victim{701, 8 * mib}, victim{699, 8 * mib}},
		{"what is not used again", victim{correlate.Never, 2 * mib}, victim{9000, 32 * mib}},
		{"what nothing is known of", victim{correlate.Unknown, 2 * mib}, victim{9000, 32 * mib}},
	} {
		if a, b := Farther(100, test.first.next, test.first.chunk), Farther(100, test.then.next, test.then.chunk); a <= b {
			t.Errorf("%s does not leave first: %d, %d", test.name, a, b)
		}
	}
	if at := Farther(100, 100, pageBytes); at != 100 {
		t.Errorf("what is used now is ordered at %d", at)
	}
}

// TestExhausted: once it is said that nothing can leave any more, nothing can.
func TestExhausted(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	said := 0
	for range 200_000 {
		now := rng.Int63n(1000)
		first := now + rng.Int63n(300)
		position := now - 10 + rng.Int63n(1500)
		if !Exhausted(now, first, position, pageBytes) {
			continue
		}
		said++
		next, chunk := now+rng.Int63n(3000), pageBytes*(1+rng.Int63n(20))
		if Farther(now, next, chunk) <= first && next > position {
			t.Fatalf("at %d, with the first ordered at %d: a chunk of %d bytes, used at %d, can leave for %d", now, first, chunk, next, position)
		}
	}
	if said < 10_000 {
		t.Fatalf("it was said %d times: the test tests little", said)
	}
	if Exhausted(0, correlate.Never, 1<<40, pageBytes) || Exhausted(0, correlate.Unknown, 1<<40, pageBytes) {
		t.Error("what is not used again cannot leave")
	}
}
