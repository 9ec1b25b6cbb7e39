package explicit

import "github.com/penstock-gpu/penstock/trace"

// This file is for recipes that are not verified any more, as others like them always were right: to verify takes as long as
// to make, and what a tensor is made of would have to be on the device.
//
// Recipes are alike when the same functions made the tensors and, since then, operations of which it is not known what they do
// with an operand were of the same functions, and named what was read and what was made in the same places. After
// Config.ProveAfter verifications in a row that were right they are proven, and one in proofsPart of them is verified still.
// One that is not right begins anew. What is dropped like that has the checksum of what it contained, as ever: were it not what
// its recipe makes, nobody would read it.

const (
	// proveAfter is Config.ProveAfter by default.
	proveAfter = 16
	// proofsPart is the part of proven recipes that are verified.
	proofsPart = 32
	// mostLikenesses is how many are remembered; when there are more all are forgotten.
	mostLikenesses = 1 << 12
)

// likeness is what alike recipes share.
type likeness uint64

// proofs are the verifications that were right in a row.
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

// note notes whether a verification was right.
func (p proofs) note(l likeness, right bool) {
	switch {
	case !right:
		delete(p, l)
	case len(p) == mostLikenesses:
		clear(p)
		fallthrough
	default:
		p[l]++
	}
}

// proven says whether a tensor's recipe need not be verified.
func (r *recipes) proven(t *tensor) bool {
	n := r.again.proofs[t.likeness()]
	return n >= r.config.ProveAfter && r.trusted(t)
}

// checkNow says whether one that is proven is verified all the same.
func (r *recipes) checkNow() bool {
	r.again.checks++
	return r.again.checks%proofsPart == 0
}
