package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// TestProven: what always was right is verified seldom, and comes back as it was.
func TestProven(t *testing.T) {
	w, source, made := droppedWorld(t)
	const functions = 3 // of the world's, one of which makes a tensor
	for range 120 {
		p := w.malloc(4*PageBytes, 0)
		w.compute(0, []cuda.Ptr{p, source}, false)
		made = append(made, p)
		w.settle()
		if len(made) > 60 { // as many as there is room for
			w.free(made[0])
			made = made[1:]
			w.settle()
		}
	}
	s := w.r.Stats()
	if most := int64(functions*proveAfter + len(made)/proofsPart + 8); s.Dropped < most+20 || s.Verified < proveAfter || s.Verified > most {
		t.Errorf("%d dropped, %d verified", s.Dropped, s.Verified)
	}
	if s.Wrong+s.Unmade != 0 {
		t.Errorf("%d were found wrong, %d were not the same", s.Wrong, s.Unmade)
	}
	for _, p := range made {
		w.report(0, []cuda.Ptr{p}, false, 3) // finds what it contains
		w.settle()
	}
	if err := w.r.Check(); err != nil {
		t.Error(err)
	}
}

// TestLikeness: an operation of which nothing is known makes a recipe unlike those before, by its function and by where it names what; a known one does not.
func TestLikeness(t *testing.T) {
	w, source, made := droppedWorld(t)
	var here cuda.Ptr
	for _, p := range made {
		if x := w.r.ByPtr[p]; !x.away() && w.r.hasRecipe(x) {
			here = p
		}
	}
	if here == 0 {
		t.Fatal("all are away")
	}
	seen := map[likeness]bool{w.r.ByPtr[here].likeness(): true}
	for i, touch := range [][]cuda.Ptr{{source}, {here}, {source, here}, {here, source}} {
		w.report(0, touch, false, uint64(5+i%2))
		w.settle()
		l := w.r.ByPtr[here].likeness()
		if seen[l] {
			t.Errorf("touch %d of %d tensors is not seen", i, len(touch))
		}
		seen[l] = true
	}
	p := proofs{}
	for range 3 {
		p.note(7, true)
	}
	p.note(8, true)
	if p.note(7, false); p[7] != 0 || p[8] != 1 {
		t.Errorf("%v", p)
	}
}

// TestProvenAnew: what is proven, and was not let be issued as it has to be tried again, has to be verified again.
func TestProvenAnew(t *testing.T) {
	w, _, made := droppedWorld(t)
	x := w.r.ByPtr[made[len(made)-1]]
	for _, proven := range []bool{false, true} {
		w.r.again.proofs[7] = proveAfter
		x.remake = &remake{alike: 7, proven: proven}
		w.r.again.remakes++
		w.r.judge(&Move{Kind: MoveVerify, Proven: proven, Untried: true, tensor: x}, false)
		if n := w.r.again.proofs[7]; (n == 0) != proven {
			t.Errorf("proven %t: %d were right", proven, n)
		}
	}
}
