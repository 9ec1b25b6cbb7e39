package explicit

import (
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/short"
)

// TestAddressesOfEverNewSizes: a job whose sizes never come again finds addresses as
// long as most of them are free.
func TestAddressesOfEverNewSizes(t *testing.T) {
	const pages = 64 << 10
	space := cuda.Range{Base: 1 << 40, Bytes: pages * PageBytes}
	a := newAddresses(space)
	rng := rand.New(rand.NewSource(1))
	var held []cuda.Range
	var used int64
	for range short.Of(50_000, 10_000) {
		size := int64(1+rng.Intn(pages/64)) * PageBytes
		for used+size > space.Bytes/16 {
			k := rng.Intn(len(held))
			a.give(held[k].Base, held[k].Bytes)
			used -= held[k].Bytes
			held[k] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		p, ok := a.take(size)
		if !ok {
			t.Fatalf("no addresses for %d pages with %d of %d in use", size/PageBytes, used/PageBytes, pages)
		}
		r := cuda.Range{Base: p, Bytes: size}
		if p < space.Base || r.End() > space.End() {
			t.Fatalf("%+v lies outside", r)
		}
		for _, h := range held {
			if r.Base < h.End() && h.Base < r.End() {
				t.Fatalf("%+v overlaps %+v", r, h)
			}
		}
		held = append(held, r)
		used += size
	}
	for _, h := range held {
		a.give(h.Base, h.Bytes)
	}
	a.gather()
	if a.next != space.Base {
		t.Errorf("%d bytes are still out when everything was given back", int64(a.next-space.Base))
	}
}

// TestAddressesComeBack: the same sizes get the same addresses again.
func TestAddressesComeBack(t *testing.T) {
	a := newAddresses(cuda.Range{Base: 1 << 40, Bytes: 1 << 30})
	first := map[int]cuda.Ptr{}
	for round := range 3 {
		for i := range 10 {
			p, _ := a.take(int64(1+i%4) * PageBytes)
			if round == 0 {
				first[i] = p
			} else if p != first[i] {
				t.Fatalf("round %d: allocation %d is at %#x, not %#x", round, i, uint64(p), uint64(first[i]))
			}
		}
		for i := 9; i >= 0; i-- {
			a.give(first[i], int64(1+i%4)*PageBytes)
		}
	}
}
