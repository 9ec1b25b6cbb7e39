package explicit

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// twoParts is a pack of two parts, and a tensor that a launch made of the first one.
func twoParts() (pack, made *tensor) {
	pack = &tensor{base: 1 << 44, size: 2 * PageBytes, parts: []part{{bytes: PageBytes, state: alive}, {offset: PageBytes, bytes: PageBytes, state: alive}}}
	l := &cuda.RecordedLaunch{Addresses: []uint32{0, 8}}
	for _, p := range []cuda.Ptr{1 << 45, pack.base + 512} {
		l.Params = binary.LittleEndian.AppendUint64(l.Params, uint64(p))
	}
	made = &tensor{recipe: recipe{steps: []step{{launch: l, position: 10, inputs: []input{{tensor: pack, parts: pack.partsNamed(l)}}}}}}
	return pack, made
}

// TestWriteToAPart: what is made of a part can be made again after another part was written to, not after that one was or where it is not known
// which.
func TestWriteToAPart(t *testing.T) {
	r := New(Config{BudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}, Replay: um.ReplayOn}, newBystander())
	for _, x := range []struct {
		to   []cuda.Ptr
		lost bool
	}{
		{[]cuda.Ptr{1<<44 + PageBytes + 64}, false},
		{[]cuda.Ptr{1<<44 + 64}, true},
		{[]cuda.Ptr{1<<44 + PageBytes, 1 << 44}, true},
		{nil, true},
		{[]cuda.Ptr{1 << 45}, true}, // nowhere in it
	} {
		pack, made := twoParts()
		if parts := made.recipe.steps[0].inputs[0].parts; !slices.Equal(parts, []int{0}) {
			t.Fatalf("parts %v are named, want the first", parts)
		}
		if pack.write(x.to, 5); !r.inputsLast(made) {
			t.Errorf("%#x: what was written to before it was read is lost", x.to)
		}
		if pack.write(x.to, 11); r.inputsLast(made) == x.lost {
			t.Errorf("%#x: can be made again: %t", x.to, !x.lost)
		}
	}
	pack, made := twoParts()
	made.recipe.steps[0].inputs[0].parts = nil // not known
	if pack.write([]cuda.Ptr{1<<44 + PageBytes}, 11); r.inputsLast(made) {
		t.Error("it is not known which part was read, and one was written to since")
	}
}

// TestFilling: parts of a pack are waited for until their time has passed.
func TestFilling(t *testing.T) {
	pack, _ := twoParts()
	if pack.filledBy = 11; pack.filling(10) {
		t.Error("all parts are there")
	}
	if pack.parts[1].state = reserved; !pack.filling(10) {
		t.Error("one is to come")
	}
	if pack.filling(11) {
		t.Error("its time has passed")
	}
}
