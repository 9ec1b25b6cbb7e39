package correlate

import (
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// tape drives a History with a made-up training iteration.
type tape struct {
	h    *History
	live map[int]InstanceID
}

func newTape(c HistoryConfig) *tape { return &tape{NewHistory(c), map[int]InstanceID{}} }

// iteration allocates, uses and frees n tensors in a pipeline over n operations,
// around one weight an operation; skip and extra change it.
func (p *tape) iteration(n int, skip, extra func(op int) bool, size func(op int) int64) {
	weight := func(i int) InstanceID {
		if _, ok := p.live[-1-i]; !ok {
			p.live[-1-i] = p.h.Alloc(8)
		}
		return p.live[-1-i]
	}
	for i := range n {
		p.live[i] = p.h.Alloc(size(i))
		touched := []InstanceID{p.live[i], weight(i)}
		if i > 0 {
			touched = append(touched, p.live[i-1])
		}
		if extra(i) {
			p.h.Observe(1<<40+uint64(i), nil)
		}
		if !skip(i) {
			p.h.Observe(uint64(1000+i), touched)
		}
		if i > 1 {
			p.h.Free(p.live[i-2])
		}
	}
	for i := max(0, n-2); i < n; i++ {
		p.h.Free(p.live[i])
	}
}

func never(int) bool          { return false }
func at(k int) func(int) bool { return func(i int) bool { return i == k } }
func sizes(n int64) func(int) int64 {
	return func(int) int64 { return n }
}

func (p *tape) predicted(run func()) (ops, predicted int64) {
	before := p.h.Stats()
	run()
	after := p.h.Stats()
	return after.Ops - before.Ops, after.Predicted - before.Predicted
}

func TestPeriodicWorkIsPredicted(t *testing.T) {
	p := newTape(HistoryConfig{})
	for range 2 {
		p.iteration(50, never, never, sizes(4))
	}
	for range 3 {
		ops, predicted := p.predicted(func() { p.iteration(50, never, never, sizes(4)) })
		if ops != 50 || predicted < 49 {
			t.Errorf("%d of %d operations predicted", predicted, ops)
		}
	}
	if s := p.h.Stats(); s.Period != 50 {
		t.Errorf("period %d", s.Period)
	}
	// A weight is used again after an iteration, a tensor that was just used dies.
	if got, want := p.h.NextUse(p.live[-1]), p.h.Now(); got != want {
		t.Errorf("the first weight is used next at %d, want %d", got, want)
	}
	if got, want := p.h.NextUse(p.live[-1-49]), p.h.Now()+49; got != want {
		t.Errorf("the last weight is used next at %d, want %d", got, want)
	}
	var fresh, freed int64
	p.h.Future(func(_, a, b int64) bool { fresh += a; freed += b; return true })
	if fresh != 50*4 || freed < 47*4 { // the last three frees came after the last operation
		t.Errorf("%d bytes to be allocated and %d freed in an iteration", fresh, freed)
	}
	var births int
	p.h.Turns(p.h.Now()+9, func(_, _, _ int64, death bool) {
		if !death {
			births++
		}
	})
	if births != 10 {
		t.Errorf("%d allocations before the next 10 operations", births)
	}
}

func TestDeathIsPredicted(t *testing.T) {
	p := newTape(HistoryConfig{})
	for range 3 {
		p.iteration(40, never, never, sizes(4))
	}
	id := p.h.Alloc(4)
	w := p.live[-1]
	if got := p.h.NextUse(id); got != p.h.Now() {
		t.Errorf("fresh memory is used next at %d, now is %d", got, p.h.Now())
	}
	p.h.Observe(1000, []InstanceID{id, w})
	if got, want := p.h.Death(id), p.h.Now()+2; got != want {
		t.Errorf("it dies before %d, want %d", got, want)
	}
	if got := p.h.Death(w); got != Never {
		t.Errorf("the weight dies at %d", got)
	}
}

// TestRest: an iteration uses a weight at its operations 10, 14 and 200 of 300, another at 299,
// a tensor at 20 and 150 before it dies.
func TestRest(t *testing.T) {
	h := NewHistory(HistoryConfig{})
	weight, last := h.Alloc(8), h.Alloc(8)
	var tensor InstanceID
	iteration := func(from, to int) {
		for op := from; op < to; op++ {
			var touched []InstanceID
			switch op {
			case 10, 14, 200:
				touched = append(touched, weight)
			case 20:
				tensor = h.Alloc(4)
				touched = append(touched, tensor)
			case 150:
				touched = append(touched, tensor)
			case 299:
				touched = append(touched, last)
			}
			h.Observe(uint64(1000+op), touched)
			if op == 160 {
				h.Free(tensor)
			}
		}
	}
	if _, _, ok := h.Rest(weight, 50); ok {
		t.Error("something is known at first")
	}
	for range 3 {
		iteration(0, 300)
	}
	check := func(what string, id InstanceID, operations, from, next int64, known bool) {
		t.Helper()
		gotFrom, gotNext, ok := h.Rest(id, operations)
		if ok != known || ok && (gotFrom != from || gotNext != next) {
			t.Errorf("%s: from %d until %d (%t), want from %d until %d (%t)", what, gotFrom, gotNext, ok, from, next, known)
		}
	}
	start := h.Now()
	check("after uses close together", weight, 50, start+15, start+200, true)
	check("after the first use", weight, 3, start+11, start+14, true)
	check("after all of them", weight, 250, start+201, start+310, true)
	check("after the last operation", last, 50, start+300, start+599, true)
	iteration(0, 15)
	check("when they have been, of the one that follows", weight, 50, start+201, start+310, true)
	iteration(15, 21)
	check("before it is used again", tensor, 50, 0, 0, false) // and then it dies
	iteration(21, 201)
	check("in the iteration after", weight, 50, start+315, start+500, true)
}

func TestDisturbances(t *testing.T) {
	for _, test := range []struct {
		name        string
		skip, extra func(int) bool
		size        func(int) int64
		least       int64 // predicted of the disturbed iteration
	}{
		{"one inserted", never, at(20), sizes(4), 45},
		{"one omitted", at(20), never, sizes(4), 40},
		{"one in place of another", at(20), at(20), sizes(4), 45},
		{"many inserted", never, func(i int) bool { return i > 20 && i < 26 }, sizes(4), 20},
		{"another size", never, never, sizes(6), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newTape(HistoryConfig{})
			for range 3 {
				p.iteration(50, never, never, sizes(4))
			}
			ops, predicted := p.predicted(func() { p.iteration(50, test.skip, test.extra, test.size) })
			if predicted < test.least || predicted > ops {
				t.Errorf("%d of %d operations predicted, want at least %d", predicted, ops, test.least)
			}
			// It is back in step in the iteration after the next.
			p.iteration(50, never, never, test.size)
			if ops, predicted := p.predicted(func() { p.iteration(50, never, never, test.size) }); predicted < 45 {
				t.Errorf("afterwards only %d of %d", predicted, ops)
			}
		})
	}
}

func TestNothingIsKnownAtFirst(t *testing.T) {
	h := NewHistory(HistoryConfig{})
	id := h.Alloc(1)
	if h.Locked() || h.NextUse(id) != Unknown || h.Death(id) != Unknown {
		t.Errorf("locked %t, next use %d, death %d", h.Locked(), h.NextUse(id), h.Death(id))
	}
	h.Future(func(int64, int64, int64) bool { t.Error("a future without a past"); return false })
	h.Free(id)
	h.Free(id) // twice is harmless
	if s := h.Stats(); s.Predicted != 0 || s.Period != 0 {
		t.Errorf("%+v", s)
	}
}

func TestHistoryMemoryIsBounded(t *testing.T) {
	p := newTape(HistoryConfig{MaxOps: 2000, MaxIndex: 500})
	var most int64
	for i := range 200 {
		p.iteration(100, never, never, sizes(4))
		s := p.h.Stats()
		if i == 60 {
			most = s.Bytes
		}
		if i > 60 && s.Bytes > 2*most {
			t.Fatalf("%d bytes after %d iterations, %d after 60", s.Bytes, i, most)
		}
		if s.InstancesLive > 100+2*2000+200 {
			t.Fatalf("%d lives remembered", s.InstancesLive)
		}
	}
	if ops, predicted := p.predicted(func() { p.iteration(100, never, never, sizes(4)) }); predicted < 95 {
		t.Errorf("%d of %d predicted after forgetting", predicted, ops)
	}
}

// FuzzHistory checks that predictions stay within what they may be, whatever comes.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, uint8(3))
	f.Add([]byte("the same again the same again the same again"), uint8(7))
	f.Fuzz(func(t *testing.T, script []byte, alphabet uint8) {
		h := NewHistory(HistoryConfig{MaxOps: 1024, MaxIndex: 64})
		rng := rand.New(rand.NewSource(int64(alphabet)))
		var live []InstanceID
		for _, b := range script {
			for range 1 + int(b)%3 {
				if len(live) < 40 {
					live = append(live, h.Alloc(int64(b%5)+1))
				}
			}
			var touched []InstanceID
			if len(live) > 0 {
				touched = append(touched, live[int(b)%len(live)])
			}
			h.Observe(uint64(b%(alphabet%16+1)), touched)
			if len(live) > 20 {
				k := rng.Intn(len(live))
				h.Free(live[k])
				live = append(live[:k], live[k+1:]...)
			}
			for _, id := range live {
				if n := h.NextUse(id); n < h.Now() {
					t.Fatalf("next use at %d, now is %d", n, h.Now())
				}
				if d := h.Death(id); d < h.Now() {
					t.Fatalf("death at %d, now is %d", d, h.Now())
				}
			}
			last := h.Now() - 1
			h.Future(func(position, fresh, freed int64) bool {
				if position != last+1 || fresh < 0 || freed < 0 {
					t.Fatalf("position %d after %d, %d bytes allocated, %d freed", position, last, fresh, freed)
				}
				last = position
				return true
			})
		}
		if s := h.Stats(); s.Predicted > s.Ops {
			t.Fatalf("%+v", s)
		}
	})
}

func TestAUseFoundOutLaterIsPredicted(t *testing.T) {
	h := NewHistory(HistoryConfig{})
	named, found := h.Alloc(8), h.Alloc(8)
	const ops = 20
	for i := range 2 * ops {
		h.Observe(uint64(i%ops), []InstanceID{named})
		if i%ops == 7 {
			h.Observe(100, nil) // reported, then another, then the first's memory is searched
			h.Touch(found, h.Now()-2)
			h.Touch(found, h.Now()-2)
		}
	}
	if uses := h.instance(found).uses; len(uses) != 2 || uses[1]-uses[0] != ops+1 {
		t.Fatalf("uses at %v", uses)
	}
	if next := h.NextUse(found); next != h.Now()+7 {
		t.Fatalf("next use at %d, expected %d", next, h.Now()+7)
	}
}

// TestNoOperations: allocations are forgotten, too, where no operation is ever observed.
func TestNoOperations(t *testing.T) {
	h := NewHistory(HistoryConfig{MaxOps: minLogOps})
	kept := h.Alloc(1 << 20)
	for range 100 * minLogOps {
		h.Free(h.Alloc(2 << 20))
	}
	if n, most := h.turns.end-h.newTurns, int64(2*minLogOps); n > most || h.Stats().InstancesLive > most || int64(len(h.dead)) > most || h.instances.end > most {
		t.Errorf("%d turns, %d instances of %d made, %d dead", n, h.Stats().InstancesLive, h.instances.end, len(h.dead))
	}
	h.Observe(7, []InstanceID{kept})
	if in := h.instance(kept); !in.live || len(in.uses) != 1 {
		t.Errorf("the one that lives is %+v", in)
	}
}

// TestForetell: what takes the place of several allocations of the past is used when one of them was, and dies with the
// last of them; and it is known by itself an iteration later.
func TestForetell(t *testing.T) {
	const ops = 20
	uses := [][]int{{3, 7}, {5, 7, 15}}
	h := NewHistory(HistoryConfig{})
	var first int64 // position of the iteration's first operation
	var past []Ref
	apart := func() {
		var a [2]InstanceID
		for op := range ops {
			switch op {
			case 2:
				a = [2]InstanceID{h.Alloc(8), h.Alloc(16)}
				past = []Ref{h.Ref(a[0]), h.Ref(a[1])}
			case 12:
				h.Free(a[0])
			case 18:
				h.Free(a[1])
			}
			var touched []InstanceID
			for k := range a {
				if slices.Contains(uses[k], op) {
					touched = append(touched, a[k])
				}
			}
			h.Observe(uint64(100+op), touched)
		}
	}
	together := func(foretell bool) {
		before := first
		first = h.Now()
		var c InstanceID
		for op := range ops {
			switch op {
			case 2:
				c = h.Alloc(24)
				if foretell {
					h.Foretell(c, past, before+2, before+18)
				}
			case 18:
				h.Free(c)
			}
			var touched []InstanceID
			if slices.Contains(uses[0], op) || slices.Contains(uses[1], op) {
				touched = []InstanceID{c}
			}
			if 2 <= op && op < 18 {
				next := Never
				for _, use := range []int64{15, 7, 5, 3} {
					if use >= int64(op) {
						next = first + use
					}
				}
				if got := h.NextUse(c); got != next {
					t.Errorf("foretold %v, before operation %d: next used at %d, want %d", foretell, op, got-first, next-first)
				}
				if got := h.Death(c); got != first+18 {
					t.Errorf("foretold %v, before operation %d: dies at %d, want 18", foretell, op, got-first)
				}
			}
			h.Observe(uint64(100+op), touched)
		}
	}
	apart()
	first = h.Now()
	apart()
	together(true)
	events, from := h.Events(0)
	live := map[uint64]bool{}
	for _, e := range events {
		switch e.Kind {
		case trace.KindAlloc, trace.KindFree:
			live[e.Alloc] = e.Kind == trace.KindAlloc
		}
		for _, a := range e.Accesses {
			if !live[a.Alloc] {
				t.Errorf("operation %d is remembered to touch what was not alive", from)
			}
		}
		if e.Kind == trace.KindLaunch {
			from++
		}
	}
	together(false)
	h.Foretell(h.Alloc(24), past, 2, 18) // of no use where nothing is known to follow
	h.Foretell(h.Alloc(24), []Ref{{id: past[0].id, gen: past[0].gen + 1}}, 2, 18)
}

// BenchmarkHistory: an iteration of 6000 operations, each on an allocation of its own and one of 1000 that stay.
// worst-us is the longest time for one of them: launches may wait for it.
func BenchmarkHistory(b *testing.B) {
	h := NewHistory(HistoryConfig{})
	weights := make([]InstanceID, 1000)
	for i := range weights {
		weights[i] = h.Alloc(1 << 20)
	}
	var worst time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for i := range 6000 {
			began := time.Now()
			a := h.Alloc(1 << 20)
			h.Observe(uint64(i), []InstanceID{a, weights[i%len(weights)]})
			h.Free(a)
			worst = max(worst, time.Since(began))
		}
	}
	b.ReportMetric(float64(worst.Microseconds()), "worst-us")
}
