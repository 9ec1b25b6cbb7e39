package plan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/trace"
)

// job writes the events of a small training run.
type job struct {
	events []trace.Event
	next   uint64
	marks  bool
	left   []uint64
}

func (j *job) alloc(bytes int64) uint64 {
	j.next++
	j.events = append(j.events, trace.Event{Kind: trace.KindAlloc, Alloc: j.next, Bytes: bytes})
	return j.next
}

func (j *job) free(ids ...uint64) {
	for _, id := range ids {
		if id != 0 {
			j.events = append(j.events, trace.Event{Kind: trace.KindFree, Alloc: id})
		}
	}
}

func (j *job) mark(name string) {
	if j.marks {
		j.events = append(j.events, trace.Event{Kind: trace.KindMark, Name: name})
	}
}

// train is weights, then iterations of forward, backward and step. The optimizer's
// states come in iteration 0; the output of an iteration lives until the next one
// replaces it; extra is called in each iteration between forward and backward.
func (j *job) train(layers, iterations int, extra func(iteration int)) {
	var weights, states []uint64
	for i := range layers {
		weights = append(weights, j.alloc(1000*int64(i+1)), j.alloc(100))
	}
	j.free(j.alloc(12345)) // what initialization needs for a moment
	var output uint64
	for n := range iterations {
		j.mark(fmt.Sprint("iter", n))
		var activations, gradients []uint64
		for i := range layers {
			a := j.alloc(5000 + 700*int64(i))
			j.free(j.alloc(3000 + int64(i)))
			activations = append(activations, a)
		}
		newOutput := j.alloc(40000)
		j.free(output)
		output = newOutput
		if extra != nil {
			extra(n)
		}
		for i := layers - 1; i >= 0; i-- {
			gradients = append(gradients, j.alloc(1000*int64(i+1)))
			j.free(j.alloc(7000), activations[i])
		}
		for i := range layers {
			if n == 0 {
				states = append(states, j.alloc(1000*int64(i+1)))
			}
			j.free(j.alloc(2000))
		}
		j.free(gradients...)
	}
	j.mark(trace.MarkEnd)
	j.left = slices.Concat([]uint64{output}, states, weights)
}

// end frees what a run leaves.
func (j *job) end() { j.free(j.left...) }

func jobTrace(layers, iterations int) []trace.Event {
	j := job{marks: true}
	j.train(layers, iterations, nil)
	j.end()
	return j.events
}

func planOf(t testing.TB, events []trace.Event) *Plan {
	t.Helper()
	tr := &trace.Trace{Name: t.Name(), Events: events}
	if err := tr.Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := FromTrace(context.Background(), tr, Options{TimeLimit: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// follow plays events against a plan and fails where memory is given out twice.
// It returns how many calls, from the first on, were as the plan has them.
func follow(t testing.TB, p *Plan, events []trace.Event) (followed int) {
	t.Helper()
	type block struct{ offset, bytes int64 }
	live := map[uint64]block{}
	sequence := 0
	for _, e := range events {
		switch e.Kind {
		case trace.KindFree:
			delete(live, e.Alloc)
		case trace.KindAlloc:
			c, ok := p.Lookup(sequence)
			if !ok || c.Bytes != e.Bytes {
				return followed
			}
			sequence++
			followed++
			if c.Offset == Unplanned || c.Bytes == 0 {
				continue
			}
			b := block{c.Offset, RoundUp(c.Bytes)}
			if b.offset < 0 || b.offset+b.bytes > p.ArenaBytes || b.offset%AlignBytes != 0 {
				t.Fatalf("call %d: %d bytes at %d of %d", sequence-1, b.bytes, b.offset, p.ArenaBytes)
			}
			for id, o := range live {
				if b.offset < o.offset+o.bytes && o.offset < b.offset+b.bytes {
					t.Fatalf("call %d, %d bytes at %d, overlaps live allocation %d, %d bytes at %d", sequence-1, b.bytes, b.offset, id, o.bytes, o.offset)
				}
			}
			live[e.Alloc] = b
		}
	}
	return followed
}

func TestSteadyJob(t *testing.T) {
	for _, marks := range []bool{true, false} {
		j := job{marks: marks}
		j.train(7, 4, nil)
		j.end()
		p := planOf(t, j.events)
		if p.Iterations != 2 {
			t.Errorf("marks %v: %d iterations in a period, want 2: the output lives longer than one", marks, p.Iterations)
		}
		if p.UnplannedBytes != 0 || p.ArenaBytes > p.PeakLiveBytes+64*AlignBytes {
			t.Errorf("marks %v: arena %d of peak %d, %d unplanned", marks, p.ArenaBytes, p.PeakLiveBytes, p.UnplannedBytes)
		}
		// A much longer run of the same job follows the same plan to its end.
		long := job{marks: marks}
		long.train(7, 23, nil)
		allocs := 0
		for _, e := range long.events {
			if e.Kind == trace.KindAlloc {
				allocs++
			}
		}
		if n := follow(t, p, long.events); n != allocs {
			t.Errorf("marks %v: %d of %d calls followed", marks, n, allocs)
		}
	}
}

func TestGrowingListIsUnplanned(t *testing.T) {
	j := job{}
	j.train(5, 6, func(int) { j.alloc(777) }) // kept for ever, such as a list of losses
	p := planOf(t, j.events)
	unplanned := 0
	for _, c := range p.Period {
		if c.Offset == Unplanned {
			unplanned++
			if c.Bytes != 777 {
				t.Errorf("%d bytes have no place", c.Bytes)
			}
		}
	}
	if unplanned != p.Iterations || p.UnplannedBytes == 0 {
		t.Errorf("%d unplanned calls in %d iterations, %d bytes", unplanned, p.Iterations, p.UnplannedBytes)
	}
	long := job{}
	long.train(5, 17, func(int) { long.alloc(777) })
	if n := follow(t, p, long.events); n < 17*5 {
		t.Errorf("%d calls followed", n)
	}
}

// Iterations that differ a little, as with a mixture of experts, still have a
// period; what lives over its end keeps its place.
func TestAlikeIterations(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 20 {
		j := job{marks: true}
		j.train(8, 5, func(int) {
			for range 1 + r.IntN(3) {
				j.free(j.alloc(1 + r.Int64N(50000)))
			}
		})
		j.end()
		p := planOf(t, j.events)
		if len(p.Period) == 0 {
			t.Fatal("no period")
		}
		allocs := 0
		for _, e := range j.events {
			if e.Kind == trace.KindAlloc {
				allocs++
			}
		}
		if n := follow(t, p, j.events); n != allocs {
			t.Errorf("%d of %d calls followed", n, allocs)
		}
		if p.UnplannedBytes != 0 || float64(p.ArenaBytes) > 1.05*float64(p.PeakLiveBytes) {
			t.Errorf("arena %d of peak %d, %d unplanned", p.ArenaBytes, p.PeakLiveBytes, p.UnplannedBytes)
		}
	}
}

func TestMatch(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for range 500 {
		var calls []call
		list := func(n int) (all []int32) {
			for range n {
				all = append(all, int32(len(calls)))
				calls = append(calls, call{bytes: r.Int64N(4)})
			}
			return all
		}
		a, b := list(r.IntN(30)), list(r.IntN(30))
		run := &run{calls: calls}
		before, ok := run.match(a, b)
		// The longest common subsequence, plainly.
		most := make([][]int, len(a)+1)
		for i := range most {
			most[i] = make([]int, len(b)+1)
		}
		for i := range a {
			for k := range b {
				if most[i+1][k+1] = max(most[i][k+1], most[i+1][k]); calls[a[i]].bytes == calls[b[k]].bytes {
					most[i+1][k+1] = max(most[i+1][k+1], most[i][k]+1)
				}
			}
		}
		common := most[len(a)][len(b)]
		if fits := len(a)+len(b)-2*common <= (len(a)+len(b))/4; ok != fits {
			t.Fatalf("matched %v, but %d of %d and %d are common", ok, common, len(a), len(b))
		}
		last, paired := int32(-1), 0
		for k, i := range before {
			if i < 0 {
				continue
			}
			if i <= last || calls[a[i]].bytes != calls[b[k]].bytes {
				t.Fatalf("%v of %v and %v", before, a, b)
			}
			last = i
			paired++
		}
		if ok && paired != common {
			t.Fatalf("%d pairs, %d are common", paired, common)
		}
	}
}

func TestNothingRepeats(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var j job
	var live []uint64
	for range 500 {
		live = append(live, j.alloc(r.Int64N(1<<20)))
		if r.IntN(3) > 0 {
			k := r.IntN(len(live))
			j.free(live[k])
			live = slices.Delete(live, k, k+1)
		}
	}
	p := planOf(t, j.events)
	if len(p.Period) != 0 || len(p.Prologue) != 500 {
		t.Errorf("%d calls of start-up, %d of a period", len(p.Prologue), len(p.Period))
	}
	if n := follow(t, p, j.events); n != 500 {
		t.Errorf("%d calls followed", n)
	}
}

func TestFromRecent(t *testing.T) {
	var seen, whole job
	seen.train(6, 4, nil)
	whole.train(6, 9, nil)
	n := len(seen.events)
	p, ok, err := FromRecent(context.Background(), whole.events[:n], Options{})
	if err != nil || !ok {
		t.Fatalf("no plan: %v", err)
	}
	if len(p.Prologue) != 0 {
		t.Errorf("a prologue of %d calls", len(p.Prologue))
	}
	rest := whole.events[n:]
	allocs := 0
	for _, e := range rest {
		if e.Kind == trace.KindAlloc {
			allocs++
		}
	}
	if got := follow(t, p, rest); got != allocs {
		t.Errorf("%d of %d calls followed", got, allocs)
	}
	if _, ok, _ := FromRecent(context.Background(), seen.events[:40], Options{}); ok {
		t.Error("a plan from half an iteration")
	}
}

func TestFind(t *testing.T) {
	p := samplePlan(t)
	var s Signer
	for i := range len(p.Prologue) + 3*len(p.Period) {
		c, _ := p.Lookup(i)
		got := s.Call(c.Bytes)
		if i < len(p.Prologue) {
			continue
		}
		at := (i - len(p.Prologue)) % len(p.Period)
		if i >= len(p.Prologue)+SignatureCalls && !slices.Contains(p.Find(got), int32(at)) {
			t.Fatalf("call %d of the period is not found by its signature", at)
		}
	}
}

// Every launch log of a real run is planned within one percent of its peak, and
// can be followed.
func TestSharedLogs(t *testing.T) {
	short.Skip(t)
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "shared", "traces", "*.tsv.gz"))
	if len(files) == 0 {
		t.Skip("no shared launch logs on this machine")
	}
	for _, file := range files {
		// The race detector makes each ten times slower.
		if name := filepath.Base(file); raced.On && name != "gpt2m.tsv.gz" && name != "moe.tsv.gz" {
			continue
		}
		tr, err := trace.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		p := planOf(t, tr.Events)
		followed := follow(t, p, tr.Events)
		ratio := float64(p.ArenaBytes+p.UnplannedBytes) / float64(p.PeakLiveBytes)
		t.Logf("%s: %d + %d calls, %d iterations in a period, %d followed, planned over peak %.5f, %v",
			tr.Name, len(p.Prologue), len(p.Period), p.Iterations, followed, ratio, time.Since(begun))
		if p.PeakLiveBytes != tr.PeakLiveBytes() || ratio > 1.01 {
			t.Errorf("%s: %d planned, %d unplanned, peak %d of %d", tr.Name, p.ArenaBytes, p.UnplannedBytes, p.PeakLiveBytes, tr.PeakLiveBytes())
		}
		if want := len(p.Prologue) + len(p.Period)/p.Iterations*2; followed < want {
			t.Errorf("%s: %d calls followed, want at least %d", tr.Name, followed, want)
		}
	}
}
