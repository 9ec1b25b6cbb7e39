package kernels

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// What the checksum of given bytes is does not change: the device code, the Go
// function and the test double agree on these.
func TestSumIsFixed(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "00000000000000000000000000000000",
		"a":                  "ce6575f45d4dc699ae559da53fe12d66",
		"penstock":           "488a9623a4c465286cc4169b1d050a36",
		"a penstock conduct": "0b15749fa6590cd07b556006c440ee6b",
	} {
		if got := Sum([]byte(text)).String(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// Any single bit, any two words changed places, and zeros of another length show in both sums.
func TestSumSeesChanges(t *testing.T) {
	b := randomBytes(make([]byte, 4096), 1)
	whole := Sum(b)
	differs := func(what string, at int, got Sum128) {
		t.Helper()
		if got[0] == whole[0] || got[1] == whole[1] {
			t.Errorf("%s at %d: %v and %v", what, at, got, whole)
		}
	}
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		differs("a flipped bit", bit, Sum(b))
		b[bit/8] ^= 1 << (bit % 8)
	}
	for i := 0; i+16 <= len(b); i += 8 {
		swap := func() {
			for k := range 8 {
				b[i+k], b[i+8+k] = b[i+8+k], b[i+k]
			}
		}
		swap()
		differs("exchanged words", i, Sum(b))
		swap()
	}
	differs("a rotation", 8, Sum(append(append([]byte{}, b[8:]...), b[:8]...)))
	zeros := map[Sum128]int{}
	for n := 8; n <= 8192; n += 8 {
		zeros[Sum(make([]byte, n))]++
	}
	if len(zeros) != 1024 {
		t.Errorf("%d checksums of 1024 lengths of zeros", len(zeros))
	}
}

// Half of the bits of each sum change with any bit of the input, also in low-entropy data.
func TestSumMixes(t *testing.T) {
	for _, pattern := range []uint64{0, ^uint64(0), 0x3c003c003c003c00, 0x12345678_9abcdef0} {
		for half := range 2 {
			for bit := range 64 {
				flips := 0
				for i := range uint64(256) {
					var a, b Sum128
					a.add(pattern, i)
					b.add(pattern^1<<bit, i)
					flips += bits.OnesCount64(a[half] ^ b[half])
				}
				if mean := float64(flips) / 256; mean < 28 || mean > 36 {
					t.Errorf("sum %d of %#x: bit %d changes %.1f bits of 64", half, pattern, bit, mean)
				}
			}
		}
	}
}

// Each sum alone, cut to 20 bits, collides about as often as chance has it.
func TestSumCollides(t *testing.T) {
	const tries = 4096
	var got [2]int
	seen := [2]map[uint64]bool{{}, {}}
	var b [64]byte
	for i := range uint64(tries) {
		binary.LittleEndian.PutUint64(b[8:], i) // counters in zeros: as structured as data gets
		binary.LittleEndian.PutUint64(b[40:], -i)
		s := Sum(b[:])
		for h := range seen {
			cut := s[h] & (1<<20 - 1)
			if seen[h][cut] {
				got[h]++
			}
			seen[h][cut] = true
		}
	}
	for h, n := range got { // tries²/2 / 2^20 = 8 expected
		if n > 24 {
			t.Errorf("sum %d: %d collisions, chance would have about 8", h, n)
		}
	}
}

func TestFind(t *testing.T) {
	b := make([]byte, 8*6+7)
	for i, w := range []uint64{9, 10, 19, 20, 15, 0} {
		binary.LittleEndian.PutUint64(b[i*8:], w)
	}
	got := Find(b, Span{10, 20})
	if len(got) != 3 || got[0] != 10 || got[1] != 19 || got[2] != 15 {
		t.Errorf("found %v", got)
	}
	if Find(b[:7], Span{0, 1 << 63}) != nil || Find(b, Span{20, 10}) != nil {
		t.Error("found something in nothing")
	}
}

func BenchmarkSum(b *testing.B) {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		Sum(data)
	}
}
