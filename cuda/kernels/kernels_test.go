package kernels

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/cudastub"
)

func TestOnTheStubDriver(t *testing.T) {
	d := cudastub.Open(t)
	k, err := Load(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Check(3<<20 + 8); err != nil {
		t.Error(err)
	}
	if free, total, err := d.MemInfo(); err != nil || free != total {
		t.Errorf("%d of %d bytes free after the check: %v", free, total, err)
	}
	if err := k.Unload(); err != nil {
		t.Error(err)
	}
}

func TestFullList(t *testing.T) {
	d := cudastub.Open(t)
	k, err := Load(d)
	if err != nil {
		t.Fatal(err)
	}
	f, err := k.NewFinder(3)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, _ := d.StreamCreate()
	p, err := d.HostAlloc(64)
	if err != nil {
		t.Fatal(err)
	}
	memory := words(p, 8)
	//lint:ignore S1001 copy(words(...)) ends go1.26.8's compiler
	for i, x := range []uint64{5, 100, 101, 6, 102, 103, 104, 7} {
		memory[i] = x
	}
	for range 2 { // a second search starts anew
		for _, e := range []error{
			f.Search([]cuda.Range{{Base: p, Bytes: 24}, {Base: p + 21, Bytes: 43}, {Base: p, Bytes: 7}}, [spans]Span{{100, 200}, {200, 100}}, s), d.StreamSynchronize(s),
		} {
			if e != nil {
				t.Fatal(e)
			}
		}
		if kept, total := f.Found(0); total != 5 || len(kept) != 3 || kept[0] != 100 || kept[2] != 102 {
			t.Errorf("kept %v of %d", kept, total)
		}
		if kept, total := f.Found(1); total != 0 || len(kept) != 0 {
			t.Errorf("kept %v of %d in an empty span", kept, total)
		}
	}
}

func TestBadCalls(t *testing.T) {
	d := cudastub.Open(t)
	k, err := Load(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []cuda.Range{{Base: 0, Bytes: 16}, {Base: 0x1008, Bytes: 16}, {Base: 0x1000, Bytes: 0}, {Base: 0x1000, Bytes: -1}} {
		if err := k.Checksum(r, 0x2000, 0); err == nil || !strings.Contains(err.Error(), "multiple of 16") {
			t.Errorf("checksum of %+v: %v", r, err)
		}
	}
	if _, err := k.NewFinder(0); err == nil {
		t.Error("a finder of nothing")
	}
	f, err := k.NewFinder(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Search([]cuda.Range{{Base: 0, Bytes: 16}}, [spans]Span{{1, 2}}, 0); err == nil {
		t.Error("a search of no memory")
	}
	if err := f.Search(make([]cuda.Range, mostPieces), [spans]Span{{1, 2}}, 0); err == nil || !strings.Contains(err.Error(), fmt.Sprint(mostPieces/2, " are possible")) {
		t.Errorf("a search of too many ranges: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// miscounting is a card whose kernels do nothing.
type miscounting struct{ cuda.Driver }

func (miscounting) Launch(cuda.Function, [3]uint32, [3]uint32, cuda.Stream, ...uint64) error {
	return nil
}

func TestLoadRefusesAWrongCard(t *testing.T) {
	if _, err := Load(miscounting{cudastub.Open(t)}); err == nil || !strings.Contains(err.Error(), "it should be") {
		t.Errorf("a card that computes nothing: %v", err)
	}
	if _, err := Load(cudastub.Open(t, "STUB_FAIL=cuMemAlloc:2")); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("no memory: %v", err)
	}
	if _, err := Load(sim.New(sim.Profiles()[0], sim.Options{}).Thread("t")); !errors.Is(err, cuda.ErrNotSupported) {
		t.Errorf("simulated: %v", err)
	}
}

// TestPieces: ranges are cut into no more pieces than the table holds, and all of their words are in one.
func TestPieces(t *testing.T) {
	k, err := Load(cudastub.Open(t))
	if err != nil {
		t.Fatal(err)
	}
	f, err := k.NewFinder(1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	many := make([]cuda.Range, mostPieces/2)
	for i := range many {
		many[i] = cuda.Range{Base: cuda.Ptr(1+i) << 40, Bytes: 1 << 20}
	}
	for _, ranges := range [][]cuda.Range{
		{{Base: 1 << 40, Bytes: 8}}, {{Base: 1<<40 + 3, Bytes: 8}}, {{Base: 1<<40 + 8, Bytes: leastPieceBytes}}, {{Base: 1 << 40, Bytes: leastPieceBytes + 8}},
		{{Base: 1 << 40, Bytes: 130 << 30}}, {{Base: 1<<40 + 24, Bytes: 9<<30 + 1}, {Base: 1 << 50, Bytes: 1 << 20}}, many,
	} {
		n, err := f.cut(ranges)
		if err != nil || n > mostPieces {
			t.Fatalf("%d ranges, the first of %d bytes: %d pieces, %v", len(ranges), ranges[0].Bytes, n, err)
		}
		table := words(f.table(), mostPieces*pieceBytes/8)
		for _, r := range ranges {
			at, end := (r.Base+7)&^7, r.End()&^7
			for ; n > 0 && at < end && cuda.Ptr(table[0]) == at; n, table = n-1, table[2:] {
				at += cuda.Ptr(8 * table[1])
			}
			if at != max(end, (r.Base+7)&^7) {
				t.Fatalf("range %+v: up to %#x is in a piece", r, uint64(at))
			}
		}
		if n != 0 {
			t.Errorf("%d ranges, the first of %d bytes: %d more pieces", len(ranges), ranges[0].Bytes, n)
		}
	}
}
