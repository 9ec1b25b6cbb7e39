package follow

import "testing"

// TestContaining: an allocation is found by any offset in it, and free space by none.
func TestContaining(t *testing.T) {
	l := NewLayout(4096, 1, 0, func(uint64, uint64, bool) bool { return true })
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

// TestAnotherStreamWaits: what was handed over for one stream is for another only once the first one's work there is
// done, and so is what it has used since.
func TestAnotherStreamWaits(t *testing.T) {
	passed := map[uint64]uint64{1: 6}
	l := NewLayout(4096, 1, 7, func(stream, freed uint64, _ bool) bool { return freed <= passed[stream] })
	if l.Place(0, 512, 500, 2) || l.MayUseAll(2) || !l.MayUseAll(1) {
		t.Error("stream 2 may use memory that stream 1 is not done with")
	}
	if passed[1] = 7; !l.Place(0, 512, 500, 2) {
		t.Fatal("stream 2 may not use what stream 1 is done with")
	}
	if err := l.Free(0, 1); err != nil {
		t.Fatal(err)
	}
	if l.MayUseAll(1) {
		t.Error("stream 1 may use memory that stream 2 is not done with")
	}
	if passed[2] = 1; !l.MayUseAll(1) || !l.Place(1024, 512, 500, 1) {
		t.Fatal("stream 1 may not use what stream 2 is done with")
	}
	l.HasUsedAll(1, 9)
	if err := l.Check(4096); err != nil {
		t.Error(err)
	}
	if l.Place(2048, 512, 500, 2) || !l.Place(2048, 512, 500, 1) {
		t.Error("what stream 1 has used since is not its own")
	}
	if passed[1] = 9; !l.Place(0, 1024, 1000, 2) {
		t.Error("stream 2 may not use what stream 1 is done with")
	}
}
