package kernels

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"
)

// heap is memory that stays where it is, unlike a small slice on a stack: the
// machine knows it by its address.
//
//go:noinline
func heap[T any](n int) []T { return make([]T, n) }

// aligned is memory at a multiple of 16, with offset more bytes before it.
func aligned(bytes, offset int) []byte {
	b := heap[byte](bytes + offset + 16)
	for uintptr(unsafe.Pointer(&b[0]))%16 != 0 {
		b = b[1:]
	}
	return b[offset : offset+bytes]
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func randomBytes(b []byte, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestPTXChecksum(t *testing.T) {
	m := parse(t, ptx(), checksumName)
	for _, c := range []struct{ bytes, blocks, threads int }{
		{1, 1, 8}, {7, 1, 8}, {8, 2, 8}, {15, 1, 8}, {16, 3, 8}, {17, 1, 1}, {24, 1, 2}, {1000, 2, 16},
		{16 * 4 * 16, 1, 16}, {16*4*16 + 9, 1, 16}, {16*4*32*3 + 16*5 + 3, 2, 16}, {20_000, 3, 32}, {64 << 10, 1, blockThreads},
	} {
		b := randomBytes(aligned(c.bytes, 0), uint64(c.bytes))
		out := heap[Sum128](c.blocks + 1)
		m.run(t, c.blocks, c.threads, address(b), uint64(c.bytes/16), uint64(c.bytes%16), uint64(uintptr(unsafe.Pointer(&out[0]))))
		var got Sum128
		for _, s := range out[:c.blocks] {
			got[0] += s[0]
			got[1] += s[1]
		}
		if want := Sum(b); got != want {
			t.Errorf("%d bytes in %d blocks of %d threads: %v, want %v", c.bytes, c.blocks, c.threads, got, want)
		}
		if out[c.blocks] != (Sum128{}) {
			t.Errorf("%d blocks wrote more than their sums", c.blocks)
		}
	}
}

// TestPTXSearch: what scan finds in several pieces and collect copies is what Find finds, of both spans.
func TestPTXSearch(t *testing.T) {
	scan, collect := parse(t, ptx(), scanName), parse(t, ptx(), collectName)
	of := [spans]Span{{1000, 1900}, {1950, 1960}}
	r := rand.New(rand.NewPCG(3, 4))
	for _, offset := range []int{0, 8} {
		for _, sizes := range [][]int{{1}, {2}, {3}, {8}, {33, 1}, {64}, {65, 2, 64}, {200}, {1001, 7}} {
			for _, room := range []int{1, 5, 2000} {
				table := heap[uint64](2 * len(sizes))
				var want [spans][]uint64
				var pieces [][]byte
				for i, count := range sizes {
					b := aligned(count*8, offset)
					pieces = append(pieces, b)
					w := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), count)
					for i := range w {
						w[i] = r.Uint64N(2000)
					}
					w[0], w[count-1] = uint64(of[0].Lo), uint64(of[0].Hi)-1
					table[2*i], table[2*i+1] = address(b), uint64(count)
					for k, span := range of {
						for _, p := range Find(b, span) {
							want[k] = append(want[k], uint64(p))
						}
					}
				}
				at := func(w []uint64) uint64 { return uint64(uintptr(unsafe.Pointer(&w[0]))) }
				counts, copied, lists := heap[uint64](spans+1), heap[uint64](spans+1), heap[uint64](spans*room+1)
				for _, w := range [][]uint64{counts, copied, lists} {
					w[len(w)-1] = 77
				}
				for range 2 { // the second time with counts that the first has made 0
					scan.run(t, len(pieces), 16, at(table), at(counts), at(lists), uint64(room),
						uint64(of[0].Lo), of[0].addresses(), uint64(of[1].Lo), of[1].addresses())
					collect.run(t, 1, 1, at(counts), at(copied))
				}
				for _, w := range [][]uint64{counts, copied, lists} {
					if w[len(w)-1] != 77 {
						t.Fatalf("%v words: something was written behind the lists", sizes)
					}
				}
				for k := range of {
					list, found := lists[k*room:][:room], copied[k]
					if counts[k] != 0 {
						t.Fatalf("%v words: the count is not made 0", sizes)
					}
					if found != uint64(len(want[k])) {
						t.Fatalf("%v words at offset %d: %d found of span %d, want %d", sizes, offset, found, k, len(want[k]))
					}
					got := list[:min(room, len(want[k]))]
					slices.Sort(got)
					slices.Sort(want[k])
					if room >= len(want[k]) && !slices.Equal(got, want[k]) {
						t.Fatalf("%v words at offset %d: found %v, want %v", sizes, offset, got, want[k])
					}
					for _, g := range got {
						if !slices.Contains(want[k], g) {
							t.Fatalf("%d is in the list but not in span %d", g, k)
						}
					}
				}
				runtime.KeepAlive(pieces)
			}
		}
	}
}

// NVIDIA's assembler, where there is one, has the last word on the text.
func TestPTXAssembles(t *testing.T) {
	ptxas, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("no ptxas on this machine")
	}
	file := filepath.Join(t.TempDir(), "k.ptx")
	if err := os.WriteFile(file, []byte(ptx()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(ptxas, "-arch=sm_90", "-Werror", "-o", file+".o", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
