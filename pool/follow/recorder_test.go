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
	state  bool         // the first iteration makes an optimizer's state
	kept   *[2]cuda.Ptr // of the last two iterations, one each; nil: none
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
	if x.state {
		for k := range int64(x.layers / 5) {
			x.alloc(3*mib + k%5*512)
		}
	}
	for range x.layers { // the optimizer's temporaries
		x.free(x.alloc(3 * mib))
	}
	if x.kept != nil { // what is alive for two iterations
		if x.kept[0] != 0 {
			x.free(x.kept[0])
		}
		x.kept[0], x.kept[1] = x.kept[1], x.alloc(4*mib)
	}
	x.free(extra)
	x.free(input)
}

// record feeds a recorder until it has found an iteration, and says in which iteration that was.
func record(t *testing.T, iterations int, drawn func(i int) int64, kept *[2]cuda.Ptr) (found *Steps, at int) {
	t.Helper()
	r := NewRecorder()
	next := cuda.Ptr(0)
	x := trainer{layers: 40, kept: kept}
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
		x.state = i == 0
		if x.iteration(drawn(i)); found != nil {
			return found, i
		}
	}
	return nil, 0
}

func TestRecorderFindsTheIteration(t *testing.T) {
	static := func(int) int64 { return 4096 }
	for _, c := range []struct {
		name           string
		drawn          func(int) int64
		kept           *[2]cuda.Ptr
		latest         int // iteration that it may be found in
		lasting, steps int
	}{
		{"static", static, nil, 2, 0, 122},
		{"varying", func(i int) int64 { return int64(i*37%300) * 4096 }, nil, 2, 0, 122},
		{"kept for two iterations", static, &[2]cuda.Ptr{}, 6, 1, 123},
	} {
		s, at := record(t, 8, c.drawn, c.kept)
		if s == nil {
			t.Errorf("%s: no iteration was found", c.name)
			continue
		}
		t.Logf("%s: in iteration %d", c.name, at)
		lasting := 0
		for _, x := range s.List {
			if x.Lasting {
				lasting++
			}
		}
		if len(s.List) != c.steps || s.Ticks != int64(2*c.steps) || lasting != c.lasting {
			t.Errorf("%s: %d steps in %d ticks, %d lasting, want %d in %d, %d", c.name, len(s.List), s.Ticks, lasting, c.steps, 2*c.steps, c.lasting)
		}
		if at > c.latest {
			t.Errorf("%s: only found in iteration %d", c.name, at)
		}
	}
}

// TestWraps: what is freed in the next iteration, before its like comes, has one place.
func TestWraps(t *testing.T) {
	r := NewRecorder()
	next := cuda.Ptr(0)
	var found *Steps
	alloc := func(bytes int64) cuda.Ptr {
		next += 512
		if s := r.Alloc(next, bytes, 0); s != nil && found == nil {
			found = s
		}
		return next
	}
	var kept cuda.Ptr
	for i := 0; i < 6 && found == nil; i++ {
		var layers []cuda.Ptr
		for k := range int64(40) {
			layers = append(layers, alloc((2+k%7)*mib))
			if k == 3 && kept != 0 {
				r.Free(kept)
			}
		}
		kept = alloc(5 * mib)
		for _, p := range layers {
			r.Free(p)
		}
	}
	if found == nil {
		t.Fatal("no iteration was found")
	}
	wrapped := 0
	for _, x := range found.List {
		if x.Again > 0 && !x.Lasting {
			wrapped++
		}
	}
	if share, err := found.Plan(t.Context(), 0); err != nil || share != 1 || wrapped != 1 {
		t.Errorf("%d wrap around, share %v, %v", wrapped, share, err)
	}
}
