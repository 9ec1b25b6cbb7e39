package hook

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// The constants of penstock_hook.h, once more: a change there must show.
const (
	ringEntries = 1 << 16
	entrySlots  = 22
	maxSlots    = 1 << 20
	maxFuncs    = 65536
	tableBlocks = 1 << (47 - 21)
)

// entry and shared are the header's structures as C lays them out. TestLayout
// compares every offset with the compiler's.
type entry struct {
	turn        uint64
	kind, flags uint16
	id          uint32
	nslots      uint16
	stream      uint16
	more        uint32
	//lint:ignore U1000 compared with the C by name
	grid, recorded uint32
	when           uint64
	slots          [entrySlots]uint32
}

type function struct {
	name *byte
	//lint:ignore U1000 compared with the C by name
	handle uint64
	//lint:ignore U1000 likewise
	nparams, opaque  uint32
	inspect, follows uint32
	launches         uint64
	record           uint32
	written          [MostWritten]uint16
	_                uint32
}

type shared struct {
	abiVersion, mode, stamp               uint32
	readerSleeping                        uint32
	head, tailSeen, launches              uint64
	_                                     [24]byte
	ring                                  *entry
	blockSlot                             *uint32
	slotState                             *uint8
	slotLastSeq                           *uint64
	progressEvery, trails, doorbell, size uint32
	timing, unloads                       uint32
	dropped                               uint64
	tail                                  uint64
	_                                     [56]byte
	funcs                                 *function
	nfuncs, nstreams                      uint32
	streams                               *uint64
	gate, progress                        *uint32
	_                                     [24]byte
	copies, graphs, gated                 uint64
	opaque                                uint64
	elf, dlsym, getproc, runtime          uint64
	unhooked                              uint64
	unhookedNames                         *byte
	_                                     [48]byte
	slotTicket                            *uint32
	arrived                               *uint32
	refuse, inspectN                      uint32
	granted, inspectSeq                   uint64
	inspectAddr                           [16384]uint64
	cpuWaits, cpuWaitNS, asked, refused   uint64
	followed                              uint64
	probes, probeWord                     uint64
	probing, _                            uint32
	reportAll, serve, others              uintptr
	launchHead                            uint64
	launchArea                            *byte
	graphBytes                            uint64
	timingsLost                           uint64
	ntimings                              uint64
	timings                               [1024]timed
	_                                     [24]byte
}

type timed struct {
	seq            uint64
	nanos, empties uint32
}

// side is the hook's side of the shared state, in Go memory.
type side struct {
	s        shared
	blocks   []uint32
	states   []uint8
	seqs     []uint64
	ring     []entry
	funcs    []function
	streams  []uint64
	gate     []uint32
	progress []uint32
	tickets  []uint32
	arrived  uint32
}

func newSide() *side {
	x := &side{
		blocks: make([]uint32, tableBlocks), states: make([]uint8, maxSlots), seqs: make([]uint64, maxSlots),
		ring: make([]entry, ringEntries), funcs: make([]function, maxFuncs), streams: make([]uint64, MaxStreams),
		gate: make([]uint32, MaxStreams*wordsPerLine), progress: make([]uint32, MaxStreams*wordsPerLine),
		tickets: make([]uint32, maxSlots),
	}
	x.s = shared{
		abiVersion: ABI, size: uint32(unsafe.Sizeof(shared{})),
		blockSlot: &x.blocks[0], slotState: &x.states[0], slotLastSeq: &x.seqs[0], ring: &x.ring[0], funcs: &x.funcs[0], streams: &x.streams[0],
		slotTicket: &x.tickets[0],
	}
	return x
}

func attached(t *testing.T) (*side, *Shared) {
	t.Helper()
	x := newSide()
	h, err := New(unsafe.Pointer(&x.s))
	if err != nil {
		t.Fatal(err)
	}
	return x, h
}

// startAt makes a position the next one, as after so many records.
func (x *side) startAt(t *testing.T, position uint64) *Shared {
	t.Helper()
	x.s.head, x.s.tail = position, position
	for i := range x.ring {
		x.ring[i].turn = 0
	}
	h, err := New(unsafe.Pointer(&x.s))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// reserve writes a record and answers how to publish its entries one by one.
func (x *side) reserve(r Record) (publish []func()) {
	n := max(1, (len(r.Slots)+entrySlots-1)/entrySlots)
	at := x.s.head
	for i := range n {
		e := &x.ring[(at+uint64(i))%ringEntries]
		e.kind, e.more, e.flags, e.id, e.stream, e.grid = 4, uint32(n-1-i), 0, 0, 0, 0 // turn is the reader's to look at
		if i == 0 {
			e.kind, e.flags, e.id, e.stream, e.grid = uint16(r.Kind), uint16(r.Flags), r.ID, uint16(r.Stream), r.Grid
		}
		e.when = uint64(r.Nanos)
		e.nslots = uint16(copy(e.slots[:], r.Slots[min(len(r.Slots), i*entrySlots):]))
		publish = append(publish, func() { atomic.StoreUint64(&e.turn, at+uint64(i)+1) })
	}
	atomic.AddUint64(&x.s.head, uint64(n))
	return publish
}

func (x *side) push(r Record) {
	all := x.reserve(r)
	slices.Reverse(all) // the first entry last, as the hook does
	for _, publish := range all {
		publish()
	}
}

func drained(h *Shared) (out []Record) {
	h.Drain(func(r *Record) {
		c := *r
		c.Slots = slices.Clone(r.Slots)
		out = append(out, c)
	})
	return out
}

func slots(first, n int) (s []uint32) {
	for i := range n {
		s = append(s, uint32(first+i))
	}
	return s
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(nil); err == nil || !strings.Contains(err.Error(), "refused to attach") {
		t.Errorf("nothing to attach to: %v", err)
	}
	for _, change := range []func(*shared){func(s *shared) { s.abiVersion++ }, func(s *shared) { s.size -= 8 }} {
		x := newSide()
		change(&x.s)
		if _, err := New(unsafe.Pointer(&x.s)); err == nil || !strings.Contains(err.Error(), "install both from one release") {
			t.Errorf("version %d of %d bytes: %v", x.s.abiVersion, x.s.size, err)
		}
	}
}

// TestDrain reads records of every length, across the end of the ring and at
// positions beyond 32 bits.
func TestDrain(t *testing.T) {
	for _, start := range []uint64{0, 1, ringEntries - 1, ringEntries - 2, ringEntries, 5*ringEntries - 3, 1<<32 - 2, 1 << 40} {
		x := newSide()
		h := x.startAt(t, start)
		var want []Record
		seq := start + 1
		for i, n := range []int{0, 1, entrySlots, entrySlots + 1, 3 * entrySlots, 1000, 2} {
			r := Record{Kind: Launch, Flags: FlagOpaque, ID: uint32(i), Stream: i, Grid: 7, Slots: slots(1+i, n)}
			x.push(r)
			r.Seq = seq
			seq += uint64(max(1, (n+entrySlots-1)/entrySlots))
			want = append(want, r)
		}
		got := drained(h)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("from position %d:\ngot  %.300v\nwant %.300v", start, got, want)
		}
		if x.s.tail != x.s.head || h.Head() != seq-1 {
			t.Errorf("from position %d: tail %d, head %d, want %d", start, x.s.tail, h.Head(), seq-1)
		}
		if more := drained(h); len(more) != 0 {
			t.Errorf("read again: %v", more)
		}
	}
}

// TestDrainUnpublished: a record is read when all of it is there, and none after it before.
func TestDrainUnpublished(t *testing.T) {
	x := newSide()
	h := x.startAt(t, ringEntries-1)
	publish := x.reserve(Record{Kind: Copy, ID: CopyD2D, Slots: slots(1, 2*entrySlots+1)})
	x.push(Record{Kind: Launch, Slots: slots(9, 1)})
	if len(publish) != 3 {
		t.Fatalf("%d entries", len(publish))
	}
	for _, i := range []int{0, 2, 1} {
		if got := drained(h); len(got) != 0 {
			t.Fatalf("read before entry %d was published: %v", i, got)
		}
		publish[i]()
	}
	got := drained(h)
	if len(got) != 2 || !slices.Equal(got[0].Slots, slots(1, 2*entrySlots+1)) || got[1].Seq != got[0].Seq+3 {
		t.Errorf("got %v", got)
	}
}

// TestDrainStale: entries of an earlier time round are not taken for new ones.
func TestDrainStale(t *testing.T) {
	x, h := attached(t)
	for range 3 {
		for i := range ringEntries {
			x.push(Record{Kind: Launch, ID: uint32(i)})
		}
		if n := len(drained(h)); n != ringEntries {
			t.Fatalf("%d records, want %d", n, ringEntries)
		}
		if got := drained(h); len(got) != 0 {
			t.Fatalf("read again: %d records", len(got))
		}
	}
}

// TestConcurrent has a writer that waits for room beside a reader.
func TestConcurrent(t *testing.T) {
	x, h := attached(t)
	const records = 200_000
	go func() {
		for i := range records {
			for x.s.head-atomic.LoadUint64(&x.s.tail) > ringEntries-8 {
				runtime.Gosched()
			}
			x.push(Record{Kind: Launch, ID: uint32(i), Slots: slots(i%100+1, i%(3*entrySlots))})
		}
	}()
	next, until := 0, time.Now().Add(30*time.Second)
	for next < records {
		h.Drain(func(r *Record) {
			if int(r.ID) != next || len(r.Slots) != next%(3*entrySlots) || len(r.Slots) > 0 && r.Slots[len(r.Slots)-1] != uint32(next%100+len(r.Slots)) {
				t.Fatalf("record %d reads as %v", next, r)
			}
			next++
		})
		if time.Now().After(until) {
			t.Fatalf("only %d records after 30 s", next)
		}
		runtime.Gosched()
	}
}

func TestTable(t *testing.T) {
	x, h := attached(t)
	const block = 2 << 20
	r := cuda.Range{Base: 10 * block, Bytes: 3 * block}
	h.Publish(5, r, false)
	if !slices.Equal(x.blocks[9:14], []uint32{0, 5, 5, 5, 0}) || x.states[5] != 2 {
		t.Errorf("published: %v, state %d", x.blocks[9:14], x.states[5])
	}
	if !h.Published(r.Base) || !h.Published(r.End()-1) || h.Published(r.Base-1) || h.Published(r.End()) || h.Published(1<<63) {
		t.Error("not just what was published is said to be")
	}
	h.SetResident(5, true)
	if x.states[5] != 1 {
		t.Errorf("resident: state %d", x.states[5])
	}
	h.Withdraw(5, r)
	if !slices.Equal(x.blocks[9:14], make([]uint32, 5)) || x.states[5] != 0 {
		t.Errorf("withdrawn: %v, state %d", x.blocks[9:14], x.states[5])
	}
	h.Publish(6, cuda.Range{Base: 1<<47 - block, Bytes: block}, true) // the last address there is
	if x.blocks[tableBlocks-1] != 6 || x.states[6] != 1 {
		t.Error("the last block of the address space is not published")
	}
	// Slots beyond the table are never seen by the hook; nothing is written.
	h.Publish(maxSlots, r, true)
	h.SetResident(maxSlots, true)
	h.Withdraw(maxSlots, r)
	if x.blocks[10] != 0 {
		t.Error("a slot beyond the table was published")
	}
	x.seqs[5] = 77
	if h.LastSeq(5) != 77 {
		t.Error("LastSeq")
	}
}

func TestWords(t *testing.T) {
	x, h := attached(t)
	h.Words(cuda.Ptr(uintptr(unsafe.Pointer(&x.gate[0]))), cuda.Ptr(uintptr(unsafe.Pointer(&x.progress[0]))))
	if len(x.gate)*4 != WordsBytes {
		t.Errorf("%d bytes of words, want %d", WordsBytes, len(x.gate)*4)
	}
	for _, s := range []int{0, 1, MaxStreams - 1} {
		h.OpenGate(s, 1<<32+uint64(s)+5)
		if got := x.gate[s*16]; got != uint32(s)+5 {
			t.Errorf("gate of stream %d is %d", s, got)
		}
		x.s.head, x.progress[s*16] = 1000, uint32(100+s)
		if got := h.Progress(s); got != uint64(100+s) {
			t.Errorf("progress of stream %d is %d", s, got)
		}
	}
	h.SetMode(Gated)
	h.SetProgressEvery(9)
	if x.s.mode != 2 || x.s.progressEvery != 9 {
		t.Errorf("mode %d, progress every %d", x.s.mode, x.s.progressEvery)
	}
}

// TestProgressAcrossTheWrap: the words of progress begin anew after 2^32 operations, and what
// a stream wrote before says nothing of later ones, however long it was quiet.
func TestProgressAcrossTheWrap(t *testing.T) {
	x, h := attached(t)
	x.progress[3*16] = 77 // nobody clears pinned memory
	h.Words(cuda.Ptr(uintptr(unsafe.Pointer(&x.gate[0]))), cuda.Ptr(uintptr(unsafe.Pointer(&x.progress[0]))))
	for _, c := range []struct {
		head        uint64
		stream      int
		writes      uint32 // 0: nothing
		want, other uint64 // of the stream, and of stream 2
	}{
		{head: 90, stream: 2, writes: 80, want: 80, other: 80},
		{head: 1<<32 - 2, stream: 1, writes: 1<<32 - 5, want: 1<<32 - 5, other: 80},
		{head: 1<<32 + 70, stream: 1, writes: 1<<32 - 1, want: 1<<32 - 1, other: 80}, // behind the head
		{head: 1<<32 + 100, stream: 1, writes: 60, want: 1<<32 + 60, other: 80},
		{head: 1<<32 + 100, stream: 3, want: 0, other: 80},
		{head: 1<<33 + 100, stream: 1, want: 1<<32 + 60, other: 80},
		{head: 1<<33 + 100, stream: 2, writes: 90, want: 1<<33 + 90, other: 1<<33 + 90},
		{head: 1<<33 + 100, stream: 1, writes: 95, want: 1<<33 + 95, other: 1<<33 + 90},
	} {
		x.s.head = c.head
		if c.writes != 0 {
			x.progress[c.stream*16] = c.writes
		}
		if got, other := h.Progress(c.stream), h.Progress(2); got != c.want || other != c.other {
			t.Errorf("at %d stream %d is at %d and stream 2 at %d, want %d and %d", c.head, c.stream, got, other, c.want, c.other)
		}
	}
}

func TestNamesAndCounters(t *testing.T) {
	x, h := attached(t)
	name := []byte("gemm\x00")
	x.funcs[0].name = &name[0]
	if h.FunctionName(0) != "" {
		t.Error("a function that is not published yet has a name")
	}
	x.s.nfuncs = 1
	if got := h.FunctionName(0); got != "gemm" {
		t.Errorf("function 0 is %q", got)
	}
	if h.FunctionName(1) != "" || h.FunctionName(1<<32-1) != "" {
		t.Error("functions that do not exist have names")
	}
	x.streams[1], x.s.nstreams = 0x50, 2
	if got := h.Streams(); !slices.Equal(got, []uint64{0, 0x50}) {
		t.Errorf("streams %v", got)
	}
	x.s.nstreams = MaxStreams + 5
	if got := len(h.Streams()); got != MaxStreams {
		t.Errorf("%d streams, want at most %d", got, MaxStreams)
	}
	x.s.launches, x.s.copies, x.s.graphs, x.s.gated, x.s.opaque, x.s.dropped, x.s.unhooked = 1, 2, 3, 4, 5, 6, 7
	x.s.unhookedNames = &append([]byte("cuOne\ncuTwo"), 0)[0]
	x.s.elf, x.s.dlsym, x.s.getproc, x.s.runtime = 8, 9, 10, 11
	x.s.cpuWaits, x.s.cpuWaitNS, x.s.asked, x.s.refused, x.s.followed = 12, 13, 14, 15, 16
	if got, want := h.Counters(), (Counters{1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 8, 9, 10, 11, "cuOne\ncuTwo"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestStrict(t *testing.T) {
	x, h := attached(t)
	const block = 2 << 20
	h.Arrived(cuda.Ptr(uintptr(unsafe.Pointer(&x.arrived))))
	if x.s.arrived != &x.arrived {
		t.Error("the word of arrivals is not handed over")
	}
	h.SetMode(Strict)
	if x.s.mode != 3 {
		t.Errorf("mode %d", x.s.mode)
	}
	h.SetArriving(5, 1<<31+7)
	h.SetArriving(maxSlots, 1) // beyond the table: nothing is written
	if x.states[5] != 3 || x.tickets[5] != 1<<31+7 {
		t.Errorf("arriving: state %d, ticket %d", x.states[5], x.tickets[5])
	}
	plain := cuda.Range{Base: 20*block + 512, Bytes: block}
	h.PublishPlain(plain)
	if !slices.Equal(x.blocks[19:23], []uint32{0, 1<<32 - 1, 1<<32 - 1, 0}) {
		t.Errorf("plain: %v", x.blocks[19:23])
	}
	h.WithdrawPlain(plain)
	if !slices.Equal(x.blocks[19:23], make([]uint32, 4)) {
		t.Errorf("withdrawn: %v", x.blocks[19:23])
	}
	h.Refuse(719)
	h.Grant(1<<40 + 1)
	if x.s.refuse != 719 || x.s.granted != 1<<40+1 {
		t.Errorf("refuse %d, granted %d", x.s.refuse, x.s.granted)
	}
	x.s.inspectSeq, x.s.inspectN = 9, 3
	copy(x.s.inspectAddr[:], []uint64{1, 2, 3, 4})
	if seq, addresses := h.Inspection(); seq != 9 || !slices.Equal(addresses, []uint64{1, 2, 3}) {
		t.Errorf("inspection of %d: %v", seq, addresses)
	}
	x.s.inspectN = 20000
	if _, addresses := h.Inspection(); len(addresses) != 16384 {
		t.Errorf("%d addresses", len(addresses))
	}
	h.SetInspect(0, InspectAlways) // not published yet
	x.s.nfuncs = 1
	h.SetInspect(1, InspectAlways)
	if x.funcs[0].inspect != 0 || x.funcs[1].inspect != 0 {
		t.Error("functions that do not exist are inspected")
	}
	h.SetInspect(0, InspectCleared)
	if x.funcs[0].inspect != 1 {
		t.Errorf("function 0 is inspected as %d", x.funcs[0].inspect)
	}
}

// TestTimings reads each once, and of many the last that cannot be written over meanwhile.
func TestTimings(t *testing.T) {
	x, h := attached(t)
	h.SetTiming(true)
	if x.s.timing != 1 {
		t.Error("nothing is timed")
	}
	h.SetTiming(false)
	if x.s.timing != 0 {
		t.Error("it is not ended")
	}
	if x.s.timingsLost = 5; h.TimingsLost() != 5 {
		t.Errorf("%d lost, want 5", h.TimingsLost())
	}
	read := func() (seqs []uint64) {
		h.Timings(func(seq uint64, took, empty time.Duration) {
			if took != time.Duration(10*seq) || empty != time.Duration(seq) {
				t.Errorf("%d took %v, nothing %v", seq, took, empty)
			}
			seqs = append(seqs, seq)
		})
		return seqs
	}
	write := func(n uint64) {
		for range n {
			x.s.timings[x.s.ntimings%1024] = timed{x.s.ntimings, uint32(10 * x.s.ntimings), uint32(x.s.ntimings)}
			x.s.ntimings++
		}
	}
	write(3)
	if got := read(); !slices.Equal(got, []uint64{0, 1, 2}) || len(read()) != 0 {
		t.Error(got)
	}
	write(2000)
	if got := read(); len(got) != 512 || got[0] != 2003-512 || got[511] != 2002 {
		t.Errorf("%d, from %d", len(got), got[0])
	}
}

// TestWait returns at once when there is something to read, and else at the timeout.
func TestWait(t *testing.T) {
	x, h := attached(t)
	began := time.Now()
	h.Wait(20 * time.Millisecond)
	if d := time.Since(began); d < 15*time.Millisecond {
		t.Errorf("an idle wait of 20 ms took %v", d)
	}
	x.push(Record{Kind: Launch})
	began = time.Now()
	h.Wait(time.Minute)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("waited %v with a record to read", d)
	}
	if x.s.readerSleeping != 0 {
		t.Error("the reader is still marked as sleeping")
	}
}

// TestLayout compares the structures above, and with them what these tests
// mean, with what the C compiler makes of the header.
func TestLayout(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	var e entry
	var s shared
	var f function
	want := map[string]uintptr{
		"sizeof(psk_entry)": unsafe.Sizeof(e), "sizeof(psk_shared)": unsafe.Sizeof(s), "sizeof(psk_func)": unsafe.Sizeof(f),
		"PSK_RING_ENTRIES": ringEntries, "PSK_ENTRY_SLOTS": entrySlots, "PSK_MAX_SLOTS": maxSlots, "PSK_MAX_FUNCS": maxFuncs,
		"PSK_TABLE_BLOCKS": tableBlocks, "PSK_MAX_STREAMS": MaxStreams,
		"offsetof(psk_entry,kind)": unsafe.Offsetof(e.kind), "offsetof(psk_entry,id)": unsafe.Offsetof(e.id),
		"offsetof(psk_entry,nslots)": unsafe.Offsetof(e.nslots), "offsetof(psk_entry,stream)": unsafe.Offsetof(e.stream),
		"offsetof(psk_entry,more)": unsafe.Offsetof(e.more), "offsetof(psk_entry,grid)": unsafe.Offsetof(e.grid), "offsetof(psk_entry,when)": unsafe.Offsetof(e.when), "offsetof(psk_entry,slots)": unsafe.Offsetof(e.slots),
		"offsetof(psk_shared,mode)": unsafe.Offsetof(s.mode), "offsetof(psk_shared,block_slot)": unsafe.Offsetof(s.blockSlot),
		"offsetof(psk_shared,ring)": unsafe.Offsetof(s.ring), "offsetof(psk_shared,dropped)": unsafe.Offsetof(s.dropped), "offsetof(psk_shared,reader_sleeping)": unsafe.Offsetof(s.readerSleeping), "offsetof(psk_shared,progress_every)": unsafe.Offsetof(s.progressEvery), "offsetof(psk_shared,size)": unsafe.Offsetof(s.size), "offsetof(psk_shared,head)": unsafe.Offsetof(s.head), "offsetof(psk_shared,tail)": unsafe.Offsetof(s.tail),
		"offsetof(psk_shared,doorbell)": unsafe.Offsetof(s.doorbell), "offsetof(psk_shared,funcs)": unsafe.Offsetof(s.funcs),
		"offsetof(psk_shared,nstreams)": unsafe.Offsetof(s.nstreams), "offsetof(psk_shared,streams)": unsafe.Offsetof(s.streams),
		"offsetof(psk_shared,gate)": unsafe.Offsetof(s.gate), "offsetof(psk_shared,progress)": unsafe.Offsetof(s.progress),
		"offsetof(psk_shared,launches)": unsafe.Offsetof(s.launches), "offsetof(psk_shared,unhooked)": unsafe.Offsetof(s.unhooked),
		"offsetof(psk_func,inspect)": unsafe.Offsetof(f.inspect), "offsetof(psk_func,launches)": unsafe.Offsetof(f.launches),
		"offsetof(psk_shared,slot_ticket)": unsafe.Offsetof(s.slotTicket), "offsetof(psk_shared,arrived)": unsafe.Offsetof(s.arrived),
		"offsetof(psk_shared,refuse)": unsafe.Offsetof(s.refuse), "offsetof(psk_shared,inspect_n)": unsafe.Offsetof(s.inspectN),
		"offsetof(psk_shared,granted)": unsafe.Offsetof(s.granted), "offsetof(psk_shared,inspect_seq)": unsafe.Offsetof(s.inspectSeq),
		"offsetof(psk_shared,inspect_addr)": unsafe.Offsetof(s.inspectAddr), "offsetof(psk_shared,cpu_waits)": unsafe.Offsetof(s.cpuWaits),
		"offsetof(psk_shared,refused)": unsafe.Offsetof(s.refused), "offsetof(psk_shared,followed)": unsafe.Offsetof(s.followed), "offsetof(psk_shared,trails)": unsafe.Offsetof(s.trails), "offsetof(psk_func,follows)": unsafe.Offsetof(f.follows), "offsetof(psk_shared,probes)": unsafe.Offsetof(s.probes),
		"offsetof(psk_shared,probe_word)": unsafe.Offsetof(s.probeWord), "offsetof(psk_shared,probing)": unsafe.Offsetof(s.probing), "offsetof(psk_shared,stamp)": unsafe.Offsetof(s.stamp), "offsetof(psk_shared,report_all)": unsafe.Offsetof(s.reportAll), "offsetof(psk_shared,synchronize_others)": unsafe.Offsetof(s.others),
		"offsetof(psk_func,record)": unsafe.Offsetof(f.record), "offsetof(psk_shared,unloads)": unsafe.Offsetof(s.unloads), "offsetof(psk_shared,launch_head)": unsafe.Offsetof(s.launchHead), "offsetof(psk_shared,launch_area)": unsafe.Offsetof(s.launchArea), "offsetof(psk_shared,graph_bytes)": unsafe.Offsetof(s.graphBytes),
		"offsetof(psk_entry,recorded)": unsafe.Offsetof(e.recorded),
		"offsetof(psk_shared,timing)":  unsafe.Offsetof(s.timing), "offsetof(psk_shared,timings_lost)": unsafe.Offsetof(s.timingsLost), "offsetof(psk_shared,ntimings)": unsafe.Offsetof(s.ntimings), "offsetof(psk_shared,timings)": unsafe.Offsetof(s.timings),
	}
	var src strings.Builder
	src.WriteString("#include <stddef.h>\n#include \"penstock_hook.h\"\n")
	for what, n := range want {
		fmt.Fprintf(&src, "_Static_assert(%s == %d, \"%s is not %d\");\n", what, n, what, n)
	}
	file := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(file, []byte(src.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-std=gnu11", "-fsyntax-only", "-I", "../../cabi/hook", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func BenchmarkDrain(b *testing.B) {
	x := newSide()
	h, err := New(unsafe.Pointer(&x.s))
	if err != nil {
		b.Fatal(err)
	}
	r := Record{Kind: Launch, Slots: slots(1, 6)}
	b.ReportAllocs()
	for b.Loop() {
		x.push(r)
		h.Drain(func(*Record) {})
	}
}
