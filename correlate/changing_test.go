package correlate

import (
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// grown is a size for each operation that differs from iteration to iteration, but for every third.
func grown(iteration int64) func(int) int64 {
	return func(op int) int64 {
		if op%3 == 0 {
			return 8
		}
		return int64(10+op%5) * (1 + iteration)
	}
}

// TestSizesChange: where sizes change from one iteration to the next, lives are recognised by their places, and how large
// what is to come will be is known once the first of a size has been seen.
func TestSizesChange(t *testing.T) {
	const n = 60
	p := newTape(HistoryConfig{})
	for range 3 {
		p.iteration(n, never, never, sizes(4))
	}
	if p.h.Varies() {
		t.Error("sizes change where none does")
	}
	for i := range int64(4) {
		p.iteration(n, never, never, grown(i))
	}
	if !p.h.Varies() {
		t.Error("sizes do not change")
	}
	ops, predicted := p.predicted(func() { p.iteration(n, never, never, grown(4)) })
	if ops != n || predicted < n-2 {
		t.Errorf("%d of %d operations predicted", predicted, ops)
	}
	// Half of another iteration: each size has been seen, and the other half is known.
	half := func(op int) bool { return op >= n/2 }
	foretold := map[int64]int64{}
	p.h.Observe(1, nil)
	for i := range n {
		if half(i) {
			break
		}
		p.live[i] = p.h.Alloc(grown(5)(i))
		touched := []InstanceID{p.live[i], p.live[-1-i]}
		if i > 0 {
			touched = append(touched, p.live[i-1])
		}
		p.h.Observe(uint64(1000+i), touched)
		if i > 1 {
			p.h.Free(p.live[i-2])
		}
	}
	now := p.h.Now()
	p.h.Turns(now+n/2-1, func(position, bytes, _ int64, death bool) {
		if !death {
			foretold[position-now+n/2] = bytes
		}
	})
	for i := int64(n / 2); i < n; i++ {
		if want := grown(5)(int(i)); foretold[i] != want {
			t.Errorf("operation %d: %d bytes foretold, want %d", i, foretold[i], want)
		}
	}
	if got := p.h.Lasts(grown(5)(n / 2)); got != 3 {
		t.Errorf("the next is to live for %d operations, want 3", got)
	}
	var fresh, freed int64
	p.h.Future(func(position, f, d int64) bool {
		fresh, freed = fresh+f, freed+d
		return position < now+n/2-1
	})
	var want int64
	for i := n / 2; i < n; i++ {
		want += grown(5)(i)
	}
	if fresh != want || freed < want/2 || freed > 2*want {
		t.Errorf("%d bytes are to be allocated and %d freed, want %d", fresh, freed, want)
	}
}

// TestAnotherKernel: an operation of another function that touches what the next one is to touch is that one, and one that has
// one more before it as well.
func TestAnotherKernel(t *testing.T) {
	const n = 60
	p := newTape(HistoryConfig{})
	for i := range int64(4) {
		p.iteration(n, never, never, grown(i))
	}
	before := p.h.Stats()
	for i := range n {
		p.live[i] = p.h.Alloc(grown(4)(i))
		touched := []InstanceID{p.live[i], p.live[-1-i]}
		if i > 0 {
			touched = append(touched, p.live[i-1])
		}
		function := uint64(1000 + i)
		if i%4 == 1 {
			function += 1 << 20
		}
		if i%8 == 5 {
			p.h.Observe(7, touched[:1])
		}
		p.h.Observe(function, touched)
		if i > 0 && i < n-1 {
			if next := p.h.NextUse(p.live[i]); next < p.h.Now() || next > p.h.Now()+1 {
				t.Errorf("operation %d: what it makes is used next in %d operations", i, next-p.h.Now())
			}
		}
		if i > 1 {
			p.h.Free(p.live[i-2])
		}
	}
	after := p.h.Stats()
	if after.Lost != before.Lost || after.Realignments > before.Realignments+1 {
		t.Errorf("lost %d times, %d times put elsewhere", after.Lost-before.Lost, after.Realignments-before.Realignments)
	}
}

// TestChangingRecordings: of jobs of which no two iterations are alike most operations are predicted, with all that they touch.
func TestChangingRecordings(t *testing.T) {
	const page = 2 << 20
	for name, least := range map[string]float64{"bert-buckets": 0.75, "bert-text": 0.7, "gpt2l-lengths": 0.75, "graph": 0.7, "resnet-sizes": 0.6, "speech": 0.7} {
		recording, err := trace.Load("../testdata/traces/changing/" + name + ".pstrace")
		if err != nil {
			t.Fatal(err)
		}
		if !recording.MarkDiffering() {
			t.Fatal(name)
		}
		judged, _ := recording.Judged()
		h, live := NewHistory(HistoryConfig{}), map[uint64]InstanceID{}
		var before HistoryStats
		for i, e := range recording.Events[:judged.End] {
			if i == judged.First {
				before = h.Stats()
			}
			switch e.Kind {
			case trace.KindAlloc:
				if e.Bytes >= page/2 {
					live[e.Alloc] = h.Alloc((e.Bytes + page - 1) / page * page)
				}
			case trace.KindFree:
				if id, ok := live[e.Alloc]; ok {
					h.Free(id)
					delete(live, e.Alloc)
				}
			case trace.KindLaunch, trace.KindCopy:
				var touched []InstanceID
				seen := map[uint64]bool{}
				for _, a := range e.Accesses {
					if id, ok := live[a.Alloc]; ok && !seen[a.Alloc] {
						seen[a.Alloc] = true
						touched = append(touched, id)
					}
				}
				h.Observe(uint64(e.Copy)<<40|uint64(e.Function)<<8|uint64(len(touched)), touched)
			}
		}
		after := h.Stats()
		if got := float64(after.Predicted-before.Predicted) / float64(after.Ops-before.Ops); got < least {
			t.Errorf("%s: %.1f %% of operations predicted, want %.0f", name, 100*got, 100*least)
		} else {
			t.Logf("%s: %.1f %%", name, 100*got)
		}
	}
}

// TestVariedFor: how long sizes have changed is told from when they began to, and begins anew.
func TestVariedFor(t *testing.T) {
	const n = 60
	p := newTape(HistoryConfig{})
	for range 3 {
		p.iteration(n, never, never, sizes(4))
	}
	if got := p.h.VariedFor(); got != 0 {
		t.Errorf("sizes have changed for %d operations, and never did", got)
	}
	for i := range int64(6) {
		p.iteration(n, never, never, grown(i))
	}
	first := p.h.VariedFor()
	p.iteration(n, never, never, grown(9))
	if got := p.h.VariedFor(); first < 2*n || first > 6*n || got != first+n {
		t.Errorf("sizes have changed for %d operations, and for %d an iteration of %d before", got, first, n)
	}
	for range 12 {
		p.iteration(n, never, never, sizes(4))
	}
	if got := p.h.VariedFor(); got != 0 {
		t.Errorf("sizes have changed for %d operations, and do not any more", got)
	}
}
