package rewrite

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/oracle"
	"github.com/penstock-gpu/penstock/prefetch/again"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

// shipped is the job of the log that comes with Penstock.
func shipped(t testing.TB) (*Job, int64) {
	t.Helper()
	tr, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	followed, ok := oracle.Followed(tr)
	if !ok {
		t.Fatal("the shipped log does not repeat")
	}
	j, err := NewJob(followed)
	if err != nil {
		t.Fatal(err)
	}
	return j, tr.PeakLiveBytes()
}

func options(budget int64) again.Options {
	return again.Options{BudgetBytes: budget, SmallBytes: 1 << 20, BusBytesPerSecond: 46e9, LaunchSeconds: 1e-6,
		Most: again.Matrix, KeepFreed: true, Reach: 1.5, Price: 0.1, Later: 1, Window: 0.15}
}

// TestPlansOfALog: the checker finds nothing wrong with any plan of a real job, which does repeat what it should.
func TestPlansOfALog(t *testing.T) {
	j, peak := shipped(t)
	if !j.Inferred {
		t.Error("a log without roles is not called inferred")
	}
	p := again.NewPlanner(j.Job)
	for _, ratio := range []float64{1.25, 2, 4}[:short.Of(3, 2)] {
		for _, most := range []again.Class{again.Plain, again.Matrix} {
			for _, keep := range []bool{false, true} {
				o := options(int64(float64(peak) / ratio))
				o.Most, o.KeepFreed = most, keep
				plan := p.Plan(o)
				if len(plan.Drops) == 0 {
					t.Fatalf("at %gx nothing is made again", ratio)
				}
				r, err := j.Rewrite(plan, 1e-6)
				if err != nil {
					t.Fatal(err)
				}
				if err := j.Check(r); err != nil {
					t.Fatalf("at %gx: %v", ratio, err)
				}
				issued := 0
				for i, e := range r.Trace.Events {
					if r.Issued[i] <= 0 { // Own or Back
						continue
					}
					issued++
					o := j.trace.Events[j.events[r.Issued[i]-1]]
					if d := e.Duration - max(0, o.Duration); d != 1000 || e.Function != o.Function {
						t.Fatalf("operation %d is issued again as %+v", r.Issued[i]-1, e)
					}
				}
				launches := 0
				for _, m := range plan.Makes {
					launches += len(m.Launches)
				}
				if issued != launches {
					t.Errorf("%d launches of the plan, %d in the trace", launches, issued)
				}
			}
		}
	}
}

// clone copies what mutations change.
func clone(p *again.Plan) *again.Plan {
	c := *p
	c.Drops, c.Keeps, c.Makes = slices.Clone(p.Drops), slices.Clone(p.Keeps), slices.Clone(p.Makes)
	for i := range c.Makes {
		c.Makes[i].Launches = slices.Clone(c.Makes[i].Launches)
		for n := range c.Makes[i].Launches {
			l := &c.Makes[i].Launches[n]
			l.Operands, l.Born, l.Gone = slices.Clone(l.Operands), slices.Clone(l.Born), slices.Clone(l.Gone)
		}
	}
	return &c
}

// TestBrokenPlans: whatever is broken in a plan is found.
func TestBrokenPlans(t *testing.T) {
	j, peak := shipped(t)
	plan := again.NewPlanner(j.Job).Plan(options(peak / 2))
	var r *rand.Rand // of each way to break it, so that the order of a map changes nothing
	// Each breaks a plan somewhere and says whether it could.
	for what, mutate := range map[string]func(p *again.Plan) bool{
		"nothing": func(*again.Plan) bool { return true },
		"a make is missing": func(p *again.Plan) bool {
			p.Makes = slices.Delete(p.Makes, 5, 6)
			return true
		},
		"a launch is missing": func(p *again.Plan) bool {
			m := &p.Makes[r.IntN(len(p.Makes))]
			n := r.IntN(len(m.Launches))
			l := m.Launches[n]
			m.Launches = slices.Delete(m.Launches, n, n+1)
			if n >= len(m.Launches) {
				return false
			}
			// The memory is taken and given back all the same: only the values are missing.
			m.Launches[n].Born = append(l.Born, m.Launches[n].Born...)
			m.Launches[n].Gone = append(l.Gone, m.Launches[n].Gone...)
			return true
		},
		"two launches are in the wrong order": func(p *again.Plan) bool {
			m := &p.Makes[r.IntN(len(p.Makes))]
			if len(m.Launches) < 2 {
				return false
			}
			n := r.IntN(len(m.Launches) - 1)
			a, b := m.Launches[n], m.Launches[n+1]
			depends := false
			for i, x := range j.Ops[b.Op].Operands {
				at := slices.Index(a.Operands, b.Operands[i])
				depends = depends || x.Reads && at >= 0 && j.Ops[a.Op].Operands[at].Writes
			}
			a.Born, b.Born = nil, append(a.Born, b.Born...)
			b.Gone, a.Gone = nil, append(a.Gone, b.Gone...)
			m.Launches[n], m.Launches[n+1] = b, a
			return depends
		},
		"a launch reads something else": func(p *again.Plan) bool {
			m := &p.Makes[r.IntN(len(p.Makes))]
			l := &m.Launches[r.IntN(len(m.Launches))]
			i := r.IntN(len(l.Operands))
			x := j.Ops[l.Op].Operands[i]
			if !x.Reads || x.Writes {
				return false
			}
			// Something of the size that is alive then, and that somebody wrote.
			var others []again.Memory
			for other, at := range j.Tensors {
				if !at.Workspace && again.Memory(other) != l.Operands[i] && at.Bytes == j.Tensors[x.Tensor].Bytes && at.Birth < m.Before && at.Death > m.Before {
					others = append(others, again.Memory(other))
				}
			}
			if len(others) == 0 {
				return false
			}
			l.Operands[i] = others[r.IntN(len(others))]
			return true
		},
		"something that is read is dropped": func(p *again.Plan) bool {
			m := p.Makes[r.IntN(len(p.Makes))]
			for _, x := range m.Launches[0].Operands {
				if int(x) < len(j.Tensors) && !slices.Contains(m.Launches[0].Born, x) && j.Tensors[x].Death > m.Before {
					p.Drops = append(p.Drops, again.Drop{After: m.Before - 1, Tensor: int32(x)})
					slices.SortStableFunc(p.Drops, func(a, b again.Drop) int { return a.After - b.After })
					return true
				}
			}
			return false
		},
		"a drop comes too early": func(p *again.Plan) bool {
			d := &p.Drops[r.IntN(len(p.Drops))]
			x := j.Tensors[d.Tensor]
			if d.After <= x.Birth {
				return false
			}
			d.After = x.Birth
			slices.SortStableFunc(p.Drops, func(a, b again.Drop) int { return a.After - b.After })
			return true
		},
		"what the job frees is not kept": func(p *again.Plan) bool {
			i := r.IntN(len(p.Keeps))
			p.Keeps = slices.Delete(p.Keeps, i, i+1)
			return true
		},
		"memory is given back too early": func(p *again.Plan) bool {
			m := &p.Makes[r.IntN(len(p.Makes))]
			n := r.IntN(len(m.Launches))
			if n == 0 || len(m.Launches[n].Gone) == 0 || slices.Contains(m.Launches[n].Born, m.Launches[n].Gone[0]) {
				return false
			}
			m.Launches[n-1].Gone = append(m.Launches[n-1].Gone, m.Launches[n].Gone[0])
			m.Launches[n].Gone = m.Launches[n].Gone[1:]
			return true
		},
		"another operation is issued": func(p *again.Plan) bool {
			m := &p.Makes[r.IntN(len(p.Makes))]
			l := &m.Launches[r.IntN(len(m.Launches))]
			for other := l.Op - 1; other >= 0; other-- {
				if j.Ops[other].Class != again.Never && len(j.Ops[other].Operands) == len(l.Operands) && !slices.Equal(j.Ops[other].Operands, j.Ops[l.Op].Operands) {
					l.Op = other
					return true
				}
			}
			return false
		},
		"what does not repeat is issued": func(p *again.Plan) bool {
			l := &p.Makes[r.IntN(len(p.Makes))].Launches[0]
			for other := range l.Op {
				if j.Ops[other].Class == again.Never && len(j.Ops[other].Operands) == len(l.Operands) {
					l.Op = other
					return true
				}
			}
			return false
		},
		"it is for another job": func(p *again.Plan) bool {
			p.Makes = append(p.Makes, again.Make{Before: len(j.Ops) + 1, Launches: p.Makes[0].Launches})
			return true
		},
		"it names memory that is not": func(p *again.Plan) bool {
			l := &p.Makes[r.IntN(len(p.Makes))].Launches[0]
			l.Born = append(l.Born, again.Memory(len(j.Tensors)+len(p.Scratch)))
			return true
		},
	} {
		tried, found := 0, 0
		r = rand.New(rand.NewPCG(7, 7))
		for range 400 {
			broken := clone(plan)
			if !mutate(broken) {
				continue
			}
			tried++
			re, err := j.Rewrite(broken, 1e-6)
			if err == nil {
				err = j.Check(re)
			}
			if err != nil {
				found++
			}
			if tried == short.Of(12, 4) || what == "nothing" {
				break
			}
		}
		want := tried
		if what == "nothing" {
			want = 0
		}
		if tried == 0 || found != want {
			t.Errorf("%s: tried %d, found %d", what, tried, found)
		}
	}
}

// TestOverwritten: a launch that is issued again after its input was overwritten computes something else.
func TestOverwritten(t *testing.T) {
	const k = "K\t-1\t(nil)\t1\t1\t1\t1\t1\t1\t1\t"
	log := "N\t1\t2\tf\nM\titer0\nA\t0\t2097152\nA\t1\t2097152\n" +
		k + "w0+0\n" + // 0: makes the input
		k + "r0+0\tw1+0\n" + // 1: makes the tensor of it
		k + "r1+0\n" + // 2: uses the tensor
		k + "b0+0\n" + // 3: overwrites the input
		k + "r1+0\n" + // 4: uses the tensor
		"F\t0\nF\t1\nM\tend\n"
	tr, err := trace.Parse("log", []byte(log))
	if err != nil {
		t.Fatal(err)
	}
	j, err := NewJob(tr)
	if err != nil {
		t.Fatal(err)
	}
	if j.Inferred {
		t.Error("a log that says all roles is called inferred")
	}
	plan := func(before int) *again.Plan {
		return &again.Plan{Drops: []again.Drop{{After: 2, Tensor: 1}},
			Makes: []again.Make{{Before: before, Launches: []again.Launch{{Op: 1, Operands: []again.Memory{0, 1}, Born: []again.Memory{1}}}}}}
	}
	good, err := j.Rewrite(plan(3), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Check(good); err != nil {
		t.Errorf("made before its input is overwritten: %v", err)
	}
	bad, err := j.Rewrite(plan(4), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wrong *WrongError
	if err := j.Check(bad); !errors.As(err, &wrong) || wrong.Op != 4 || wrong.Alloc != 1 || !strings.Contains(err.Error(), "operation 4 (f)") {
		t.Errorf("made after its input is overwritten: %v", err)
	}
}

// TestLost: what lives at the end is there and holds what it held.
func TestLost(t *testing.T) {
	const k = "K\t-1\t(nil)\t1\t1\t1\t1\t1\t1\t1\t"
	tr, err := trace.Parse("log", []byte("N\t1\t2\tf\nM\titer0\nA\t0\t2097152\nA\t1\t8\n"+k+"w0+0\n"+k+"b1+0\nM\tend\n"))
	if err != nil {
		t.Fatal(err)
	}
	j, err := NewJob(tr)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Rewrite(&again.Plan{Drops: []again.Drop{{After: 0, Tensor: 0}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var wrong *WrongError
	if err := j.Check(r); !errors.As(err, &wrong) || wrong.Op != 2 || wrong.Alloc != 0 {
		t.Errorf("a tensor that is never used again is dropped: %v", err)
	}
}

func BenchmarkPlan(b *testing.B) {
	j, peak := shipped(b)
	p := again.NewPlanner(j.Job)
	for b.Loop() {
		p.Plan(options(peak / 2))
	}
}

func BenchmarkRewriteAndCheck(b *testing.B) {
	j, peak := shipped(b)
	plan := again.NewPlanner(j.Job).Plan(options(peak / 2))
	for b.Loop() {
		r, err := j.Rewrite(plan, 1e-6)
		if err == nil {
			err = j.Check(r)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
