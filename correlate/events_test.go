package correlate

import (
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// TestEvents: what the log remembers tells the same story as the calls that made it.
func TestEvents(t *testing.T) {
	p := newTape(HistoryConfig{MaxOps: minLogOps})
	for range 60 { // more than it remembers
		p.iteration(50, never, never, sizes(16))
	}
	p.h.Asked(p.live[-1], 5)
	for _, back := range []int64{0, 1, 120, 1 << 40} {
		events, from := p.h.Events(p.h.Now() - back)
		live := map[uint64]bool{}
		weights, ops, asked := 0, int64(0), 0
		for _, e := range events {
			switch e.Kind {
			case trace.KindAlloc:
				if live[e.Alloc] {
					t.Fatalf("%d is allocated twice", e.Alloc)
				}
				live[e.Alloc] = true
				switch e.Bytes {
				case 5:
					asked++
				case 8:
					weights++
				case 16:
				default:
					t.Fatalf("%d bytes", e.Bytes)
				}
			case trace.KindFree:
				if !live[e.Alloc] {
					t.Fatalf("%d is freed, and was not alive", e.Alloc)
				}
				delete(live, e.Alloc)
			case trace.KindLaunch:
				if want := 3; len(e.Accesses) != want && (from+ops)%50 != 0 {
					t.Fatalf("operation %d touches %d, want %d", from+ops, len(e.Accesses), want)
				}
				for _, a := range e.Accesses {
					if !live[a.Alloc] {
						t.Fatalf("operation %d touches what is not alive", from+ops)
					}
				}
				ops++
			}
		}
		if from+ops != p.h.Now() || ops < min(back, minLogOps/2) || back <= 120 && ops != back {
			t.Errorf("%d back: %d operations from %d on, now %d", back, ops, from, p.h.Now())
		}
		if asked != 1 || weights != 49 {
			t.Errorf("%d back: %d weights and %d of another size", back, weights, asked)
		}
	}
}
