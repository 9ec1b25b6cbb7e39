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
	w.readAll(made)
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
	if p.note(7, false); p[7] != -1 || p[8] != 1 {
		t.Errorf("%v", p)
	}
	p.forget(7)
	p.forget(8)
	if p.note(7, false); p[7] != -2 || p[8] != 0 {
		t.Errorf("%v", p)
	}
	if p.note(7, true); p[7] != 1 {
		t.Errorf("%v", p)
	}
}

// TestDisproven: recipes like those that were wrong are not tried again, and what their functions make otherwise is.
func TestDisproven(t *testing.T) {
	w, source, made := droppedWorld(t)
	r := w.r
	var here []*tensor
	for _, p := range made {
		if x := r.ByPtr[p]; x.remake == nil && r.worthMaking(x) {
			here = append(here, x)
		}
	}
	if len(here) == 0 {
		t.Fatal("nothing is left that could be made again")
	}
	x := here[0]
	before := x.likeness()
	w.report(0, []cuda.Ptr{x.base}, false, 5) // nobody says what it does with it
	w.settle()
	for range 2 * mostDisproofs { // that says nothing of what it makes
		m, recipe := r.verifyFirst(x), x.recipe
		r.landed(m)
		r.judge(m, false)
		x.recipe = recipe
	}
	for i := range mostDisproofs {
		if !r.worthMaking(x) {
			t.Fatalf("given up after %d were wrong", i)
		}
		m, recipe := r.verifyFirst(x), x.recipe
		m.functions = []uint32{77}
		r.verified(m)
		r.judge(&Move{Kind: MoveEvict, tensor: x, functions: m.functions}, false)
		x.recipe = recipe
	}
	if r.worthMaking(x) || r.again.wrong[77] != 0 || r.again.refused[77] != 0 {
		t.Errorf("%d wrong, %d not verified", r.again.wrong[77], r.again.refused[77])
	}
	x.remake = &remake{ready: true, alike: before}
	if r.drops(x) {
		t.Error("it is dropped all the same")
	}
	x.remake = nil
	if x.touches = x.recipe.touches; x.likeness() != before || !r.worthMaking(x) {
		t.Error("what nothing unknown has named is not made again either")
	}
	r.again.remakes++
	x.remake = &remake{ready: true, alike: before}
	r.judge(&Move{Kind: MoveEvict, tensor: x, functions: []uint32{77}}, false)
	if r.again.wrong[77] != 1 {
		t.Errorf("nothing else can have made it wrong, and the function is wrong %d times", r.again.wrong[77])
	}
	w.readAll([]cuda.Ptr{source})
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

// TestProvenThenTouched: what was proven when it was looked at, and was named since by an operation of which nothing is known, is
// not dropped as if it were still so: it is verified as it is now.
func TestProvenThenTouched(t *testing.T) {
	w, _, made := droppedWorld(t)
	r := w.r
	var x *tensor
	for _, p := range made {
		if here := r.ByPtr[p]; here.remake == nil && r.worthMaking(here) {
			x = here
		}
	}
	if x == nil {
		t.Fatal("nothing is left that could be made again")
	}
	r.again.proofs[x.likeness()] = r.config.ProveAfter
	for _, s := range x.recipe.steps {
		r.again.same[s.function] = r.config.TrustAfter
	}
	m := r.verifyFirst(x)
	if m == nil || !m.Proven {
		t.Fatalf("%+v", m)
	}
	r.verified(m)
	before := x.remake
	if m = r.verifyFirst(x); m != nil || x.remake != before {
		t.Errorf("it is looked at again, though nothing has named it: %+v", m)
	}
	x.touch(99, 0, 1)
	if m = r.verifyFirst(x); m == nil || m.Proven || x.remake == before {
		t.Errorf("an unknown operation has named it, and it is not verified: %+v", m)
	}
	if m != nil {
		r.verified(m)
	}

	// What was right when it left was so for what had named it by then.
	x.touch(98, 0, 1)
	was := x.remake.alike
	if r.judge(&Move{Kind: MoveEvict, tensor: x}, true); r.again.proofs[was] != 1 || r.again.proofs[x.likeness()] != 1 {
		t.Errorf("%d and %d were right", r.again.proofs[was], r.again.proofs[x.likeness()])
	}
}

// TestStateIsNotMade: what is older than an iteration is not made again.
func TestStateIsNotMade(t *testing.T) {
	w, _, made := droppedWorld(t)
	r := w.r
	var x *tensor
	for _, p := range made {
		if here := r.ByPtr[p]; here.remake == nil && r.worthMaking(here) {
			x = here
		}
	}
	if x == nil {
		t.Fatal("nothing is left that could be made again")
	}
	small := w.malloc(PageBytes, 0)
	for i := range 2 * leastStateOps {
		if i == leastStateOps/2 && (r.isState(x) || !r.makeable(x)) {
			t.Error("it is taken for a state at once")
		}
		w.report(0, []cuda.Ptr{small}, false, uint64(100+i%64)) // an iteration of 64
		w.settle()
	}
	if r.History.Period() == 0 {
		t.Fatal("no iteration is known")
	}
	if !r.isState(x) || r.makeable(x) || r.cause(x, false) != NotRecorded {
		t.Errorf("after %d operations it is made again all the same", 2*leastStateOps)
	}
}
