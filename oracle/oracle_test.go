package oracle

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

const mib = 1 << 20

// script builds a trace from words: "a8" allocates the next id with 8 MiB,
// "f1" frees 1, "k1,2" is a launch of one second that touches 1 and 2, "r1"
// one that only reads 1, "i" begins an iteration, "e" ends the last.
func script(text string) *trace.Trace {
	tr := &trace.Trace{}
	add := func(e trace.Event) { tr.Events = append(tr.Events, e) }
	var allocs uint64
	marks := 0
	for _, word := range strings.Fields(text) {
		var n uint64
		fmt.Sscan(word[1:], &n)
		switch word[0] {
		case 'a':
			allocs++
			add(trace.Event{Kind: trace.KindAlloc, Alloc: allocs, Bytes: int64(n) * mib})
		case 'f':
			add(trace.Event{Kind: trace.KindFree, Alloc: n})
		case 'i':
			add(trace.Event{Kind: trace.KindMark, Name: fmt.Sprint("iter", marks)})
			marks++
		case 'e':
			add(trace.Event{Kind: trace.KindMark, Name: trace.MarkEnd})
		default:
			e := trace.Event{Kind: trace.KindLaunch, Duration: time.Second, Function: 7}
			for _, id := range strings.Split(word[1:], ",") {
				var alloc uint64
				fmt.Sscan(id, &alloc)
				access := trace.Access{Alloc: alloc}
				if word[0] == 'r' {
					access.Mode = trace.AccessRead
				}
				e.Accesses = append(e.Accesses, access)
			}
			add(e)
		}
	}
	return tr
}

// TestKnownOptimum holds schedules against optima worked out by hand, at
// 1 MiB a second each way and pieces of 1 MiB.
func TestKnownOptimum(t *testing.T) {
	for _, test := range []struct {
		name    string
		events  string
		budget  float64 // MiB
		change  func(*Options)
		seconds float64
		in, out int64 // MiB
	}{
		{"everything fits", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 16, nil, 2, 0, 0},
		// Each launch swaps 8 pieces; the copies in run one piece behind the copies out.
		{"two tensors, room for one", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 8, nil, 2 + 2*9, 16, 16},
		{"and one bus", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 8, func(o *Options) { o.DuplexBytesPerSecond = 0 }, 2 + 2*16, 16, 16},
		// A piece out alone at 2 MiB a second, then 7 pieces both ways at 1, then a piece in alone.
		{"directions that slow each other", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 8, func(o *Options) { o.H2DBytesPerSecond, o.D2HBytesPerSecond = 2*mib, 2*mib }, 2 + 2*8, 16, 16},
		// Half of the duplex rate is below what taking turns reaches.
		{"better in turn", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 8, func(o *Options) { o.H2DBytesPerSecond, o.D2HBytesPerSecond = 4*mib, 4*mib }, 2 + 2*4, 16, 16},
		{"and free eviction", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 8, func(o *Options) { o.D2HBytesPerSecond, o.DuplexBytesPerSecond = math.Inf(1), math.Inf(1) }, 2 + 2*8, 16, 16},
		// Half of each can stay, or three quarters of one: what crosses is 4 MiB either way.
		{"room for one and a half", "a8 a8 i k1 k2 i k1 k2 i k1 k2 e", 12, nil, 2 + 2*5, 8, 8},
		// Once both are on the host, they are only dropped.
		{"read only", "a8 a8 k1 k2 i r1 r2 i r1 r2 i r1 r2 e", 8, nil, 2 + 2*8, 16, 0},
		// A gap that ends in a free needs no copy in, and what is freed no copy at all.
		{"dead memory", "a8 i a8 k2 f2 a8 k3 f3 k1 i a8 k4 f4 a8 k5 f5 k1 i a8 k6 f6 a8 k7 f7 k1 e", 16, nil, 3, 0, 0},
		// One piece of 1 and one of 2 take turns while launches on 3 run.
		{"hidden", strings.Replace("a2 a2 a4 k1 I I I e", "I", "i k1 k3 k3 k3 k2,3 k3 k3 k3", -1), 7, nil, 8, 2, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := Options{
				BudgetBytes: int64(test.budget * mib), H2DBytesPerSecond: mib, D2HBytesPerSecond: mib, DuplexBytesPerSecond: 2 * mib, PieceBytes: mib, Timeline: true,
			}
			if test.change != nil {
				test.change(&o)
			}
			r, err := auditAll(t, script(test.events), o)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(r.IterationSeconds-test.seconds) > 1e-9 || r.H2DBytes != test.in*mib || r.D2HBytes != test.out*mib {
				t.Errorf("%g s, %g MiB in, %g MiB out; the optimum is %g s, %d in, %d out (plan %s)", r.IterationSeconds,
					float64(r.H2DBytes)/mib, float64(r.D2HBytes)/mib, test.seconds, test.in, test.out, r.Plan)
			}
			if len(r.Timeline) == 0 || r.Timeline[len(r.Timeline)-1].Seconds != r.IterationSeconds {
				t.Errorf("the timeline of %d samples does not end with the iteration", len(r.Timeline))
			}
		})
	}
}

func TestErrors(t *testing.T) {
	good := Options{BudgetBytes: 8 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib}
	for _, test := range []struct {
		name, events string
		o            Options
		want         string
	}{
		{"no budget", "i k1 e", Options{H2DBytesPerSecond: 1, D2HBytesPerSecond: 1}, "budget of 0 bytes"},
		{"no rate", "i k1 e", Options{BudgetBytes: 1, D2HBytesPerSecond: 1}, "to the device"},
		{"no rate back", "i k1 e", Options{BudgetBytes: 1, H2DBytesPerSecond: 1, D2HBytesPerSecond: math.NaN()}, "to the host"},
		{"negative both ways", "i k1 e", Options{BudgetBytes: 1, H2DBytesPerSecond: 1, D2HBytesPerSecond: 1, DuplexBytesPerSecond: -1}, "both ways"},
		{"negative piece", "i k1 e", Options{BudgetBytes: 1, H2DBytesPerSecond: 1, D2HBytesPerSecond: 1, PieceBytes: -1}, "piece of -1"},
		{"no iteration", "a1 k1", good, "no full iteration"},
		{"unfinished iteration", "a1 i k1", good, "no full iteration"},
		{"empty iteration", "a1 k1 i e", good, "no launches"},
		{"freed twice", "a1 i k1 f1 f1 e", good, "frees 1, which is not alive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Run(script(test.events), test.o); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, test.want)
			}
		})
	}
}

func TestBudgetError(t *testing.T) {
	for name, events := range map[string]string{
		"together":       "a6 a6 i k1 k1,2 e",
		"one allocation": "a12 i k1 e",
	} {
		t.Run(name, func(t *testing.T) {
			tr := script(events)
			tr.Events = append([]trace.Event{{Kind: trace.KindFunction, Function: 7, Name: "gemm"}}, tr.Events...)
			_, err := Run(tr, Options{BudgetBytes: 8 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib})
			var budget *BudgetError
			if !errors.As(err, &budget) {
				t.Fatalf("error %v, want a BudgetError", err)
			}
			if budget.Kernel != "kernel gemm" || budget.NeedBytes != 12*mib || budget.BudgetBytes != 8*mib {
				t.Errorf("%+v", *budget)
			}
		})
	}
}

// TestPinned checks that what never moves takes its part of the budget.
func TestPinned(t *testing.T) {
	// 3 is touched by nothing: it might be a workspace, and it stays.
	tr := script("a8 a8 a4 i k1 k2 i k1 k2 e")
	o := Options{BudgetBytes: 20 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib, PieceBytes: mib, DuplexBytesPerSecond: 2 * mib}
	if r, err := auditAll(t, tr, o); err != nil || r.H2DBytes != 0 {
		t.Errorf("with room for all: %+v, %v", r, err)
	}
	o.BudgetBytes = 12 * mib
	if r, err := auditAll(t, tr, o); err != nil || r.H2DBytes != 16*mib {
		t.Errorf("with room for one: %+v, %v", r, err)
	}
}

func TestBlocksRoundUp(t *testing.T) {
	// 3 MiB take two blocks of 2 MiB: two of them do not fit in 7 MiB.
	tr := script("a3 a3 i k1 k2 i k1 k2 e")
	o := Options{BudgetBytes: 7 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib, PieceBytes: mib, DuplexBytesPerSecond: 2 * mib}
	if r, err := auditAll(t, tr, o); err != nil || r.H2DBytes != 0 {
		t.Errorf("exact: %+v, %v", r, err)
	}
	o.BlockBytes = 2 * mib
	if r, err := auditAll(t, tr, o); err != nil || r.H2DBytes == 0 {
		t.Errorf("blocks of 2 MiB: %+v, %v", r, err)
	}
}

// TestRepeat: the last iteration must not profit from the end of the trace.
func TestRepeat(t *testing.T) {
	// 1 (state) is used once an iteration, 2… (activations) are born and die in it.
	iteration := func(i int) string { return fmt.Sprintf("i a8 k%d k%d f%d k1 ", i, i, i) }
	tr := script("a8 " + iteration(2) + iteration(3) + iteration(4) + "e")
	o := Options{BudgetBytes: 8 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib, PieceBytes: mib, DuplexBytesPerSecond: 2 * mib}
	steady, err := auditAll(t, tr, o)
	if err != nil {
		t.Fatal(err)
	}
	if !steady.Repeats || steady.H2DBytes != 8*mib || steady.D2HBytes != 8*mib {
		t.Errorf("steady state: %+v", steady)
	}
	// The gradients of one iteration die in the next: the repetition knows its counterparts.
	tr = script("i a8 k1 i f1 a8 k2 i f2 a8 k3 e")
	if r, err := auditAll(t, tr, o); err != nil || !r.Repeats || r.H2DBytes+r.D2HBytes != 0 {
		t.Errorf("handed over: %+v, %v", r, err)
	}
	// Iterations that do not allocate alike are not repeated.
	tr = script("i a8 k1 f1 i a4 k2 f2 e")
	if r, err := auditAll(t, tr, o); err != nil || r.Repeats {
		t.Errorf("unlike iterations: %+v, %v", r, err)
	}
}

// TestLaunchCost: a launch starts when the job has come to it, and a copy to the host is waited for.
func TestLaunchCost(t *testing.T) {
	const steps = "a1 k1 i k1 k1 k1 k1 i k1 k1 k1 k1 e" // a second each on the device
	for _, test := range []struct {
		name   string
		cost   time.Duration
		copies bool // the last of each four is a copy to the host
		want   float64
	}{
		{"none", 0, false, 4},
		{"hidden", time.Second / 2, false, 4},
		{"twice the device's", 2 * time.Second, false, 8},
		{"waited for", time.Second / 2, true, 4.5},
		{"twice the device's and waited for", 2 * time.Second, true, 9},
	} {
		tr := script(steps)
		for i, n := 0, 0; test.copies && i < len(tr.Events); i++ {
			if e := &tr.Events[i]; e.Kind == trace.KindLaunch {
				if n%4 == 0 { // the last before a mark
					e.Kind, e.Copy = trace.KindCopy, trace.CopyDeviceToHost
				}
				n++
			}
		}
		r, err := auditAll(t, tr, Options{BudgetBytes: 8 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib, LaunchCost: test.cost})
		if err != nil || math.Abs(r.IterationSeconds-test.want) > 1e-9 || r.ComputeSeconds != 4 {
			t.Errorf("%s: %g s, %g of them computing, want %g and 4: %v", test.name, r.IterationSeconds, r.ComputeSeconds, test.want, err)
		}
	}
}

// TestPatience: without time for all plans there is the best of those that were tried.
func TestPatience(t *testing.T) {
	tr := script("a8 a8 a8 i k1 k2 k3 i k1 k2 k3 i k1 k2 k3 e")
	o := Options{BudgetBytes: 16 * mib, H2DBytesPerSecond: mib, D2HBytesPerSecond: mib, DuplexBytesPerSecond: math.Inf(1), PieceBytes: mib}
	all, err := Run(tr, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Patience = 1
	some, err := Run(tr, o)
	if err != nil || some.IterationSeconds < all.IterationSeconds || some.Plan == "" {
		t.Errorf("%+v, %v; with all plans %+v", some, err, all)
	}
}

func TestSlack(t *testing.T) {
	free := []int64{5, 9, 3, 7, 8}
	s := newSlack(free)
	naive := append([]int64{}, free...)
	for _, take := range []struct {
		from, to int
		bytes    int64
	}{{0, 5, 1}, {1, 2, 4}, {2, 4, 2}, {3, 3, 99}, {4, 5, 7}} {
		s.take(take.from, take.to, take.bytes)
		for i := take.from; i < take.to; i++ {
			naive[i] -= take.bytes
		}
		for from := range free {
			for to := from + 1; to <= len(free); to++ {
				least := naive[from]
				for _, n := range naive[from:to] {
					least = min(least, n)
				}
				if got := s.min(from, to); got != least {
					t.Fatalf("after %+v: least of [%d, %d) is %d, want %d", take, from, to, got, least)
				}
			}
		}
	}
}

// TestFollowed: what Followed makes has the bound that Run finds by itself.
func TestFollowed(t *testing.T) {
	tr, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{BudgetBytes: tr.PeakLiveBytes() / 2, H2DBytesPerSecond: 46e9, D2HBytesPerSecond: 46e9, Quick: true}
	want, err := Run(tr, o)
	if err != nil {
		t.Fatal(err)
	}
	followed, ok := Followed(tr)
	if err := followed.Validate(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	o.NoRepeat = true
	got, err := Run(followed, o)
	if got.Repeats, got.PeakLiveBytes = want.Repeats, want.PeakLiveBytes; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	o.Quick = false
	if all, err := Run(followed, o); err != nil || all.IterationSeconds > got.IterationSeconds {
		t.Errorf("all plans find %g s, one %g, %v", all.IterationSeconds, got.IterationSeconds, err)
	}
	if same, ok := Followed(&trace.Trace{Events: tr.Events[:10]}); ok || len(same.Events) != 10 {
		t.Error("a trace without iterations is followed by one")
	}
}
