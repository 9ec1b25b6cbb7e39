package kernels

import (
	"errors"
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
	for i, x := range []uint64{5, 100, 101, 6, 102, 103, 104, 7} { // copy(words(...)) ends go1.26.8's compiler
		memory[i] = x
	}
	for range 2 { // a second search starts anew
		for _, e := range []error{
			f.Begin(s), f.Scan(cuda.Range{Base: p, Bytes: 24}, 100, 200, s), f.Scan(cuda.Range{Base: p + 24, Bytes: 40}, 100, 200, s),
			f.Scan(cuda.Range{Base: p, Bytes: 64}, 200, 100, s), f.Scan(cuda.Range{Base: p, Bytes: 7}, 0, 200, s), f.End(s), d.StreamSynchronize(s),
		} {
			if e != nil {
				t.Fatal(e)
			}
		}
		if kept, total := f.Found(); total != 5 || len(kept) != 3 || kept[0] != 100 || kept[2] != 102 {
			t.Errorf("kept %v of %d", kept, total)
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
	if err := f.Scan(cuda.Range{Base: 0x1004, Bytes: 16}, 1, 2, 0); err == nil {
		t.Error("a scan of addresses between the words")
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
