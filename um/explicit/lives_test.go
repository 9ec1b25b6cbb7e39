package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/correlate"
)

// TestLivesAreRepeatedOnceMore: each life is repeated once, until the history goes back to where it was; one whose pack is gone may be
// packed anew, and one whose pack lives is not.
func TestLivesAreRepeatedOnceMore(t *testing.T) {
	var l lives
	early, gone, packed := l.begin(correlate.Ref{}, 1, 0, 5), l.begin(correlate.Ref{}, 2, 0, 10), l.begin(correlate.Ref{}, 3, 0, 10)
	dead, alive := &tensor{}, &tensor{}
	dead.Freed = true
	l.of(gone).home, l.of(packed).home = dead, alive
	for _, x := range []struct{ bytes, born, number int64 }{{1, 5, early}, {2, 10, gone}, {3, 10, packed}} {
		if got := l.like(x.bytes, 0, x.born); got != x.number {
			t.Errorf("the first of %d bytes repeats %d, want %d", x.bytes, got, x.number)
		}
		if got := l.like(x.bytes, 0, x.born); got != noLife {
			t.Errorf("the second of %d bytes repeats %d: each is repeated once", x.bytes, got)
		}
	}
	if first := l.again(10); first != gone {
		t.Errorf("the first of them is %d, want %d", first, gone)
	}
	if got := l.like(1, 0, 5); got != noLife {
		t.Errorf("one from before the place that the history went back to is repeated: %d", got)
	}
	if l.like(2, 0, 10) != gone || l.like(3, 0, 10) != packed {
		t.Error("they are not repeated once more")
	}
	if l.of(gone).home != nil || l.of(packed).home != alive {
		t.Error("one has a pack that is gone, or has lost the one that it has")
	}
}
