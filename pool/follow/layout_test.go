package follow

import "testing"

// TestContaining: an allocation is found by any offset in it, and free space by none.
func TestContaining(t *testing.T) {
	l := NewLayout(4096, 1, func(uint64, uint64, bool) bool { return true })
	if !l.Place(1024, 512, 500, 1) {
		t.Fatal("not placed")
	}
	for offset, want := range map[int64]bool{0: false, 1023: false, 1024: true, 1535: true, 1536: false, 5000: false} {
		from, bytes, ok := l.Containing(offset)
		if ok != want || ok && (from != 1024 || bytes != 512) {
			t.Errorf("offset %d: %d bytes at %d, %t", offset, bytes, from, ok)
		}
	}
}
