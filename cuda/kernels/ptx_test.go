package kernels

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
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

func TestPTXScan(t *testing.T) {
	m := parse(t, ptx(), scanName)
	const lo, hi = cuda.Ptr(1000), cuda.Ptr(1900)
	r := rand.New(rand.NewPCG(3, 4))
	for _, offset := range []int{0, 8} {
		for _, count := range []int{1, 2, 3, 8, 33, 64, 65, 200, 1001} {
			for _, room := range []int{1, 5, 2000} {
				b := aligned(count*8, offset)
				w := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), count)
				for i := range w {
					w[i] = r.Uint64N(2000)
				}
				w[0], w[count-1] = uint64(lo), uint64(hi)-1
				list := heap[uint64](1 + room + 1)
				list[room+1] = 77
				m.run(t, 2, 16, address(b), uint64(count), uint64(lo), uint64(hi-lo), uint64(uintptr(unsafe.Pointer(&list[0]))), uint64(room))
				var want []uint64
				for _, p := range Find(b, lo, hi) {
					want = append(want, uint64(p))
				}
				if list[0] != uint64(len(want)) || list[room+1] != 77 {
					t.Fatalf("%d words at offset %d: %d found, want %d; behind the list %d", count, offset, list[0], len(want), list[room+1])
				}
				got := list[1 : 1+min(room, len(want))]
				slices.Sort(got)
				slices.Sort(want)
				if room >= len(want) && !slices.Equal(got, want) {
					t.Fatalf("%d words at offset %d: found %v, want %v", count, offset, got, want)
				}
				for _, g := range got {
					if !slices.Contains(want, g) {
						t.Fatalf("%d is in the list but not in range", g)
					}
				}
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
