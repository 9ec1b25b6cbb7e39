package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// TestOperands: what is told of an allocation that launches name is of its life, and of no other at its address.
func TestOperands(t *testing.T) {
	r := New(Config{BudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}, Replay: um.ReplayOn}, newBystander())
	p, err := r.Malloc(PageBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	slot := r.SlotOf(p)
	if at := r.SlotRange(slot); at != (cuda.Range{Base: p, Bytes: PageBytes}) {
		t.Errorf("slot %d lies at %v, want %#x", slot, at, uint64(p))
	}
	if !r.Lives(slot) || !r.Untouched(slot) || r.NamedByProducts(slot, 1) {
		t.Error("nothing has named it")
	}
	life := r.InstanceOf(slot)
	seq := uint64(0)
	op := func(o um.Op) {
		seq++
		o.Seq, o.Stream, o.Slots = seq, 1, []uint32{slot}
		r.Op(o)
	}
	op(um.Op{Product: true})
	op(um.Op{Product: true})
	if r.Untouched(slot) || !r.NamedByProducts(slot, 2) || r.NamedByProducts(slot, 3) || !r.MayBeWorkspace(slot) || r.Operand(slot) {
		t.Error("two products have named it, and nothing else")
	}
	op(um.Op{Fill: true})
	if r.NamedByProducts(slot, 2) || !r.MayBeWorkspace(slot) || r.Operand(slot) {
		t.Error("products and a fill have named it")
	}
	op(um.Op{})
	if r.MayBeWorkspace(slot) || !r.Operand(slot) {
		t.Error("something else than products has named it")
	}
	if err := r.Free(p); err != nil {
		t.Fatal(err)
	}
	if r.Lives(slot) {
		t.Error("it is dead")
	}
	if p, err = r.Malloc(PageBytes, 1); err != nil {
		t.Fatal(err)
	}
	if slot = r.SlotOf(p); !r.MayBeWorkspace(slot) || !r.Untouched(slot) || r.InstanceOf(slot) == life {
		t.Error("what was told of the life before is told of this one")
	}
	for _, trying := range []bool{true, false} {
		if p, err = r.Malloc(PageBytes, 1); err != nil {
			t.Fatal(err)
		}
		slot = r.SlotOf(p)
		op(um.Op{Product: true, Trying: trying, Access: []um.Access{um.AccessWrites}})
		op(um.Op{Product: true, Access: []um.Access{um.AccessReads}})
		if r.Operand(slot) == trying {
			t.Errorf("a product has made it, which is being tried (%t): %t", trying, r.Operand(slot))
		}
	}
	const none = 1 << 20
	if r.Lives(none) || r.Untouched(none) || r.NamedByProducts(none, 0) || r.MayBeWorkspace(none) || r.SlotRange(none) != (cuda.Range{}) {
		t.Error("something is told of a slot of nothing")
	}
}
