package stitch

import (
	"errors"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/internal/model"
)

const mib = 1 << 20

// fixture is a pool over a machine, and what is live in it.
type fixture struct {
	t *testing.T
	m *model.Machine
	p *Pool
	n map[cuda.Ptr]int64
}

func newFixture(t *testing.T, c Config, capacity int64) *fixture {
	t.Helper()
	m := model.New(capacity)
	p, err := New(c, m, m, m)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, m, p, map[cuda.Ptr]int64{}}
}

func (f *fixture) malloc(bytes int64, stream uint64) cuda.Ptr {
	f.t.Helper()
	q, err := f.p.Malloc(bytes, stream)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.m.Claim(q, bytes, stream); err != nil {
		f.t.Fatal(err)
	}
	f.n[q] = bytes
	f.check()
	return q
}

func (f *fixture) free(q cuda.Ptr, streams ...uint64) {
	f.t.Helper()
	if err := f.m.Release(q, f.n[q], streams); err != nil {
		f.t.Fatal(err)
	}
	if err := f.p.Free(q); err != nil {
		f.t.Fatal(err)
	}
	delete(f.n, q)
	f.check()
}

func (f *fixture) check() {
	f.t.Helper()
	if err := f.p.Check(); err != nil {
		f.t.Fatal(err)
	}
}

// scattered makes so many free holes of some MiB, kept apart by 2 MiB that are live.
func (f *fixture) scattered(holes int, bytes int64) {
	var all []cuda.Ptr
	for range holes {
		all = append(all, f.malloc(bytes, 1))
		f.malloc(2*mib, 1)
	}
	for _, q := range all {
		f.free(q, 1)
	}
}

// TestStates goes through those of the paper.
func TestStates(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	f.scattered(4, 16*mib)
	reserved := f.p.Stats().ReservedBytes
	if q := f.malloc(16*mib, 1); f.p.Stats().ReservedBytes != reserved {
		t.Error("an exact block was not taken")
	} else {
		f.free(q, 1)
	}
	if q := f.malloc(6*mib, 1); f.p.Stats().ReservedBytes != reserved {
		t.Error("a single larger block was not cut")
	} else {
		f.free(q, 1)
	}
	q := f.malloc(50*mib+512, 1)
	if s := f.p.Stats(); s.Stitches != 1 || s.ReservedBytes != reserved {
		t.Errorf("%+v: want several blocks stitched and nothing created", s)
	}
	// The rest of the last chunk is not lost, nor is the range when it is free.
	f.malloc(12*mib, 1)
	f.free(q, 1)
	q = f.malloc(49*mib, 1)
	if s := f.p.Stats(); s.Stitches != 1 || s.StitchReuses != 1 || s.ReservedBytes != reserved {
		t.Errorf("%+v: want the range used again", s)
	}
	f.free(q, 1)
	f.malloc(80*mib, 1)
	if s := f.p.Stats(); s.Stitches != 2 || s.ReservedBytes >= reserved+80*mib-40*mib {
		t.Errorf("%+v: want the shortfall alone created, and stitched", s)
	}
	if _, err := f.p.Malloc(2<<30, 1); !errors.Is(err, model.ErrFull) {
		t.Errorf("2 GiB of 1: %v", err)
	}
	f.check()
}

// TestLastResort: what several streams and pieces hold serves a request when there
// is nothing else, whatever the strategy but Never.
func TestLastResort(t *testing.T) {
	for _, c := range []Config{{}, {Strategy: Lazy}, {Strategy: Lazy, MinBytes: 1 << 40}} {
		f := newFixture(t, c, 128*mib)
		f.scattered(7, 16*mib) // 112 MiB free or 126 in all
		f.m.Queue(1)
		f.malloc(100*mib, 2) // waits for stream 1
		if s := f.p.Stats(); s.ReservedBytes > 128*mib {
			t.Errorf("%+v", s)
		}
	}
	f := newFixture(t, Config{Strategy: Never}, 128*mib)
	f.scattered(7, 16*mib)
	if q, err := f.p.Malloc(100*mib, 1); err == nil { // by giving all back and asking again it may
		f.n[q] = 100 * mib
	}
	f.check()
}

// TestRefusals: whatever call the driver refuses, nothing is lost.
func TestRefusals(t *testing.T) {
	for _, call := range []string{"create", "reserve", "map", "access"} {
		for skip := range 40 {
			f := newFixture(t, Config{}, 1<<30)
			f.scattered(3, 16*mib)
			n := 0
			f.m.Fail = func(name string) bool {
				if name == call {
					n++
				}
				return name == call && n > skip && n <= skip+3
			}
			for _, bytes := range []int64{40 * mib, 90 * mib, 3 * mib} {
				if q, err := f.p.Malloc(bytes, 1); err == nil {
					if err := f.m.Claim(q, bytes, 1); err != nil {
						t.Fatal(err)
					}
					f.n[q] = bytes
				}
				f.check()
			}
			f.m.Fail = nil
			for q := range f.n {
				f.free(q, 1)
			}
			f.p.EmptyCache()
			if physical, taken, mappings, ranges := f.m.Left(); physical != 0 || taken != 0 || mappings != 0 || ranges > 2 {
				t.Errorf("%s refused after %d: %d bytes of handles, %d taken, %d mappings, %d ranges are left", call, skip, physical, taken, mappings, ranges)
			}
		}
	}
}

// TestStitchFree: the least recently used range is given up, when its stream is done.
func TestStitchFree(t *testing.T) {
	f := newFixture(t, Config{SpaceBytes: 70 * mib}, 1<<30)
	f.scattered(4, 16*mib)
	for _, bytes := range []int64{40 * mib, 60 * mib, 40 * mib} {
		q := f.malloc(bytes, 1)
		f.m.Queue(1)
		f.free(q, 1)
	}
	if s := f.p.Stats(); s.StitchedBytes > 70*mib || s.StitchFrees == 0 {
		t.Errorf("%+v: more addresses than allowed", s)
	}
}

// TestRange lends chunks, and takes them back in parts.
func TestRange(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	f.scattered(6, 16*mib)
	r, err := f.p.Prepare(60*mib, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	busy := f.malloc(4*mib, 1) // in one of the chunks, perhaps
	if err := r.Map(); err != nil {
		t.Fatal(err)
	}
	if !f.p.Activate(r, 1) {
		t.Fatal("the range was not taken, with free chunks to exchange")
	}
	if err := f.m.Claim(r.Base(), r.Bytes(), 1); err != nil {
		t.Fatal(err)
	}
	f.check()
	if err := f.m.Release(r.Base(), r.Bytes(), []uint64{1}); err != nil {
		t.Fatal(err)
	}
	f.p.Shed(r, 1, func(offset, _ int64) bool { return offset < 20*mib })
	f.check()
	f.p.Close(r, 1)
	f.free(busy, 1)
	if _, err := f.p.Prepare(1<<30, 1, 0); err == nil {
		t.Error("a range of more than is free, with nothing to be created")
	}
	for q := range f.n {
		f.free(q, 1)
	}
	f.p.EmptyCache()
	if physical, _, mappings, ranges := f.m.Left(); physical != 0 || mappings != 0 || ranges > 2 {
		t.Errorf("%d bytes of handles, %d mappings, %d ranges are left", physical, mappings, ranges)
	}
}

func TestBadConfig(t *testing.T) {
	m := model.New(1 << 30)
	for _, c := range []Config{{Strategy: 7}, {MinBytes: -1}, {ReuseRatio: 0.5}, {SpaceBytes: -1}} {
		if _, err := New(c, m, m, m); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	p, err := New(Config{}, m, m, m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Malloc(0, 0); err == nil {
		t.Error("0 bytes are allocated")
	}
	if p.Free(512) == nil {
		t.Error("what is not live is freed")
	}
}

// TestContaining: by any address in a live allocation, also in a stitched one.
func TestContaining(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	f.scattered(4, 16*mib)
	q := f.malloc(50*mib, 1)
	if f.p.Stats().Stitches != 1 {
		t.Fatal("nothing was stitched")
	}
	for _, at := range []cuda.Ptr{q, q + 33*mib, q + 50*mib - 1} {
		if r, ok := f.p.Containing(at); !ok || r.Base != q || r.Bytes != 50*mib {
			t.Errorf("%#x: %+v, %t", uint64(at), r, ok)
		}
	}
	if _, ok := f.p.Containing(q + 50*mib); ok {
		t.Error("an address behind it is found")
	}
	f.free(q, 1)
	if _, ok := f.p.Containing(q); ok {
		t.Error("what was freed is found")
	}
}
