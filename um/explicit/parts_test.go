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
	r := New(Config{BudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}, Replay: um.ReplayOn}, &bystander{})
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
	r := New(Config{BudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}}, &bystander{})
	pack, _ := twoParts()
	if pack.filledBy = r.History.Now() + 1; r.filling(pack) {
		t.Error("all parts are there")
	}
	if pack.parts[1].state = reserved; !r.filling(pack) {
		t.Error("one is to come")
	}
	if pack.filledBy = r.History.Now(); r.filling(pack) {
		t.Error("its time has passed")
	}
}

// TestManyWays: how much is to be made of something, and when, is found where there are more ways from one to the other than can be gone.
func TestManyWays(t *testing.T) {
	const layers = 64
	r := New(Config{BudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}}, &bystander{})
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

// TestIsolate: launches get memory to write to in the place of what they were to read, if there is so much.
func TestIsolate(t *testing.T) {
	workspace := cuda.Range{Base: 1 << 44, Bytes: 3 * copyUnit}
	first, second := &cuda.RecordedLaunch{}, &cuda.RecordedLaunch{Addresses: []uint32{0}, Params: binary.LittleEndian.AppendUint64(nil, 1<<44+512)}
	before := []Temp{{At: cuda.Range{Base: 1 << 45, Bytes: copyUnit}, Offset: 2 * copyUnit}}
	m := &Move{Launches: []*cuda.RecordedLaunch{first, second}, Temps: [][]Temp{before, nil}}
	if m.Isolate([]Overwritten{{workspace, true}}, 6*copyUnit-1) || len(m.Temps[1]) != 0 {
		t.Fatalf("there is no room: %+v", m.Temps)
	}
	if !m.Isolate([]Overwritten{{workspace, true}}, 6*copyUnit) {
		t.Fatal("there is room")
	}
	want := Temp{At: workspace, Offset: 3 * copyUnit, Scratch: true}
	if !slices.Equal(m.Temps[0], before) || !slices.Equal(m.Temps[1], []Temp{want}) {
		t.Errorf("%+v, want %+v", m.Temps, want)
	}
	m.Temps = make([][]Temp, 2)
	if !m.Isolate([]Overwritten{{workspace, false}}, 6*copyUnit) || !m.Temps[1][0].Copy || m.Temps[1][0].Scratch {
		t.Errorf("what is read there is not copied: %+v", m.Temps)
	}
}
