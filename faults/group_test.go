package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

func TestGroupBindsWhatAccepts(t *testing.T) {
	k := newFake(580)
	g := &Group{pid: os.Getpid(), pidfd: -1}
	if err := g.bind(Options{Entries: 64}, k, []int{20, 21}, []int{0, 1}); err != nil {
		t.Fatal(err)
	}
	if len(g.queues) != 1 || g.Coverage().Source != "uvm-tools" || !g.Alive() {
		t.Fatalf("%d queues", len(g.queues))
	}
	q := g.queues[0]
	p := &producer{queue: q.queue[:64*EntryBytes], control: q.controls, mask: 63}
	p.send(faultEntry(2, 1, 1, 0x7f0000200000, 5, 3))
	if e := g.Drain(nil); len(e) != 1 || e[0].Batch != 3 {
		t.Errorf("%+v", e)
	}
	if err := g.Flush(); err != nil || k.flushes != 1 {
		t.Errorf("flush: %v", err)
	}
	if err := g.Close(); err != nil || len(k.open) != 0 || g.Lost().Total() != 0 {
		t.Errorf("close: %v, open %v", err, k.open)
	}
}

func TestGroupWithoutSpace(t *testing.T) {
	for name, fds := range map[string][]int{"no descriptor": nil, "none that owns one": {20}} {
		k := newFake(580)
		g := &Group{pid: os.Getpid(), pidfd: -1}
		err := g.bind(Options{Entries: 64}, k, fds, fds)
		var u *Unavailable
		if !errors.As(err, &u) || !errors.Is(err, ErrNoSpace) || len(k.open) != 0 {
			t.Errorf("%s: %v, open %v", name, err, k.open)
		}
	}
}

// Of several descriptors the one that owns the managed memory is listened to.
func TestOwners(t *testing.T) {
	maps := filepath.Join(t.TempDir(), "maps")
	text := "7f0000000000-7f0000200000 rw-s 00000000 00:05 1 /dev/nvidia-uvm\n7f1000000000-7f1000400000 rw-s 00000000 00:05 1 /dev/nvidia-uvm\n" +
		"7f2000000000-7f2000400000 rw-p 00000000 00:00 0\nrubbish-zz /dev/nvidia-uvm\n"
	if err := os.WriteFile(maps, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if base, bytes := managedMapping(maps); base != 0x7f1000000000 || bytes != 4<<20 {
		t.Errorf("%#x, %d bytes", base, bytes)
	}
	k := newFake(580)
	k.fds = []int{20, 21, 22}
	if got := ownersOf(k, k.fds, maps); len(got) != 1 || got[0] != 21 {
		t.Errorf("owners %v", got)
	}
	if got := ownersOf(k, k.fds, maps+"x"); got != nil {
		t.Errorf("without mappings: %v", got)
	}
}

// The driver's own counters are read against their start.
func TestCounters(t *testing.T) {
	k := newFake(560)
	s, err := open(Options{Entries: 64}, k)
	if err != nil {
		t.Fatal(err)
	}
	k.counting = true
	c, err := s.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if k.counters != 1<<0|1<<1|1<<2|1<<9 {
		t.Errorf("counters %#x are on", k.counters)
	}
	for i, v := range []uint64{5, 6, 7, 0, 0, 0, 0, 0, 0, 8} {
		binary.LittleEndian.PutUint64(c.page[8*i:], v)
	}
	if got := c.Read(); got != (Sums{5, 6, 7, 8}) {
		t.Errorf("%+v", got)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	k.refuse[ioctlEnableCounters] = 0x1f
	var u *Unavailable
	if _, err := s.Counters(); !errors.As(err, &u) {
		t.Errorf("%v", err)
	}
	k.counting = false
	if err := s.Close(); err != nil || len(k.open) != 0 {
		t.Errorf("%v, open %v", err, k.open)
	}
	if _, err := s.Counters(); err == nil {
		t.Error("counters of a closed queue")
	}
}

func TestSameFile(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	again, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	dup, err := linux{}.duplicate(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer linux{}.close(dup)
	if !sameFile(os.Getpid(), int(f.Fd()), dup, true) {
		t.Error("a duplicate is not the same file")
	}
	if sameFile(os.Getpid(), int(f.Fd()), int(again.Fd()), true) {
		t.Skip("this kernel does not compare descriptors (kcmp)")
	}
}

func TestAttachHere(t *testing.T) {
	var u *Unavailable
	if g, err := Attach(os.Getpid(), Options{}); g != nil || !errors.As(err, &u) {
		t.Errorf("this process: %v, %v", g, err)
	}
	if g, err := Attach(1<<30, Options{}); g != nil || !errors.As(err, &u) || errors.Is(err, ErrNoSpace) {
		t.Errorf("no process: %v, %v", g, err)
	}
}

func TestRecordingPlaysBack(t *testing.T) {
	var file bytes.Buffer
	w, err := trace.NewWriter(&file, trace.Header{ClockNanos: 1000, Lacks: "launches"}, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var want []Event
	for _, entry := range [][]byte{
		faultEntry(2, 1, 2, 0x1000, 1500, 7), migrationEntry(4, 1, 0, 0x200000, 65536, 1600, 1700), migrationEntry(1, 0, 2, 0x200000, 65536, 1800, 1900),
		rareEntry(typeThrashing, map[int]uint64{16: 0x5000, 24: 4096, 32: 2000}), rareEntry(typeCPUFault, map[int]uint64{0: 1 << 8, 8: 0x5000, 16: 2100}),
		rareEntry(typeMapRemote, map[int]uint64{0: 1 << 8, 8: 0x5000, 16: 8192, 24: 2200}),
	} {
		e, err := Decode(entry)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, e)
		tr := e.Trace(1000)
		if err := w.Append(&tr); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []trace.Event{{Kind: trace.KindMark, Name: "iter0"}, {Kind: trace.KindLost, Bytes: 9, Name: "faults"}} {
		if err := w.Append(&e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	r, err := OpenRecording(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	got := r.Drain(nil)
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("event %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
	if r.Err() != nil || r.Lost().Driver != 9 || len(r.Coverage().Lacks) != 1 || len(r.Drain(nil)) != 0 {
		t.Errorf("%v, lost %+v", r.Err(), r.Lost())
	}
	cut, err := OpenRecording(bytes.NewReader(whole[:len(whole)-3]))
	if err != nil {
		t.Fatal(err)
	}
	var d *trace.DamageError
	if cut.Drain(nil); !errors.As(cut.Err(), &d) {
		t.Errorf("a cut recording ends with %v", cut.Err())
	}
}
