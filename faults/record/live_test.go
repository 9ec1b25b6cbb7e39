package record

import (
	"math/rand"
	"testing"
)

// TestLive compares it with a map, over addresses few enough to collide and to be reused.
func TestLive(t *testing.T) {
	draw := rand.New(rand.NewSource(1))
	var l Live
	want := map[uint64]uint64{}
	if _, ok := l.Take(512); ok {
		t.Error("something is taken out of nothing")
	}
	for n := uint64(1); n < 300_000; n++ {
		address := uint64(1+draw.Intn(6000)) << 9
		if n > 200_000 {
			address = uint64(1+draw.Intn(20)) << 9 // nearly all of it goes
		}
		id, live := want[address]
		if got, ok := l.Find(address); got != id || ok != live {
			t.Fatalf("step %d: %x is %d, %t, want %d, %t", n, address, got, ok, id, live)
		}
		if draw.Intn(2) == 0 {
			l.Put(address, n)
			want[address] = n
			continue
		}
		if got, ok := l.Take(address); got != id || ok != live {
			t.Fatalf("step %d: taken from %x is %d, %t, want %d, %t", n, address, got, ok, id, live)
		}
		delete(want, address)
	}
	for address, id := range want {
		if got, ok := l.Take(address); got != id || !ok {
			t.Fatalf("in the end %x is %d, %t, want %d", address, got, ok, id)
		}
	}
	if l.used != 0 {
		t.Errorf("%d are left", l.used)
	}
	for _, s := range l.slots {
		if s != (liveSlot{}) {
			t.Fatalf("%+v is left", s)
		}
	}
}

func BenchmarkLive(b *testing.B) {
	var l Live
	for i := range 2700 {
		l.Put(uint64(i+1)<<9, uint64(i))
	}
	for i := 0; b.Loop(); i++ {
		address := uint64(i*7919%2700+1) << 9
		l.Take(address)
		l.Put(address, uint64(i))
	}
}

func BenchmarkMap(b *testing.B) {
	l := map[uint64]uint64{}
	for i := range 2700 {
		l[uint64(i+1)<<9] = uint64(i)
	}
	for i := 0; b.Loop(); i++ {
		address := uint64(i*7919%2700+1) << 9
		_ = l[address]
		delete(l, address)
		l[address] = uint64(i)
	}
}
