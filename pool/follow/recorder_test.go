package follow

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// trainer makes the requests of a job: weights, then iterations of layers with an
// input, a tensor whose size is drawn, temporaries, and layers freed in reverse.
type trainer struct {
	alloc  func(bytes int64) cuda.Ptr
	free   func(p cuda.Ptr)
	layers int
}

const mib = 1 << 20

func (x trainer) weights() {
	for range 10 {
		x.alloc(2*mib + 512)
	}
}

func (x trainer) iteration(drawn int64) {
	input, extra := x.alloc(5*mib), x.alloc(2*mib+drawn)
	var acts []cuda.Ptr
	for k := range int64(x.layers) {
		acts = append(acts, x.alloc((3+k%5)*mib/2+(k%3)*512))
		x.free(x.alloc(2 * mib))
	}
	for k := len(acts) - 1; k >= 0; k-- {
		x.free(acts[k])
	}
	x.free(extra)
	x.free(input)
}

// record feeds a recorder until it has found an iteration, and says in which iteration that was.
func record(t *testing.T, iterations int, drawn func(i int) int64) (found *Steps, at int) {
	t.Helper()
	r := NewRecorder()
	next := cuda.Ptr(0)
	x := trainer{layers: 40}
	x.alloc = func(bytes int64) cuda.Ptr {
		next += 512
		if s := r.Alloc(next, bytes, 7); s != nil && found == nil {
			found = s
		}
		return next
	}
	x.free = r.Free
	x.weights()
	for i := range iterations {
		if x.iteration(drawn(i)); found != nil {
			return found, i
		}
	}
	return nil, 0
}

func TestRecorderFindsTheIteration(t *testing.T) {
	for name, drawn := range map[string]func(int) int64{
		"static":  func(int) int64 { return 4096 },
		"varying": func(i int) int64 { return int64(i*37%300) * 4096 },
	} {
		s, at := record(t, 8, drawn)
		if s == nil {
			t.Errorf("%s: no iteration was found", name)
			continue
		}
		t.Logf("%s: in iteration %d", name, at)
		if len(s.List) != 82 || s.Ticks != 164 {
			t.Errorf("%s: %d steps in %d ticks, want 82 in 164", name, len(s.List), s.Ticks)
		}
		if at > 4 {
			t.Errorf("%s: only found in iteration %d", name, at)
		}
	}
}
