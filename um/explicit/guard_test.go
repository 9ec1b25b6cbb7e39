package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// replaying is the seed of a world that drops without copies.
const replaying = 6

// droppedWorld has tensors made of one other, some of which have been dropped, and answers all of them.
func droppedWorld(t *testing.T) (w *world, source cuda.Ptr, made []cuda.Ptr) {
	w = newWorld(t, replaying, 64*PageBytes, 256*PageBytes, false)
	if w.r.config.Replay != um.ReplayOn {
		t.Fatal("nothing is dropped in a world of that seed")
	}
	w.steady = true
	source = w.malloc(4*PageBytes, 0)
	w.report(0, []cuda.Ptr{source}, true, 1)
	w.settle()
	for range 24 {
		p := w.malloc(4*PageBytes, 0)
		w.compute(0, []cuda.Ptr{p, source}, false)
		made = append(made, p)
		w.settle()
	}
	if w.away(made) == 0 {
		t.Fatal("nothing has been dropped")
	}
	return w, source, made
}

// away counts those that have been dropped.
func (w *world) away(all []cuda.Ptr) (n int) {
	for _, p := range all {
		if w.r.ByPtr[p].away() {
			n++
		}
	}
	return n
}

// readAll has something read each of them, which finds what it contains.
func (w *world) readAll(all []cuda.Ptr) {
	w.t.Helper()
	for _, p := range all {
		w.report(0, []cuda.Ptr{p}, false, 3)
		w.settle()
	}
	if err := w.r.Check(); err != nil {
		w.t.Error(err)
	}
}

// TestGuards: what dropped tensors are made of is written to or freed: they come back as they were.
func TestGuards(t *testing.T) {
	for name, change := range map[string]func(w *world, source cuda.Ptr){
		"written": func(w *world, source cuda.Ptr) { w.report(0, []cuda.Ptr{source}, true, 2) },
		"freed":   func(w *world, source cuda.Ptr) { w.free(source) },
		"written when no more is dropped": func(w *world, source cuda.Ptr) {
			w.r.config.Replay = um.ReplayOff
			w.report(0, []cuda.Ptr{source}, true, 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, source, made := droppedWorld(t)
			change(w, source)
			w.settle()
			if n := w.away(made); name != "freed" && n > 0 {
				t.Errorf("%d are still to be made of what has been written to", n)
			}
			w.readAll(made)
		})
	}
}

// TestManyWays: how much is to be made of something, and when, is found where there are more ways from one to the other than can be gone.
func TestManyWays(t *testing.T) {
	const layers = 64
	r := New(Config{BudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}}, newBystander())
	r.again.guards = 1
	last := &tensor{Tensor: um.Tensor{Freed: true}}
	below := []*tensor{last}
	var t0 *tensor
	for range layers {
		t0 = &tensor{readers: below}
		t0.retained = true
		other := &tensor{readers: below}
		other.retained = true
		below = []*tensor{t0, other}
	}
	if n := r.height(t0); n != layers {
		t.Errorf("%d are to be made in a row, want %d", n, layers)
	}
	if next := r.nextUse(t0); next != r.nextUse(last) {
		t.Errorf("it is used at %d, and what is made of it in the end at %d", next, r.nextUse(last))
	}
	r.again.guards++
	below[1].readers = nil
	if n := r.height(below[1]); n != 0 {
		t.Errorf("nothing is made of it any more, and its height is %d", n)
	}
}

// rowWorld has tensors each of which is made of the one before, and answers all of them.
func rowWorld(t *testing.T) (w *world, all []cuda.Ptr) {
	w = newWorld(t, replaying, 64*PageBytes, 4096*PageBytes, false)
	w.steady = true
	p := w.malloc(4*PageBytes, 0)
	w.report(0, []cuda.Ptr{p}, true, 1)
	w.settle()
	all = append(all, p)
	for range 256 {
		p = w.malloc(4*PageBytes, 0)
		w.compute(0, []cuda.Ptr{p, all[len(all)-1]}, false)
		all = append(all, p)
		w.settle()
	}
	return w, all
}

// TestRowsAreShort: the first ones leave first, and some are copied, so that only a few have to be made before any of them can be.
func TestRowsAreShort(t *testing.T) {
	w, all := rowWorld(t)
	deepest := 0
	for _, p := range all {
		if x := w.r.ByPtr[p]; x.away() {
			deepest = max(deepest, w.r.depth(x))
		}
	}
	if deepest == 0 || deepest >= mostInRow {
		t.Errorf("of %d that were dropped at most %d in a row have to be made before another one, want some, and less than %d", w.away(all), deepest, mostInRow)
	}
	w.readAll(all)
}

// TestProvenOfDropped: what is proven can be dropped when what it is made of has been, and is never verified then: that is not there to be read.
func TestProvenOfDropped(t *testing.T) {
	w, all := rowWorld(t)
	found := 0
	for _, p := range all {
		x := w.r.ByPtr[p]
		if x.remake == nil || !x.remake.ready || !x.whole() || !x.inputs()[0].away() {
			continue
		}
		w.r.release(x)
		w.r.again.checks = proofsPart - 1 // the next one is verified all the same
		m := w.r.verifyFirst(x)
		switch short := w.r.depth(x.inputs()[0]) < mostInRow/2; {
		case !short && x.remake != nil:
			t.Errorf("one is to be made of %d in a row", w.r.depth(x.inputs()[0]))
		case short && (m == nil || m.tensor != x || !m.Proven):
			t.Errorf("%+v, want one that is proven", m)
		case short:
			found++
			w.r.verified(m)
		}
	}
	if found == 0 {
		t.Error("there was none")
	}
}
