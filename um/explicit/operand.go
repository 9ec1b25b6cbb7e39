package explicit

import "github.com/penstock-gpu/penstock/cuda"

// This file is for what is asked of operands to find out what launches do with them of which nothing is known by name.

// MostTrialInputs is how many tensors a recipe may read that is tried with copies of them.
const MostTrialInputs = 8

// products counts the operations that named a tensor, if all of them were products (Op.Product).
type products struct {
	n     int
	other bool
}

func (p *products) note(product bool) {
	if product {
		p.n++
	} else {
		p.other = true
	}
}

// SlotRange is where the tensor of a slot lies; nowhere when there is none.
func (r *Runtime) SlotRange(slot uint32) cuda.Range {
	t := r.Slots.At(slot)
	if t == nil {
		return cuda.Range{}
	}
	return cuda.Range{Base: t.base, Bytes: t.size}
}

// Lives says whether a slot has an allocation that lives.
func (r *Runtime) Lives(slot uint32) bool { return r.LiveAt(slot) != nil }

// Untouched says whether no operation has named the tensor of a slot since it was allocated; not of a pack, of which a part may have been.
func (r *Runtime) Untouched(slot uint32) bool {
	t := r.Slots.At(slot)
	return t != nil && !t.recipe.touched && t.parts == nil
}

// NamedByProducts says whether so many products have named the tensor of a slot, and nothing else.
func (r *Runtime) NamedByProducts(slot uint32, n int) bool {
	t := r.Slots.At(slot)
	return t != nil && t.products.n >= n && !t.products.other
}
