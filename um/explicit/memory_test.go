package explicit

import (
	"errors"
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
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

// hostLimited is a process with so much host memory.
type hostLimited struct {
	bystander
	left int64
}

func (h *hostLimited) TakeHost(bytes int64) ([]cuda.Range, bool) {
	if bytes > h.left {
		return nil, false
	}
	h.left -= bytes
	return h.bystander.TakeHost(bytes)
}

func (h *hostLimited) GiveHost(extents []cuda.Range) {
	for _, e := range extents {
		h.left += e.Bytes
	}
}

// TestFullBudgetsExchange: a job that allocates until it is told that there is no more can use all that it got, one after
// the other: something can always leave before something else comes.
func TestFullBudgetsExchange(t *testing.T) {
	for _, bytes := range []int64{PageBytes, 8 << 20, 16<<20 - PageBytes} {
		t.Run(size.Text(bytes), func(t *testing.T) {
			const budget = 64 << 20
			h := &hostLimited{*newBystander(), budget}
			r := New(Config{BudgetBytes: budget, HostBudgetBytes: budget, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 30}, Victims: evict.LRU}, h)
			next := cuda.Handle(77)
			moves := func() {
				for looks := 0; looks < 4; looks++ {
					m, ok := r.Next(um.Direction(looks % 2))
					if !ok {
						continue
					}
					if m.Handle == 0 && m.Kind != MoveTrim {
						next++
						m.Handle = next
					}
					r.Done(m)
					looks = -1
				}
			}
			seq := uint64(0)
			use := func(slot int) {
				seq++
				r.Op(um.Op{Seq: seq, Slots: []uint32{uint32(slot)}, Name: "kernel"})
				moves()
				if !r.Ready(seq) {
					t.Fatalf("it waits with %d tensors: %s", slot, r.Explain())
				}
				r.Progress(0, seq)
			}
			n := 0
			for ; ; n++ {
				if _, err := r.Malloc(bytes, 0); err != nil {
					if !errors.Is(err, um.ErrOutOfMemory) || r.PlainFits(bytes) {
						t.Fatalf("%v; plain memory may grow: %v", err, r.PlainFits(bytes))
					}
					break
				}
				use(n + 1)
			}
			if int64(n)*bytes < budget+budget/4 {
				t.Errorf("only %d tensors", n)
			}
			for i := range 3 * n {
				use(i%n + 1)
			}
			if s := r.Stats(); s.FetchedBytes == 0 || s.InPlaceBytes != 0 {
				t.Errorf("%d bytes fetched, %d used in place", s.FetchedBytes, s.InPlaceBytes)
			}
		})
	}
}
