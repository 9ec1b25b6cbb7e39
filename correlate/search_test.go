package correlate

import (
	"math/rand"
	"slices"
	"testing"
)

// program is a made-up one: operations on weights and on what it makes, which dies some operations later.
type program struct {
	signatures []uint64
	weights    []int // that each operation touches
	lasts      []int // for how many operations what it makes lives
}

// programOf makes one up, of a few functions, so that parts of it look like others and like other programs.
func programOf(rng *rand.Rand, operations, functions, weights int) *program {
	p := &program{}
	for i := range operations {
		p.signatures = append(p.signatures, uint64(1+rng.Intn(functions)))
		p.weights = append(p.weights, i*weights/operations)
		p.lasts = append(p.lasts, 1+rng.Intn(6))
	}
	return p
}

// job runs programs by turns and knows where each operation belongs.
type job struct {
	h       *History
	weights []InstanceID
	of      []InstanceID // what is to be freed before an operation
	due     []int64
	truth   [][2]int // program and operation, by position
}

func (j *job) run(number int, p *program, each func(operation int)) {
	for i, signature := range p.signatures {
		for k := 0; k < len(j.due); {
			if j.due[k] > j.h.Now() {
				k++
				continue
			}
			j.h.Free(j.of[k])
			j.of, j.due = slices.Delete(j.of, k, k+1), slices.Delete(j.due, k, k+1)
		}
		made := j.h.Alloc(int64(1 + i%7))
		j.of, j.due = append(j.of, made), append(j.due, j.h.Now()+int64(p.lasts[i]))
		touched := []InstanceID{made}
		if i%3 == 0 {
			touched = append(touched, j.weights[p.weights[i]])
		}
		j.truth = append(j.truth, [2]int{number, i})
		j.h.Observe(signature, touched)
		each(i)
	}
}

func (j *job) weigh(n int) {
	for range n {
		j.weights = append(j.weights, j.h.Alloc(1<<10))
	}
}

// TestRandomSchedules: programs of which each has been run before, in any order and as often as comes, on weights that they share or
// on their own: soon after one begins, the cursor is where it was run before, at the same operation.
func TestRandomSchedules(t *testing.T) {
	const soon = 70 // operations
	for seed := range int64(12) {
		rng := rand.New(rand.NewSource(seed))
		j := &job{h: NewHistory(HistoryConfig{MaxOps: 1 << 14, MaxIndex: 1 << 12})}
		j.weigh(40)
		var programs []*program
		for range 2 + rng.Intn(3) {
			programs = append(programs, programOf(rng, 300+rng.Intn(600), 12, 40))
		}
		if seed%2 == 0 { // another model of the same kind
			twin := *programs[0]
			twin.weights = slices.Clone(twin.weights)
			for i := range twin.weights {
				twin.weights[i] += len(j.weights)
			}
			j.weigh(40)
			programs = append(programs, &twin)
		}
		var judged, right int
		var most int64
		for turn := range 120 {
			number := rng.Intn(len(programs))
			if turn < 2*len(programs) {
				number = turn / 2
			}
			for range 1 + rng.Intn(3) {
				j.run(number, programs[number], func(operation int) {
					h := j.h
					if next := h.NextUse(j.weights[rng.Intn(len(j.weights))]); next < h.Now() {
						t.Fatalf("seed %d: a next use at %d, now is %d", seed, next, h.Now())
					}
					if turn < 2*len(programs) || operation < soon {
						return
					}
					judged++
					if h.Locked() && j.truth[h.cursor] == j.truth[h.now-1] {
						right++
					}
				})
			}
			s := j.h.Stats()
			if turn == 60 {
				most = s.Bytes
			}
			if turn > 60 && s.Bytes > 3*most/2 {
				t.Fatalf("seed %d: %d bytes are remembered, %d halfway", seed, s.Bytes, most)
			}
		}
		if float64(right) < 0.93*float64(judged) {
			t.Errorf("seed %d: the cursor is right at %d of %d operations", seed, right, judged)
		}
	}
}

// TestCommonPast: sums tell how far two places go back alike, as counting does.
func TestCommonPast(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	h := NewHistory(HistoryConfig{MaxOps: minLogOps})
	var all []uint64
	for i := range 3000 {
		x := uint64(rng.Intn(2))
		if n := len(all); i%500 > 250 {
			x = all[n-200]
		}
		all = append(all, x)
		h.Observe(x, nil)
		if i < 10 || i%7 > 0 {
			continue
		}
		p := h.base + rng.Int63n(h.now-1-h.base)
		if i%14 == 0 && h.now-201 >= h.base {
			p = h.now - 201
		}
		var want int64
		for p-want > h.base && all[p-want] == all[h.now-1-want] {
			want++
		}
		if got := h.common(p); got != want {
			t.Fatalf("after %d operations: %d up to %d are the same, want %d", i, got, p, want)
		}
	}
}

// TestAnotherModel: a model like another is told from it by its weights, and what is needed in its next turn is known in the other's.
func TestAnotherModel(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	one := programOf(rng, 400, 12, 40)
	other := *one
	other.weights = slices.Clone(one.weights)
	j := &job{h: NewHistory(HistoryConfig{})}
	j.weigh(80)
	for i := range other.weights {
		other.weights[i] += 40
	}
	nothing := func(int) {}
	for range 3 {
		j.run(0, one, nothing)
		j.run(1, &other, nothing)
	}
	before := j.h.Stats()
	j.run(0, one, nothing)
	begin := j.h.Now()
	for i := range other.weights {
		if i%3 != 0 || i > 0 && other.weights[i] == other.weights[i-3] {
			continue
		}
		if next := j.h.NextUse(j.weights[other.weights[i]]); next != begin+int64(i) {
			t.Errorf("weight %d is needed next at %d, want %d", other.weights[i], next-begin, i)
		}
	}
	after := j.h.Stats()
	if ops, predicted := after.Ops-before.Ops, after.Predicted-before.Predicted; predicted < ops-1 {
		t.Errorf("%d of %d operations predicted", predicted, ops)
	}
}

// TestOneStranger: one operation on another tensor is no other program.
func TestOneStranger(t *testing.T) {
	p := newTape(HistoryConfig{})
	for range 4 {
		p.iteration(60, never, never, sizes(4))
	}
	before := p.h.Stats()
	p.live[-1-20], p.live[-1-40] = p.live[-1-40], p.live[-1-20]
	p.iteration(60, never, never, sizes(4))
	if after := p.h.Stats(); after.Realignments != before.Realignments || after.Lost != before.Lost {
		t.Errorf("put elsewhere %d times", after.Realignments-before.Realignments)
	}
}
