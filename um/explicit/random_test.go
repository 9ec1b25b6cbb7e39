package explicit

import (
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/um"
)

// world is a process and a device in which every byte range has contents, so that
// a chunk that is lost, mixed up or touched while it is away shows.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	r       *Runtime
	ranges  map[uint32]cuda.Range // by slot
	states  map[uint32]State
	tickets map[uint32]uint32
	last    map[uint32]uint64
	seq     uint64

	handles  map[cuda.Handle]int64 // live physical memory
	device   map[cuda.Handle]contents
	mapped   map[cuda.Ptr]Mapping  // by base
	host     map[cuda.Ptr]contents // of pinned memory, by base
	hostUsed map[cuda.Ptr]int64    // extents in use
	hostLeft int64                 // budget
	nextHost cuda.Ptr
	nextH    cuda.Handle
	budget   int64
	plain    int64

	late     []func()             // what the runtime has not heard of yet, in order
	shelf    map[shelf][]cuda.Ptr // dead ranges that the job may take again
	unheard  map[cuda.Ptr]int     // calls about a range among what is late
	apart    map[cuda.Ptr]bool    // allocations that are not for the shelf
	parts    int                  // that there have been
	requests map[shelf]int
	kept     map[shelf]map[int]cuda.Range // by the number of the request that it is kept for
	places   map[cuda.Ptr]bool            // kept, and not taken
	given    int                          // of these, given out
	known    map[shelf]int                // of these the runtime has heard
	retaken  int
	offered  int
	surprise int // retaken while the runtime was moving the range, or had moved it away

	live         map[cuda.Ptr]*expected
	waiting      []*task
	running      [2][]*task // by stream, in order
	moves        []*Move    // begun, not done
	ticket       uint32
	arrived      uint32
	launched     int
	moved        int
	placed       int
	clean        int
	dirty        int                  // compared, and copied
	borrowedLeft int                  // chunks of ranges that were borrowed
	sharedLeft   int                  // chunks of packs where shapes change, with more than one allocation
	steady       bool                 // host memory is there when there is any
	verify       bool                 // the checksum of all that leaves is taken
	inHost       map[cuda.Handle]bool // physical memory that is on the host
	programs     map[*cuda.RecordedLaunch]*program
	made         int  // again
	temps        int  // times that a launch that was issued again read what the job had freed
	guarded      int  // times that an operation waited because of a guard alone
	drafting     bool // workers make plans while others go on
	draft        *Draft
	drafter      um.Direction // its worker
	drafts       int
}

// contents are what a chunk contains, by offset; what is not there is garbage.
type contents map[int64]int

// sum is the same for the same contents.
func (c contents) sum() kernels.Sum128 {
	sum := kernels.Sum128{0, 1}
	for at, x := range c {
		sum[0] += uint64(x) * (2*uint64(at) + 1)
	}
	return sum
}

// before is what there is before an offset.
func (c contents) before(end int64) contents {
	some := contents{}
	for at, x := range c {
		if at < end {
			some[at] = x
		}
	}
	return some
}

// shelf is where a dead range is held.
type shelf struct {
	size   int64
	stream int
}

// expected is what an allocation must contain, by chunk; 0 is unspecified.
type expected struct {
	bytes    int64
	contents []int
	stream   int
	after    uint64 // the operation before it was born
}

type task struct {
	seq     uint64
	stream  int
	slots   []uint32
	ptrs    []cuda.Ptr
	owners  []*expected // of ptrs, when it was issued
	writes  bool
	program *program // what it computes, of its first operand, if it is known to write to that alone
}

// program is what a launch computes that can be issued again: the contents of one chunk from those of others, and of its own if it works in place.
type program struct {
	out     cuda.Ptr
	bytes   int64
	ins     []cuda.Ptr
	salt    int
	inPlace bool
	moody   bool // it does not repeat
	liar    bool // it writes to what it is said to read, as nobody sees
}

func (w *world) Publish(slot uint32, r cuda.Range)  { w.ranges[slot] = r }
func (w *world) Withdraw(slot uint32, r cuda.Range) { delete(w.ranges, slot) }

func (w *world) slotAt(p cuda.Ptr) uint32 {
	for slot, r := range w.ranges {
		if p >= r.Base && p < r.End() {
			return slot
		}
	}
	w.t.Fatalf("no slot has %#x", uint64(p))
	return 0
}

// SetApart fails now and then.
func (w *world) SetApart(p cuda.Ptr, _ int64, _ int) bool {
	if w.rng.Intn(50) == 0 {
		return false
	}
	if w.apart[p] {
		w.t.Fatalf("%#x is set apart twice, and freed once", uint64(p))
	}
	w.apart[p] = true
	w.parts++
	return true
}

func (w *world) SetState(slot uint32, s State, ticket uint32) {
	w.states[slot], w.tickets[slot] = s, ticket
}

// Reserve keeps a place, now and then.
func (w *world) Reserve(r cuda.Range, size int64, stream, after int) bool {
	k := shelf{size, stream}
	next := w.known[k]
	if next+after < w.requests[k] || w.rng.Intn(20) == 0 {
		return false
	}
	if w.kept[k] == nil {
		w.kept[k] = map[int]cuda.Range{}
	}
	w.kept[k][next+after] = r
	w.places[r.Base] = true
	return true
}

// place is what is kept for a request, 0 for nothing.
func (w *world) place(k shelf, number int, bytes int64) cuda.Ptr {
	r, ok := w.kept[k][number-1]
	delete(w.kept[k], number-1)
	if !ok || !w.places[r.Base] || bytes > r.Bytes || w.rng.Intn(8) == 0 {
		return 0
	}
	delete(w.places, r.Base)
	w.apart[r.Base] = true
	w.parts++
	w.given++
	return r.Base
}

// Recall is for places that are kept, and for ranges that are held since a call that the runtime has heard of.
func (w *world) Recall(p cuda.Ptr) bool {
	if w.unheard[p] > 0 {
		return false
	}
	if w.places[p] {
		delete(w.places, p)
		for _, kept := range w.kept {
			maps.DeleteFunc(kept, func(_ int, r cuda.Range) bool { return r.Base == p })
		}
		return true
	}
	for k, l := range w.shelf {
		if i := slices.Index(l, p); i >= 0 {
			w.shelf[k] = slices.Delete(l, i, i+1)
			return true
		}
	}
	w.t.Fatalf("%#x is recalled, and not held", uint64(p))
	return false
}

// Offer puts a range on the shelf, now and then.
func (w *world) Offer(r cuda.Range, stream int) bool {
	if w.rng.Intn(4) == 0 {
		return false
	}
	k := shelf{r.Bytes, stream}
	w.shelf[k] = append(w.shelf[k], r.Base)
	w.offered++
	return true
}

// drain tells the runtime what it has not heard of.
func (w *world) drain() { w.tell(len(w.late)) }

// tell tells it of the first n.
func (w *world) tell(n int) {
	for range n {
		f := w.late[0]
		w.late = w.late[1:]
		f()
	}
}

// note tells the runtime of a call about a range, later.
func (w *world) note(p cuda.Ptr, f func() error) {
	w.unheard[p]++
	w.late = append(w.late, func() {
		w.unheard[p]--
		if err := f(); err != nil {
			w.t.Fatal(err)
		}
	})
}

func (w *world) LastSeq(slot uint32) uint64 { return w.last[slot] }
func (w *world) GiveClones([]cuda.Range)    {}
func (w *world) EndReplay()                 {}
func (w *world) Now() time.Duration         { return 0 }

func (w *world) TakeHost(bytes int64) ([]cuda.Range, bool) {
	if w.hostLeft < bytes || !w.steady && w.rng.Intn(20) == 0 {
		return nil, false
	}
	w.hostLeft -= bytes
	var out []cuda.Range
	for bytes > 0 {
		n := bytes
		if n > PageBytes && w.rng.Intn(3) == 0 {
			n = PageBytes
		}
		out = append(out, cuda.Range{Base: w.nextHost, Bytes: n})
		w.hostUsed[w.nextHost] = n
		w.nextHost += cuda.Ptr(n)
		bytes -= n
	}
	return out, true
}

func (w *world) GiveHost(extents []cuda.Range) {
	for _, e := range extents {
		if w.hostUsed[e.Base] != e.Bytes {
			w.t.Fatalf("host memory at %#x given back twice", uint64(e.Base))
		}
		delete(w.hostUsed, e.Base)
		delete(w.host, e.Base)
		w.hostLeft += e.Bytes
	}
}

func newWorld(t *testing.T, seed int64, budget, host int64, ahead bool) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewSource(seed)), ranges: map[uint32]cuda.Range{}, states: map[uint32]State{},
		tickets: map[uint32]uint32{}, last: map[uint32]uint64{}, handles: map[cuda.Handle]int64{}, device: map[cuda.Handle]contents{}, mapped: map[cuda.Ptr]Mapping{},
		host: map[cuda.Ptr]contents{}, hostUsed: map[cuda.Ptr]int64{}, hostLeft: host, nextHost: 1 << 30, budget: budget, inHost: map[cuda.Handle]bool{}, live: map[cuda.Ptr]*expected{},
		shelf: map[shelf][]cuda.Ptr{}, unheard: map[cuda.Ptr]int{},
		kept: map[shelf]map[int]cuda.Range{}, places: map[cuda.Ptr]bool{},
		apart: map[cuda.Ptr]bool{}, requests: map[shelf]int{}, known: map[shelf]int{}, programs: map[*cuda.RecordedLaunch]*program{},
	}
	w.r = New(Config{
		BudgetBytes: budget, HostBudgetBytes: host, Addresses: cuda.Range{Base: 1 << 40, Bytes: 64 * (budget + host)},
		ChunkBytes: 4 * PageBytes, Ahead: ahead, Checksums: true, Packs: true, Replay: um.Replay(seed / 3 % 3), ScratchBytes: 1 << 30,
	}, w)
	w.r.trial = trial{on: true, left: 1 << 30}
	for f := range 3 {
		w.r.again.same[uint32(programs+f)] = trustAfter
	}
	return w
}

func (w *world) malloc(bytes int64, stream int) cuda.Ptr {
	k := shelf{WholePages(bytes), stream}
	var p cuda.Ptr
	var lives int64
	for _, e := range w.live {
		lives += WholePages(e.bytes)
	}
	const slack = 16 * PageBytes // the last chunks would have to leave in smaller pieces than they come in
	if lives+k.size > w.r.config.BudgetBytes+w.r.config.HostBudgetBytes-w.plain-slack {
		return 0
	}
	w.requests[k]++
	number := w.requests[k]
	retake := func() (int64, error) {
		w.known[k] = number
		return w.r.Retake(p, bytes, stream)
	}
	if p = w.place(k, number, bytes); p != 0 {
		w.note(p, func() error {
			size, err := retake()
			if err == nil && size != 0 {
				err = fmt.Errorf("a part of a pack has %d bytes of its own", size)
			}
			return err
		})
	} else if l := w.shelf[k]; len(l) > 0 && w.rng.Intn(8) > 0 {
		p = l[len(l)-1]
		w.shelf[k] = l[:len(l)-1]
		w.note(p, func() error {
			w.retaken++
			if t := w.r.held[p]; t != nil && (t.flying > 0 || t.absent > 0) {
				w.surprise++
			}
			size, err := retake()
			if err == nil && size != k.size {
				err = fmt.Errorf("%d bytes are taken again, want %d", size, k.size)
			}
			return err
		})
	} else {
		w.drain()
		w.known[k] = number
		var err error
		if p, err = w.r.Malloc(bytes, stream); err != nil {
			return 0
		}
	}
	w.live[p] = &expected{bytes: bytes, contents: make([]int, len(cut(WholePages(bytes), 4*PageBytes))), stream: stream, after: w.seq}
	return p
}

func (w *world) free(p cuda.Ptr) {
	e := w.live[p]
	delete(w.live, p)
	if w.rng.Intn(8) > 0 {
		k := shelf{WholePages(e.bytes), e.stream}
		if w.apart[p] {
			delete(w.apart, p)
			k.size = 0
		} else {
			w.shelf[k] = append(w.shelf[k], p)
		}
		w.note(p, func() error {
			size, err := w.r.Hold(p)
			if err == nil && size != k.size {
				err = fmt.Errorf("%d bytes are held, want %d", size, k.size)
			}
			return err
		})
		return
	}
	w.drain()
	delete(w.apart, p)
	if err := w.r.Free(p); err != nil {
		w.t.Fatal(err)
	}
}

// report is the hook: it publishes the operation; what was reported is launched in
// order when everything is usable.
func (w *world) report(stream int, ptrs []cuda.Ptr, writes bool, signature uint64) {
	w.seq++
	x := &task{seq: w.seq, stream: stream, ptrs: ptrs, writes: writes}
	for _, p := range ptrs {
		slot := w.slotAt(p)
		x.slots = append(x.slots, slot)
		x.owners = append(x.owners, w.live[p])
		w.last[slot] = w.seq
	}
	w.waiting = append(w.waiting, x)
	w.late = append(w.late, func() {
		w.r.Op(um.Op{Seq: x.seq, Stream: stream, Work: uint32(signature), Slots: x.slots})
		for k, p := range ptrs {
			if got, first := w.r.Unwritten(p, x.seq), x.owners[k].after == x.seq-1; got != first {
				w.t.Errorf("operation %d: %#x is unwritten: %t, and was allocated after operation %d", x.seq, uint64(p), got, x.owners[k].after)
			}
		}
	})
	if w.rng.Intn(3) > 0 {
		w.drain()
	}
}

// programs is the first function of which launches can be issued again.
const programs = 100

// compute reports a launch that can be issued again: it makes the first operand of the others.
// One that is not honest may not repeat, or may write to what it reads.
func (w *world) compute(stream int, ptrs []cuda.Ptr, dishonest bool) {
	out := w.live[ptrs[0]]
	pr := &program{out: ptrs[0], bytes: out.bytes, ins: ptrs[1:], salt: w.rng.Int() | 1, inPlace: out.contents[0] != 0 && w.rng.Intn(2) == 0}
	if dishonest {
		pr.moody = w.rng.Intn(2) == 0
		pr.liar = !pr.moody
	}
	l := &cuda.RecordedLaunch{}
	w.programs[l] = pr
	w.seq++
	x := &task{seq: w.seq, stream: stream, ptrs: ptrs, writes: true, program: pr}
	o := um.Op{Seq: x.seq, Stream: stream, Work: uint32(programs + w.rng.Intn(3)), Again: l}
	for i, p := range ptrs {
		slot := w.slotAt(p)
		x.owners = append(x.owners, w.live[p])
		w.last[slot] = w.seq
		if slices.Contains(x.slots, slot) {
			continue // another part of a pack
		}
		x.slots = append(x.slots, slot)
		a := um.AccessReads
		if i == 0 {
			a = um.AccessWrites
		}
		o.Access = append(o.Access, a)
	}
	o.Slots = x.slots
	w.waiting = append(w.waiting, x)
	w.late = append(w.late, func() { w.r.Op(o) })
	if w.rng.Intn(3) > 0 {
		w.drain()
	}
}

// at is what an address of the device contains.
func (w *world) at(p cuda.Ptr) int {
	m, ok := w.mapping(p)
	if !ok {
		w.t.Fatalf("%#x is read, which is not mapped", uint64(p))
	}
	return w.device[m.Handle][int64(p-m.Base)]
}

// run is what a program computes where its output contains something.
func (w *world) run(pr *program, before int, at func(cuda.Ptr) int) int {
	x := pr.salt
	if pr.inPlace {
		x = x*31 + before
	}
	for _, p := range pr.ins {
		x = x*31 + at(p)
	}
	if pr.moody && w.rng.Intn(4) == 0 {
		x += w.rng.Int()
	}
	return x | 1
}

// issued is what launches make that are issued again.
func (w *world) issued(m *Move) contents {
	x := -1
	temps := map[int64]int{} // by offset
	var bytes int64
	for i, l := range m.Launches {
		temp := func(p cuda.Ptr) (offset int64, ok bool) {
			for _, t := range m.Temps[i] {
				if p >= t.At.Base && p < t.At.End() {
					return t.Offset, true
				}
			}
			return 0, false
		}
		at := func(p cuda.Ptr) int {
			if offset, ok := temp(p); ok {
				w.temps++
				return temps[offset]
			}
			if p == m.Chunk.Base {
				return x
			}
			return w.at(p)
		}
		pr := w.programs[l]
		made := w.run(pr, at(pr.out), at)
		if offset, ok := temp(pr.out); ok {
			temps[offset] = made
		} else {
			x, bytes = made, pr.bytes
		}
	}
	return contents{0: x, bytes - 1: x}
}

// launch launches what waits, in order, as far as the states allow.
func (w *world) launch() {
	for len(w.waiting) > 0 {
		x := w.waiting[0]
		held := false
		for i, s := range x.slots {
			switch {
			case w.states[s] == Absent:
				return
			case w.states[s] == Guarded && (x.program == nil || i == 0):
				held = true
			}
		}
		if held {
			w.guarded++
			return
		}
		w.waiting = w.waiting[1:]
		w.launched++
		for _, s := range x.slots { // the stream waits for copies
			if w.states[s] == Arriving {
				for int32(w.arrived-w.tickets[s]) < 0 {
					w.copyIn()
				}
			}
		}
		w.running[x.stream] = append(w.running[x.stream], x)
		w.touch(x)
	}
}

// touch runs an operation: everything must be mapped, with the right contents.
func (w *world) touch(x *task) {
	for k, p := range x.ptrs {
		e := x.owners[k]
		for i, c := range cut(WholePages(e.bytes), 4*PageBytes) {
			first := p + cuda.Ptr(c.offset)
			last := first + cuda.Ptr(min(c.bytes, e.bytes-c.offset)) - 1
			for _, at := range []cuda.Ptr{first, last} {
				m, ok := w.mapping(at)
				if !ok {
					w.t.Fatalf("operation %d touches %#x, which is not mapped", x.seq, uint64(at))
				}
				if found := w.device[m.Handle][int64(at-m.Base)]; e.contents[i] != 0 && found != e.contents[i] {
					w.t.Fatalf("operation %d finds %d at %#x, not %d", x.seq, found, uint64(at), e.contents[i])
				}
			}
			if x.program == nil && (x.writes || e.contents[i] == 0) || x.program != nil && (k == 0 || x.program.liar) {
				e.contents[i] = w.rng.Int() | 1
				if x.program != nil && k == 0 {
					e.contents[i] = w.run(x.program, w.at(first), w.at)
				}
				for _, at := range []cuda.Ptr{first, last} {
					m, _ := w.mapping(at)
					w.device[m.Handle][int64(at-m.Base)] = e.contents[i]
				}
			}
		}
	}
}

// mapping is what an address is mapped to.
func (w *world) mapping(at cuda.Ptr) (Mapping, bool) {
	if m, ok := w.mapped[at]; ok {
		return m, true
	}
	for _, m := range w.mapped {
		if at >= m.Base && at < m.End() {
			return m, true
		}
	}
	return Mapping{}, false
}

// inUse says whether a running operation touches a range.
func (w *world) inUse(r cuda.Range) bool {
	for _, q := range w.running {
		for _, x := range q {
			for k, p := range x.ptrs {
				if r.End() > p && r.Base < p+cuda.Ptr(x.owners[k].bytes) {
					return true
				}
			}
		}
	}
	return false
}

func (w *world) unmap(x Mapping) {
	if m, ok := w.mapped[x.Base]; !ok || m != x {
		w.t.Fatalf("unmapping %#x, which is not mapped so", uint64(x.Base))
	}
	if w.inUse(x.Range) {
		w.t.Fatalf("unmapping %#x, which a running operation touches", uint64(x.Base))
	}
	delete(w.mapped, x.Base)
}

// begin is the mover's first half. Now and then what happens while its worker makes a plan comes first.
func (w *world) begin(d um.Direction) bool {
	switch {
	case w.drafting && w.draft == nil && w.rng.Intn(4) == 0:
		w.r.plan.valid = false
		if w.draft = w.r.Draft(d); w.draft != nil {
			w.drafts++
			w.drafter = d
			return false
		}
	case w.draft != nil && w.drafter == d:
		w.draft.Decide()
		w.r.Install(w.draft)
		w.draft = nil
	}
	m, ok := w.r.Next(d)
	if !ok {
		return false
	}
	w.moved++
	for _, x := range m.Unmap {
		w.unmap(x)
	}
	for _, h := range m.Release {
		if w.handles[h] == 0 {
			w.t.Fatalf("handle %d released twice", h)
		}
		for _, x := range w.mapped {
			if x.Handle == h {
				w.t.Fatalf("handle %d is released while it is mapped at %#x", h, uint64(x.Base))
			}
		}
		delete(w.handles, h)
		delete(w.device, h)
	}
	if m.Kind != MoveEvict && m.Kind != MoveTrim && m.Kind != MoveVerify {
		if m.Handle == 0 {
			w.nextH++
			m.Handle = w.nextH
			w.handles[m.Handle] = m.Chunk.Bytes
			w.inHost[m.Handle] = m.Kind == MovePlace
		}
		if w.handles[m.Handle] != m.Chunk.Bytes {
			w.t.Fatalf("a handle of %d bytes mapped for %d", w.handles[m.Handle], m.Chunk.Bytes)
		}
		if _, ok := w.mapped[m.Chunk.Base]; ok {
			w.t.Fatalf("%#x is mapped twice", uint64(m.Chunk.Base))
		}
		for _, x := range w.mapped {
			if x.Handle == m.Handle && w.lives(x.Range) {
				w.t.Fatalf("handle %d is mapped at %#x, where something is alive", m.Handle, uint64(x.Base))
			}
		}
		w.mapped[m.Chunk.Base] = Mapping{m.Chunk, m.Handle}
		w.device[m.Handle] = contents{0: -1 - w.rng.Int()} // garbage
	}
	var total int64
	for h, n := range w.handles {
		if !w.inHost[h] {
			total += n
		}
	}
	if total+w.plain > w.budget {
		w.t.Fatalf("%d bytes of device memory in a budget of %d", total+w.plain, w.budget)
	}
	if m.Kind == MoveEvict && (m.Checksum || w.verify) {
		w.weigh(m)
	}
	if m.Bytes <= 0 && (m.Kind == MoveEvict || m.Kind == MoveFetch) {
		w.t.Fatalf("a move of %d bytes", m.Bytes)
	}
	if m.Kind == MoveEvict && m.tensor.borrowed {
		w.borrowedLeft++
	}
	if m.Kind == MoveEvict && m.tensor.alive > 1 && m.tensor.parts[0].instance != 0 {
		w.sharedLeft++
	}
	switch {
	case m.Kind == MovePlace:
		w.placed++
		fallthrough
	case m.Kind == MoveMap || m.Kind == MoveTrim:
		if len(m.Host) == 0 && len(m.Launches) == 0 {
			w.r.Done(m)
			break
		}
		fallthrough
	default:
		if d == um.In {
			w.ticket++
			w.r.Submitted(m, w.ticket)
		} else {
			w.r.Submitted(m, 0)
		}
		w.moves = append(w.moves, m)
	}
	return true
}

// lives says whether something is alive in a range.
func (w *world) lives(x cuda.Range) bool {
	for p := range w.live {
		if p >= x.Base && p < x.End() {
			return true
		}
	}
	return false
}

// weigh is the checksum of what leaves: here it is the contents themselves.
func (w *world) weigh(m *Move) {
	sum := w.device[m.Handle].sum()
	m.Clean = m.Proven
	if m.Compare {
		m.Clean = sum == m.Sum
		if m.Clean {
			w.clean++
		} else {
			w.dirty++
		}
	}
	m.Sum, m.Summed = sum, true
}

// copyIn ends the oldest copy to the device.
func (w *world) copyIn() {
	for i, m := range w.moves {
		if m.Direction() == um.In {
			w.end(i)
			return
		}
	}
	w.t.Fatal("a stream waits for a copy that was never submitted")
}

// end is the mover's second half.
func (w *world) end(i int) {
	m := w.moves[i]
	w.moves = append(w.moves[:i:i], w.moves[i+1:]...)
	if m.Kind == MoveVerify {
		if !w.steady && w.rng.Intn(20) == 0 {
			w.r.Cancelled(m)
			return
		}
		if !m.Proven {
			m.Sum, m.Summed = w.issued(m).sum(), true
		}
		w.r.Done(m)
		return
	}
	if m.Kind == MoveEvict && !m.Copied() && !m.Clean {
		w.r.Cancelled(m)
		return
	}
	if m.Kind == MoveEvict {
		if now := w.device[m.Handle].sum(); m.Summed && now != m.Sum {
			w.t.Fatalf("%#x was written to after its checksum had been taken", uint64(m.Chunk.Base))
		}
		for _, h := range m.Host {
			if w.hostUsed[h.Base] == 0 {
				w.t.Fatalf("%#x leaves to host memory that was given back", uint64(m.Chunk.Base))
			}
			if !m.Clean {
				w.host[h.Base] = w.device[m.Handle].before(m.Bytes)
			}
		}
		w.unmap(Mapping{m.Chunk, m.Handle})
		w.device[m.Handle] = contents{}
		if m.Placed != w.inHost[m.Handle] {
			w.t.Fatalf("handle %d: placed %t, in host memory %t", m.Handle, m.Placed, w.inHost[m.Handle])
		}
		if m.Placed {
			delete(w.handles, m.Handle)
		}
	} else if len(m.Launches) > 0 && w.makes(m) {
		w.arrived++
	} else {
		for _, h := range m.Host {
			if w.hostUsed[h.Base] == 0 {
				w.t.Fatalf("copying in from host memory at %#x that was given back", uint64(h.Base))
			}
			w.device[m.Handle] = w.host[h.Base].before(m.Bytes)
		}
		w.arrived++
	}
	w.r.Done(m)
}

// makes issues a move's launches again; false when its copy is to be fetched.
func (w *world) makes(m *Move) bool {
	w.device[m.Handle] = w.issued(m)
	if w.device[m.Handle].sum() == m.Sum {
		w.made++
		return true
	}
	if !m.Copied() {
		w.t.Fatalf("%#x is made wrongly, and has no copy", uint64(m.Chunk.Base))
	}
	w.r.Unmade(m)
	return false
}

// finish ends the oldest operation of a stream.
func (w *world) finish(s int) {
	if q := w.running[s]; len(q) > 0 {
		w.running[s] = q[1:]
		w.drain() // what has run was reported
		w.r.Progress(s, q[0].seq)
	}
}

// settle runs everything to its end.
func (w *world) settle() {
	for idle := 0; idle < 50; idle++ {
		w.drain()
		w.launch()
		if len(w.waiting) == 0 && len(w.running[0])+len(w.running[1]) == 0 && len(w.moves) == 0 {
			return
		}
		w.step()
		if len(w.waiting) == 0 {
			idle = min(idle, 40)
		}
		for len(w.moves) > 0 {
			w.oldest(w.moves[0].Direction())
			idle = 0
		}
		for s := range w.running {
			for len(w.running[s]) > 0 {
				w.finish(s)
				idle = 0
			}
		}
		for _, d := range []um.Direction{um.In, um.Out} {
			for w.begin(d) {
				idle = 0
			}
		}
	}
	n := 0
	for _, x := range w.r.Slots.All() {
		if x != nil && w.r.evictable(x) {
			n++
		}
	}
	w.t.Fatalf("nothing goes on: %d operations wait; %s; room %d, %d evictable, physical %+v, flying %v, plan to evict %d", len(w.waiting), w.r.Explain(), w.r.RoomBytes(), n, w.r.physical, w.r.flying, len(w.r.plan.evict))
}

func (w *world) oldest(d um.Direction) {
	for i, m := range w.moves {
		if m.Direction() == d {
			w.end(i)
			return
		}
	}
}

// step does something at random.
func (w *world) step() {
	switch w.rng.Intn(7) {
	case 6:
		w.tell(w.rng.Intn(len(w.late) + 1))
	case 0:
		w.begin(um.In)
	case 1:
		w.begin(um.Out)
	case 2:
		w.oldest(um.In)
	case 3:
		w.oldest(um.Out)
	case 4:
		w.finish(w.rng.Intn(2))
	case 5:
		w.launch()
	}
}

func TestRandomWork(t *testing.T) {
	retaken, surprise, offered, seeds := 0, 0, 0, short.Of(200, 120)
	var made, dropped, unmade, wrong [3]int64 // by Replay
	var guarded [3]int
	temps := 0
	for seed := int64(0); seed < int64(seeds); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			budget := int64(64 * PageBytes)
			if seed%3 == 0 {
				budget = 12 * PageBytes // many operations name more
			}
			w := newWorld(t, seed, budget, 256*PageBytes, seed%2 == 0)
			w.verify, w.drafting = seed%5 == 0, true
			var ptrs []cuda.Ptr
			for i := 0; i < 11000; i++ {
				switch n := w.rng.Intn(10); {
				case n < 2 && len(ptrs) < 40:
					stream := 0
					if w.rng.Intn(5) == 0 {
						stream = 1
					}
					if p := w.malloc(int64(1+w.rng.Intn(9*PageBytes)), stream); p != 0 {
						w.settleWaiting()
						named := w.choose(ptrs, stream, w.rng.Intn(3))
						if ptrs = append(ptrs, p); len(w.live[p].contents) == 1 && w.rng.Intn(2) == 0 && w.written(named) {
							w.compute(stream, append([]cuda.Ptr{p}, named...), um.Replay(seed/3%3) == um.ReplayInsured && w.rng.Intn(8) == 0)
							break
						}
						w.report(stream, []cuda.Ptr{p}, true, 7)
					}
				case n < 3 && len(ptrs) > 0 && len(w.waiting) == 0:
					k := w.rng.Intn(len(ptrs))
					e := w.live[ptrs[k]]
					w.free(ptrs[k])
					ptrs = append(ptrs[:k], ptrs[k+1:]...)
					if w.rng.Intn(2) == 0 {
						break
					}
					// As a layer does that is like the one before.
					if p := w.malloc(e.bytes, e.stream); p != 0 {
						ptrs = append(ptrs, p)
						w.settleWaiting()
						w.report(e.stream, []cuda.Ptr{p}, true, 7)
					}
				case n < 6 && len(ptrs) > 0 && len(w.waiting) == 0:
					stream := w.rng.Intn(2)
					named := w.choose(ptrs, stream, 1+w.rng.Intn(min(3, len(ptrs))))
					if out := w.live[named[0]]; len(out.contents) == 1 && w.rng.Intn(2) == 0 && w.written(named[1:]) {
						w.compute(stream, named, um.Replay(seed/3%3) == um.ReplayInsured && w.rng.Intn(8) == 0)
						break
					}
					w.report(stream, named, w.rng.Intn(2) == 0, uint64(w.rng.Intn(5)))
				default:
					w.step()
				}
				if i%1000 == 999 {
					w.r.trial.on = w.rng.Intn(3) > 0
				}
				if i == 8000 && seed%4 == 1 {
					w.r.config.Replay = um.ReplayOff // what has been dropped has to come back all the same
				}
				if i%1000 == 499 && seed%4 == 0 {
					w.r.EmptyCache()
				}
				if i%50 == 0 {
					w.drain()
					if err := errors.Join(w.r.Check(), segments.Check(w.r.Segments(), w.r.LiveBytes())); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.settle()
			if err := w.r.Check(); err != nil {
				t.Fatal(err)
			}
			for _, p := range ptrs {
				w.free(p)
			}
			w.settle()
			if early := len(w.r.unborn()); len(w.ranges) != len(w.r.held)+early || len(w.r.ByPtr) != 0 {
				t.Fatalf("%d slots are in use, with %d dead ranges held, %d packs of which no part was born yet and %d live", len(w.ranges), len(w.r.held), early, len(w.r.ByPtr))
			}
			retaken, surprise, offered = retaken+w.retaken, surprise+w.surprise, offered+w.offered
			s := w.r.Stats()
			temps += w.temps
			k := um.Replay(seed / 3 % 3)
			made[k], dropped[k], guarded[k], unmade[k], wrong[k] = made[k]+s.Made, dropped[k]+s.Dropped, guarded[k]+w.guarded, unmade[k]+s.Unmade, wrong[k]+s.Wrong
			if len(w.hostUsed) != 0 {
				t.Fatalf("%d pieces of host memory are still in use", len(w.hostUsed))
			}
			if w.clean == 0 || w.dirty == 0 {
				t.Fatalf("%d chunks left without a copy, %d were compared and copied", w.clean, w.dirty)
			}
			if seed%3 == 0 && w.placed == 0 {
				t.Fatal("nothing was mapped in place")
			}
			if w.launched < 200 || w.moved < 700 || w.drafts < 20 {
				t.Fatalf("only %d launches, %d moves and %d plans while others went on: the test tests little", w.launched, w.moved, w.drafts)
			}
		})
	}
	if retaken < 25*seeds || surprise < 5*seeds/2 || offered < seeds/2 {
		t.Fatalf("%d ranges were taken again, %d of them by surprise, and %d offered: the test tests little of it", retaken, surprise, offered)
	}
	if insured, on := um.ReplayInsured, um.ReplayOn; made[insured] < int64(seeds)/2 || unmade[insured] == 0 || wrong[insured] < int64(seeds)/4 || made[on] < int64(seeds)/2 || guarded[on] < seeds/4 || temps == 0 {
		t.Fatalf("by kind of replay %d dropped, %d made again, %d not the same, %d found wrong before, %d waited for a guard, %d reads of what had been freed: the test tests little of it", dropped, made, unmade, wrong, guarded, temps)
	}
}

// choose chooses so many allocations, at most, for an operation on a stream.
func (w *world) choose(ptrs []cuda.Ptr, stream, n int) (named []cuda.Ptr) {
	for _, k := range w.rng.Perm(len(ptrs))[:min(n, len(ptrs))] {
		p := ptrs[k]
		if w.live[p].stream != stream { // the job orders its streams: here by waiting
			w.drainStreams()
		}
		named = append(named, p)
	}
	return named
}

// written says whether allocations contain something everywhere, or will by the time that what waits has run.
func (w *world) written(ptrs []cuda.Ptr) bool {
	return !slices.ContainsFunc(ptrs, func(p cuda.Ptr) bool { return slices.Contains(w.live[p].contents, 0) })
}

// settleWaiting goes on until no operation waits.
func (w *world) settleWaiting() {
	for n := 0; len(w.waiting) > 0; n++ {
		w.step()
		if n > 100000 {
			w.settle()
		}
	}
}

// drainStreams finishes everything that runs, as a job's synchronisation does.
func (w *world) drainStreams() {
	for s := range w.running {
		for len(w.running[s]) > 0 {
			w.finish(s)
		}
	}
}
