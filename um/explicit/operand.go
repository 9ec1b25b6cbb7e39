package explicit

import (
	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for what is asked of operands to find out what launches do with them of which nothing is known by name.

// MostTrialInputs is how many tensors a recipe may read that is tried with copies of them.
const MostTrialInputs = 8

// products counts the products (Op.Product) among the operations that named a tensor.
type products struct {
	n     int
	fills bool // others did that fill it
	other bool // others did that do not
	made  bool // the first was one of which it is known that it made it
}

func (p *products) note(o *um.Op) {
	switch {
	case o.Product:
		p.n++
	case o.Fill:
		p.fills = true
	default:
		p.other = true
	}
}

// Operand says whether the tensor of a slot is certain to hold what products compute with: something else has named it, or a product is known
// to have made it. What products alone name may be a workspace that each leaves as it was, with semaphores that all of them wait for. Of a pack
// nothing is said.
func (r *tensors) Operand(slot uint32) bool {
	t := r.Slots.At(slot)
	return t == nil || t.parts != nil || t.products.other || t.products.made
}

// SlotRange is where the tensor of a slot lies; nowhere when there is none.
func (r *tensors) SlotRange(slot uint32) cuda.Range {
	t := r.Slots.At(slot)
	if t == nil {
		return cuda.Range{}
	}
	return cuda.Range{Base: t.base, Bytes: t.size}
}

// Lives says whether a slot has an allocation that lives.
func (r *tensors) Lives(slot uint32) bool { return r.LiveAt(slot) != nil }

// Untouched says whether no operation has named the tensor of a slot since it was allocated; not of a pack, of which a part may have been.
func (r *tensors) Untouched(slot uint32) bool {
	t := r.Slots.At(slot)
	return t != nil && !t.recipe.touched && t.parts == nil
}

// NamedByProducts says whether so many products have named the tensor of a slot, and nothing else.
func (r *tensors) NamedByProducts(slot uint32, n int) bool {
	t := r.Slots.At(slot)
	return t != nil && t.products.n >= n && !t.products.other && !t.products.fills
}

// MayBeWorkspace says whether nothing but products and fills has named the tensor of a slot. Of a pack nothing is said: its parts are not told apart.
func (r *tensors) MayBeWorkspace(slot uint32) bool {
	t := r.Slots.At(slot)
	return t != nil && (t.parts != nil || !t.products.other)
}

// InstanceOf is the life of the tensor of a slot: the same address later is another allocation's.
func (r *tensors) InstanceOf(slot uint32) correlate.InstanceID {
	if t := r.Slots.At(slot); t != nil {
		return t.Instance
	}
	return 0
}
