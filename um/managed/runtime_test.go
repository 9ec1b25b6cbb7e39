package managed

import (
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
)

const testBase = cuda.Ptr(1 << 40)

// machine is a process and a GPU that runs operations in order, one when told to.
type machine struct {
	t        *testing.T
	r        *Runtime
	resident map[uint32]bool
	opened   map[int]uint64
	queue    []queued
	seq      uint64
	flying   []*Move
	clock    time.Duration
	kernel   uint64 // that is launched, beside the number of its tensors
}

type queued struct {
	stream int
	seq    uint64
	gated  bool
	slots  []uint32
}

func newMachine(t *testing.T, c Config) *machine {
	m := &machine{t: t, resident: map[uint32]bool{}, opened: map[int]uint64{}}
	if c.ArenaBytes == 0 {
		c.ArenaBytes = 256 * BlockBytes
	}
	m.r = New(c, m, testBase)
	return m
}

func (m *machine) Publish(slot uint32, _ cuda.Range, resident bool) { m.resident[slot] = resident }
func (m *machine) Withdraw(slot uint32, _ cuda.Range)               { delete(m.resident, slot) }
func (m *machine) SetResident(slot uint32, resident bool) {
	if _, ok := m.resident[slot]; !ok {
		m.t.Errorf("slot %d is not published", slot)
	}
	m.resident[slot] = resident
}
func (m *machine) OpenGate(stream int, seq uint64) {
	if seq <= m.opened[stream] {
		m.t.Errorf("gate of stream %d opened for %d after %d", stream, seq, m.opened[stream])
	}
	m.opened[stream] = seq
}
func (m *machine) Now() time.Duration { m.clock++; return m.clock }

func (m *machine) malloc(blocks int, stream int) cuda.Ptr {
	m.t.Helper()
	p, err := m.r.Malloc(int64(blocks)*BlockBytes, stream)
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m *machine) slot(p cuda.Ptr) uint32 { return m.r.ByPtr[p].Slot }

// launch queues an operation on tensors, gated as the hook would.
func (m *machine) launch(stream int, ps ...cuda.Ptr) {
	m.seq++
	q := queued{stream: stream, seq: m.seq}
	for _, p := range ps {
		s := m.slot(p)
		q.slots = append(q.slots, s)
		q.gated = q.gated || !m.resident[s]
	}
	m.queue = append(m.queue, q)
	m.r.Op(um.Op{Seq: q.seq, Stream: stream, Work: uint32(m.kernel), Slots: q.slots, Gated: q.gated, Name: "kernel"})
}

// gpu runs the next operation if it may, and says whether it did.
func (m *machine) gpu() bool {
	blocked := map[int]bool{}
	for i, q := range m.queue {
		if blocked[q.stream] {
			continue
		}
		if q.gated && m.opened[q.stream] < q.seq {
			blocked[q.stream] = true
			continue
		}
		m.queue = append(m.queue[:i:i], m.queue[i+1:]...)
		m.r.Progress(q.stream, q.seq)
		return true
	}
	return false
}

// take lets a worker begin a move; finish ends the oldest.
func (m *machine) take(d um.Direction) bool {
	x, ok := m.r.Next(d)
	if ok {
		m.flying = append(m.flying, x)
	}
	return ok
}

func (m *machine) finish() bool {
	if len(m.flying) == 0 {
		return false
	}
	x := m.flying[0]
	m.flying = m.flying[1:]
	m.r.Done(x)
	return true
}

// settle runs everything to the end.
func (m *machine) settle() {
	m.t.Helper()
	for i := 0; ; i++ {
		if i > 100000 {
			m.t.Fatal("the engine never comes to rest")
		}
		busy := m.take(um.In)
		busy = m.take(um.Out) || busy
		for m.finish() {
			busy = true
		}
		busy = m.gpu() || busy
		if !busy {
			break
		}
	}
	if len(m.queue) > 0 {
		m.t.Fatalf("%d operations are held back for ever; the first is %+v", len(m.queue), m.queue[0])
	}
	if err := errors.Join(m.r.Check(), segments.Check(m.r.Segments(), m.r.LiveBytes())); err != nil {
		m.t.Fatal(err)
	}
}

func budget(blocks int) int64 { return int64(blocks) * BlockBytes }

func TestFreshMemoryIsPopulatedNotMoved(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(16)})
	p := m.malloc(4, 0)
	m.launch(0, p)
	m.settle()
	if s := m.r.Stats(); s.FetchedBytes != 0 || s.ResidentBytes != budget(4) {
		t.Errorf("fetched %d bytes, %d resident", s.FetchedBytes, s.ResidentBytes)
	}
}

func TestDeadMemoryIsReusedWithoutAMove(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(8)})
	for i := 0; i < 50; i++ {
		p := m.malloc(6, 0)
		m.launch(0, p)
		m.settle()
		if err := m.r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.r.Stats(); s.FetchedBytes+s.EvictedBytes+s.DiscardedBytes != 0 {
		t.Errorf("moved dead memory: %+v", s)
	}
}

func TestResidencyStaysUnderBudget(t *testing.T) {
	for _, p := range []um.Policy{um.LRU, um.DeepUM, um.Penstock, um.Naive} {
		t.Run(p.Name, func(t *testing.T) {
			m := newMachine(t, Config{Policy: p, BudgetBytes: budget(10)})
			var ps []cuda.Ptr
			for i := 0; i < 8; i++ {
				ps = append(ps, m.malloc(3, 0))
			}
			for round := 0; round < 6; round++ {
				for i := range ps {
					m.launch(0, ps[i], ps[(i+1)%len(ps)])
					m.settle()
					if r := m.r.Stats().ResidentBytes; r > budget(10) {
						t.Fatalf("%d bytes resident under a budget of %d: %+v", r, budget(10), m.r.Stats())
					}
				}
			}
			s := m.r.Stats()
			if s.LateOps != 0 {
				t.Errorf("%d operations went out with memory missing", s.LateOps)
			}
			if s.EvictedBytes == 0 {
				t.Errorf("nothing was evicted: %+v", s)
			}
		})
	}
}

// A sweep over more than fits is the worst case of LRU and the best of next-use.
func TestNextUseMovesLessThanLRU(t *testing.T) {
	moved := map[string]int64{}
	for _, p := range []um.Policy{um.LRU, um.Penstock} {
		m := newMachine(t, Config{Policy: p, BudgetBytes: budget(16)})
		var ps []cuda.Ptr
		for i := 0; i < 24; i++ {
			ps = append(ps, m.malloc(1, 0))
		}
		for round := 0; round < 12; round++ {
			for i := range ps {
				// the kind of operation identifies the place in the sweep
				m.launch(0, ps[i])
				m.r.History.Stats()
				m.settle()
			}
		}
		moved[p.Name] = m.r.Stats().EvictedBytes
	}
	if moved["penstock"] >= moved["lru"] {
		t.Errorf("evicted bytes: penstock %d, lru %d", moved["penstock"], moved["lru"])
	}
}

func TestOversizeOperationGoesOutAndIsCounted(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(4)})
	a, b := m.malloc(3, 0), m.malloc(3, 0)
	m.launch(0, a, b)
	m.settle()
	s := m.r.Stats()
	if s.OversizeOps != 1 || s.OversizeBytes != budget(6) || s.OversizeName != "kernel" || s.LateOps != 1 {
		t.Errorf("%+v", s)
	}
}

func TestOutOfMemoryNamesBothBudgets(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(4), HostBudgetBytes: budget(8)})
	m.malloc(10, 0)
	_, err := m.r.Malloc(budget(3), 0)
	if !errors.Is(err, um.ErrOutOfMemory) {
		t.Fatal(err)
	}
	for _, n := range []int64{budget(4), budget(8), budget(3)} {
		if !strings.Contains(err.Error(), size.Text(n)) {
			t.Errorf("%q does not name %d", err, n)
		}
	}
	if err := m.r.Check(); err != nil {
		t.Error(err)
	}
}

func TestFreedMemoryIsNotReusedByAnotherStreamBeforeItsWorkIsDone(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(64), ArenaBytes: budget(8)})
	p := m.malloc(8, 0)
	m.launch(0, p)
	for m.take(um.In) || m.finish() {
	}
	if err := m.r.Free(p); err != nil {
		t.Fatal(err)
	}
	if _, err := m.r.Malloc(budget(8), 1); !errors.Is(err, um.ErrOutOfMemory) {
		t.Fatalf("another stream got memory that queued work still uses: %v", err)
	}
	if q := m.malloc(8, 0); q != p {
		t.Errorf("its own stream got %#x, not %#x", q, p)
	}
}

func TestRecordStreamHoldsMemoryBack(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(64), ArenaBytes: budget(8)})
	p := m.malloc(8, 0)
	m.launch(1, p)
	if err := m.r.RecordStream(p, 1); err != nil {
		t.Fatal(err)
	}
	if err := m.r.Free(p); err != nil {
		t.Fatal(err)
	}
	if _, err := m.r.Malloc(budget(8), 0); !errors.Is(err, um.ErrOutOfMemory) {
		t.Fatalf("memory was reused while another stream used it: %v", err)
	}
	m.settle()
	q := m.r
	q.Op(um.Op{Seq: m.seq + 1, Stream: 1, Work: 9})
	q.Progress(1, m.seq+1)
	if _, err := m.r.Malloc(budget(8), 0); err != nil {
		t.Error(err)
	}
}

// Discarding is the one thing that can lose data: only blocks that are free, and
// that no queued work can touch, may be discarded.
func TestOnlyIdleFreeBlocksAreDiscarded(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(8), ArenaBytes: budget(64)})
	p := m.malloc(8, 0)
	m.launch(0, p)
	for m.take(um.In) || m.finish() {
	}
	if err := m.r.Free(p); err != nil { // the launch has not run yet
		t.Fatal(err)
	}
	q := m.malloc(12, 0)
	m.launch(0, q)
	for i := 0; i < 20; i++ {
		for _, d := range []um.Direction{um.In, um.Out} {
			if x, ok := m.r.Next(d); ok {
				if x.Kind == MoveDiscard {
					t.Fatalf("discarded %v although a queued launch uses it", x.Ranges)
				}
				m.r.Done(x)
			}
		}
	}
}

// Random work under every policy: nothing is held back for ever, the ledger adds
// up, and live tensors are never discarded.
func TestRandomWork(t *testing.T) {
	for _, p := range []um.Policy{um.Naive, um.LRU, um.DeepUM, um.Penstock} {
		for _, driver := range []bool{false, true} {
			if driver && p.Name == "naive" {
				continue
			}
			seeds := []int64{13, 37, 92, 99, 105, 144, 624, 1387} // which once never came to rest
			for seed := range int64(short.Of(12, 2)) {
				seeds = append(seeds, seed)
			}
			for _, seed := range seeds {
				t.Run(fmt.Sprintf("%s/driverEvicts=%t/%d", p.Name, driver, seed), func(t *testing.T) {
					randomWork(t, Config{Policy: p, BudgetBytes: budget(24), DriverEvicts: driver, MoveBytes: budget(3)}, seed)
				})
			}
		}
	}
}

func randomWork(t *testing.T, c Config, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	m := newMachine(t, c)
	var live []cuda.Ptr
	for i := 0; i < 1500; i++ {
		switch k := rng.Intn(12); {
		case k < 3 && len(live) < 30:
			if p, err := m.r.Malloc(int64(1+rng.Intn(5))*BlockBytes-int64(rng.Intn(4096)), rng.Intn(2)); err == nil {
				live = append(live, p)
			}
		case k < 5 && len(live) > 0:
			j := rng.Intn(len(live))
			if err := m.r.Free(live[j]); err != nil {
				t.Fatal(err)
			}
			live = append(live[:j], live[j+1:]...)
		case k < 8 && len(live) > 0:
			var ps []cuda.Ptr
			for n := rng.Intn(4); n >= 0; n-- {
				ps = append(ps, live[rng.Intn(len(live))])
			}
			m.launch(rng.Intn(2), ps[:1]...)
		case k == 8:
			m.take(um.In)
		case k == 9:
			m.take(um.Out)
		case k == 10:
			m.finish()
		default:
			m.gpu()
		}
		for _, x := range m.flying {
			if x.Kind != MoveDiscard {
				continue
			}
			for _, y := range x.runs {
				for b := y.first; b < y.end(); b++ {
					if m.r.arena.owner[b] != nil {
						t.Fatalf("block %d is being discarded and belongs to a live tensor", b)
					}
				}
			}
		}
	}
	m.settle()
}

// TestWakesWhoTakesOut: workers that take out looked before there was anything for them;
// a worker that brings in makes the plan that has something, and that is an event.
func TestWakesWhoTakesOut(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: 8 * BlockBytes})
	a, b := m.malloc(8, 0), m.malloc(4, 0)
	m.launch(0, a)
	for m.take(um.In) {
		m.finish()
	}
	for m.gpu() {
	}
	m.launch(0, b)
	m.r.plan = plan{valid: true, serial: m.r.plan.serial + 1, epoch: m.r.Epoch(), version: m.r.History.Version()} // as made before that launch
	if m.take(um.Out) {
		t.Fatal("the plan has something to take out")
	}
	before := m.r.Epoch()
	if m.take(um.In) {
		t.Fatal("there is room")
	}
	if m.r.Epoch() == before {
		t.Error("nobody is told to look again")
	}
	if !m.take(um.Out) {
		t.Error("there is nothing to take out")
	}
}

// TestPlainMemoryGrows: whoever takes plain memory gets its room, though the job does
// nothing else meanwhile: from dead blocks first, then from tensors, also from one that is
// foreseen for the next operation, and at last from blocks that nothing has proved idle yet.
func TestPlainMemoryGrows(t *testing.T) {
	for _, p := range []um.Policy{um.LRU, um.DeepUM, um.Penstock} {
		t.Run(p.Name, func(t *testing.T) {
			m := newMachine(t, Config{Policy: p, BudgetBytes: budget(16)})
			a, b := m.malloc(8, 0), m.malloc(8, 0)
			for range 20 { // so that b is foreseen
				m.launch(0, a, b)
				m.settle()
			}
			if err := m.r.Free(a); err != nil {
				t.Fatal(err)
			}
			m.launch(0, b)
			m.settle()
			grow := func(plain int, bStays int32) {
				t.Helper()
				m.r.SetPlainBytes(budget(plain), 0)
				m.settle()
				if got, most := m.r.arena.resident, int32(16-plain); got > most {
					t.Errorf("%d blocks on the device beside %d of plain memory, the budget is 16", got, plain)
				}
				if x := m.r.ByPtr[b]; p.Name == um.Penstock.Name && x != nil && x.present != bStays { // the others keep a watermark
					t.Errorf("%d blocks of the live tensor on the device beside %d of plain memory, want %d", x.present, plain, bStays)
				}
			}
			grow(4, 8)
			grow(12, 4)
			if err := m.r.Free(b); err != nil {
				t.Fatal(err)
			}
			grow(16, 0)
		})
	}
}

// TestPlainMemoryDue: room is made for plain memory before it is taken, and only what is
// taken counts as being on the device.
func TestPlainMemoryDue(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(16)})
	m.launch(0, m.malloc(16, 0))
	m.settle()
	m.r.SetPlainBytes(0, budget(4))
	m.settle()
	if got := m.r.arena.resident; got > 12 {
		t.Errorf("%d blocks on the device with plain memory of 4 due, the budget is 16", got)
	}
	m.r.SetPlainBytes(budget(4), 0)
	if got := m.r.Stats().DevicePeakBytes; got > budget(16) {
		t.Errorf("the peak is %d blocks, though room was made first for all of the budget of 16", got/BlockBytes)
	}
	m.r.SetPlainBytes(budget(17-int(m.r.arena.resident)), 0) // taken at once: there is too much for a while
	if got := m.r.Stats().DevicePeakBytes; got != budget(17) {
		t.Errorf("the peak is %d blocks, though 17 were there", got/BlockBytes)
	}
}

// TestRangesForTheLargest: where address space is tight, small tensors leave the range of
// the largest whole, although its blocks are on the device, until there is no other place.
func TestRangesForTheLargest(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(24), ArenaBytes: budget(24)})
	free := func(p cuda.Ptr) {
		t.Helper()
		if err := m.r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	large, small := m.malloc(12, 0), m.malloc(2, 0)
	m.launch(0, large, small)
	m.settle()
	for range 3 {
		free(large)
		m.launch(0, small) // proves that the large one is idle
		m.settle()
		var others []cuda.Ptr
		for range 5 {
			others = append(others, m.malloc(2, 0))
		}
		large = m.malloc(12, 0)
		m.launch(0, append(others, large)...)
		m.settle()
		for _, p := range others {
			free(p)
		}
	}
	free(large)
	for range 11 {
		m.malloc(2, 0)
	}
}

// TestSparedBlocksAreNotWaitedForLong: what the driver was to evict under a move and did
// not stays, and an operation that needs it goes on, although there is always another
// move to be begun before the last one ends.
func TestSparedBlocksAreNotWaitedForLong(t *testing.T) {
	m := newMachine(t, Config{Policy: um.Penstock, BudgetBytes: budget(8), DriverEvicts: true, EvictionsSeen: true, MoveBytes: budget(2)})
	needed := m.malloc(4, 0)
	m.launch(0, needed)
	m.settle()
	var others []cuda.Ptr
	for range 12 {
		others = append(others, m.malloc(2, 0))
	}
	for _, p := range others[:4] {
		m.launch(0, p)
	}
	for range 4 {
		m.take(um.In)
	}
	if m.r.arena.driverVictim[0] == false {
		t.Fatal("nothing of the tensor is to be evicted")
	}
	m.launch(1, needed)
	waiting := m.seq
	for _, p := range others[4:] {
		m.launch(0, p)
	}
	for range 6 {
		m.take(um.In)
		m.finish()
		m.gpu()
		if m.opened[1] == waiting {
			return
		}
	}
	t.Errorf("an operation waits for %d victims of the driver with %d moves under way", m.r.displacing, len(m.flying))
}
