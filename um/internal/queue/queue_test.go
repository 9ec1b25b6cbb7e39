package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type op struct {
	stream int
	seq    uint64
}

// The queue is the same as a plain list of what is unfinished, whatever finishes when.
func TestQueueIsWhatIsUnfinished(t *testing.T) {
	const streams = 4
	r := rand.New(rand.NewPCG(1, 2))
	var q Queue[*op]
	var want []*op
	seq := uint64(0)
	for range 20000 {
		if r.IntN(2) == 0 {
			seq += 1 + uint64(r.IntN(3))
			x := &op{r.IntN(streams), seq}
			q.Add(x.stream, seq, x)
			want = append(want, x)
		} else {
			s, to := r.IntN(streams), uint64(0)
			if r.IntN(20) > 0 && s == 3 {
				s = 0 // the last stream is quiet most of the time
			}
			if seq > 0 {
				to = seq - uint64(r.IntN(int(min(seq, 8))))
			}
			var finished, due []*op
			any := q.Finish(s, to, func(x *op) { finished = append(finished, x) })
			want = slices.DeleteFunc(want, func(x *op) bool {
				if x.stream != s || x.seq > to {
					return false
				}
				due = append(due, x)
				return true
			})
			if !slices.Equal(finished, due) || any != (len(due) > 0) {
				t.Fatalf("stream %d up to %d finished %d operations (%t), want %d", s, to, len(finished), any, len(due))
			}
		}
		check(t, &q, want, seq, r)
	}
}

func check(t *testing.T, q *Queue[*op], want []*op, seq uint64, r *rand.Rand) {
	t.Helper()
	if got := slices.Collect(q.All()); !slices.Equal(got, want) || q.Len() != len(want) {
		t.Fatalf("%d operations, %d by Len, want %d", len(got), q.Len(), len(want))
	}
	first := func(matches func(*op) bool) *op {
		if i := slices.IndexFunc(want, matches); i >= 0 {
			return want[i]
		}
		return nil
	}
	is := func(what string, got *op, ok bool, expected *op) {
		t.Helper()
		if got != expected || ok != (expected != nil) {
			t.Fatalf("%s is %v (%t), want %v", what, got, ok, expected)
		}
	}
	got, ok := q.First()
	is("the first", got, ok, first(func(*op) bool { return true }))
	from := uint64(r.IntN(int(seq) + 2))
	got, ok = q.From(from)
	is("the first from a number", got, ok, first(func(x *op) bool { return x.seq >= from }))
	got, ok = q.Where(func(x *op) bool { return x.seq+1 >= from })
	is("the first where", got, ok, first(func(x *op) bool { return x.seq+1 >= from }))
	for s := range 5 {
		got, ok = q.FirstOn(s)
		is("the first of a stream", got, ok, first(func(x *op) bool { return x.stream == s }))
	}
}

// A stream that says nothing for long costs neither memory nor time.
func TestQuietStreamHoldsNothingUp(t *testing.T) {
	var q Queue[*op]
	q.Add(1, 1, &op{1, 1})
	for seq := uint64(2); seq < 100_000; seq++ {
		q.Add(0, seq, &op{0, seq})
		if seq%16 == 0 {
			q.Finish(0, seq, func(*op) {})
		}
		if len(q.all) > 256 {
			t.Fatalf("%d operations are kept of which %d are unfinished", len(q.all), q.Len())
		}
	}
	if x, ok := q.First(); !ok || x.stream != 1 {
		t.Fatal("the quiet stream's operation is lost")
	}
}

func BenchmarkQueue(b *testing.B) {
	var q Queue[*op]
	q.Add(1, 1, &op{1, 1})
	x := &op{}
	for i := range b.N {
		seq := uint64(i + 2)
		q.Add(0, seq, x)
		if seq%16 == 0 && seq > 1000 {
			q.Finish(0, seq-1000, func(*op) {})
		}
	}
}
