package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// TestAlias: a dead range whose memory something takes stays mapped, is nobody's until that memory is free again, and is then a dead
// range once more. Before the memory is released it is unmapped.
func TestAlias(t *testing.T) {
	const size = 4 * PageBytes
	w := newWorld(t, 1, size, 256*PageBytes, true)
	w.r.config.Replay = um.ReplayOn
	use := func(p cuda.Ptr) {
		w.report(0, []cuda.Ptr{p}, true, 100)
		w.settle()
		w.drainStreams()
	}
	aliases := func() (all []cuda.Ptr) {
		for _, ranges := range w.r.physical.aliases {
			for _, g := range ranges {
				all = append(all, g.base)
			}
		}
		if err := w.r.Check(); err != nil {
			t.Fatal(err)
		}
		return all
	}
	x := w.malloc(size, 0)
	use(x)
	y := w.malloc(size, 0)
	use(y) // x is on the host
	w.free(y)
	use(x) // it has the memory of y
	if found := aliases(); len(found) != 1 || found[0] != y {
		t.Fatalf("mapped to memory that is another's: %#x, want %#x", found, y)
	}
	before := w.r.stats.AliasedRanges
	z := w.malloc(size, 0)
	if z == y || w.r.physical.total() != size {
		t.Fatalf("an allocation at %#x, where an alias is, %d bytes of memory", uint64(z), w.r.physical.total())
	}
	use(z) // x is on the host again
	if w.r.stats.AliasedRanges != before+1 {
		t.Error("when its memory was free, the alias was no dead range")
	}
	if found := aliases(); len(found) != 1 || found[0] != y {
		t.Fatalf("mapped to memory that is another's: %#x, want %#x", found, y)
	}
	w.free(z)
	use(w.malloc(size/2, 0)) // memory of another size: that of z goes
	if found := aliases(); len(found) != 0 {
		t.Errorf("mapped to memory that is gone: %#x", found)
	}
}

// TestMostAliases: each alias is unmapped before memory can go, so that there are only so many.
func TestMostAliases(t *testing.T) {
	w := newWorld(t, 1, 8*PageBytes, 256*PageBytes, true)
	var ranges []*tensor
	for range mostAliases + 2 {
		p := w.malloc(4*PageBytes, 0)
		g := w.r.ByPtr[p]
		ranges = append(ranges, &tensor{base: g.base, size: g.size, chunks: []chunk{{bytes: g.size, where: onDevice, handle: 5}}})
	}
	m := &Move{Kind: MoveMap}
	for _, g := range ranges {
		w.r.lend(m, g)
	}
	if n := len(w.r.physical.aliases[5]); n != mostAliases || len(m.Unmap) != 2 || m.Unmap[0].Base != ranges[0].base || len(m.dead) != 2 {
		t.Errorf("%d aliases, unmapped %v", n, m.Unmap)
	}
}
