package explicit

import (
	"slices"

	"github.com/penstock-gpu/penstock/trace"
)

// This file is for recipes that are not verified any more, as others like them always were right: to verify takes as long as
// to make, and what a tensor is made of would have to be on the device.
//
// Recipes are alike when the same functions made the tensors and, since then, operations of which it is not known what they do
// with an operand were of the same functions, and named what was read and what was made in the same places. After
// Config.ProveAfter verifications in a row that were right they are proven, and one in proofsPart of them is verified still.
// One that is not right begins anew. What is dropped like that has the checksum of what it contained, as ever: were it not what
// its recipe makes, nobody would read it.
//
// In the same way recipes that were wrong mostDisproofs times in a row are disproven, and neither verified nor dropped. Where operations of
// which it is not known what they do named what was read or made, one of them may be what the recipe lacks: its functions are not at fault (blameless).

const (
	// proveAfter is Config.ProveAfter by default.
	proveAfter = 16
	// proofsPart is the part of proven recipes that are verified.
	proofsPart = 32
	// mostDisproofs is how many recipes that are alike may be wrong in a row before the next is not tried.
	mostDisproofs = 2
	// mostLikenesses is how many are remembered; when there are more all are forgotten.
	mostLikenesses = 1 << 12
)

// likeness is what alike recipes share.
type likeness uint64

// proofs are the verifications that were right in a row or, below zero, wrong.
type proofs map[likeness]int

// touch notes an operation of which it is not known what it does with a tensor, which it names in one place of so many: the order of
// operations does not matter.
func (t *tensor) touch(function uint32, place, places int) {
	t.touches += trace.Mix(trace.Mix(uint64(function), uint64(place)), uint64(places))
}

// likeness is that of a tensor's recipe as it is now.
func (t *tensor) likeness() likeness {
	h := trace.Mix(0, t.touches-t.recipe.touches)
	for i := range t.recipe.steps {
		s := &t.recipe.steps[i]
		h = trace.Mix(trace.Mix(h, uint64(s.function)), s.touches)
		for _, in := range s.inputs {
			if in.tensor == t {
				h = trace.Mix(h, 1)
			} else {
				h = trace.Mix(h, in.tensor.touches-in.touches)
			}
		}
	}
	return likeness(h)
}

// blameless says whether what a recipe lacks may be an operation of which it is not known what it does.
func (t *tensor) blameless() bool {
	return t.touches != t.recipe.touches || slices.ContainsFunc(t.recipe.steps, func(s step) bool {
		return s.touches != 0 || slices.ContainsFunc(s.inputs, func(in input) bool { return in.tensor != t && in.tensor.touches != in.touches })
	})
}

// note notes whether a verification was right.
func (p proofs) note(l likeness, right bool) {
	n, known := p[l]
	if !known && len(p) == mostLikenesses {
		clear(p)
	}
	switch {
	case right:
		p[l] = max(n, 0) + 1
	default:
		p[l] = min(n, 0) - 1
	}
}

// forget ends the row of verifications that were right.
func (p proofs) forget(l likeness) {
	if p[l] > 0 {
		delete(p, l)
	}
}

// proven says whether a tensor's recipe need not be verified.
func (r *recipes) proven(t *tensor) bool {
	n := r.again.proofs[t.likeness()]
	return n >= r.config.ProveAfter && r.trusted(t)
}

// disproven says whether recipes like a tensor's have been wrong.
func (r *recipes) disproven(t *tensor) bool { return r.again.proofs[t.likeness()] <= -mostDisproofs }

// checkNow says whether one that is proven is verified all the same.
func (r *recipes) checkNow() bool {
	r.again.checks++
	return r.again.checks%proofsPart == 0
}
