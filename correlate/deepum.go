package correlate

import (
	"fmt"
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// ExecID stands for one kernel with one set of parameters: launches that look
// the same have the same ID. IDs count up and are not used again, so a record
// that names a forgotten kernel matches nothing. 0 is none.
type ExecID uint32

// Limits and defaults of [TablesConfig].
const (
	MaxHistoryLength = 8

	DefaultHistoryLength = 3
	DefaultRecords       = 16
	DefaultRows          = 2048
	DefaultAssociativity = 2
	DefaultSuccessors    = 4
	DefaultMaxExecIDs    = 1 << 15
	DefaultMaxBytes      = 256 << 20
)

// TablesConfig sizes the tables. Zero values take the defaults, which the
// published work leaves open: associativity, successors and history are those
// of its ancestors (Solihin, Lee, Torrellas; SnuRHAC), the rows hold a kernel
// that touches 8 GiB in blocks of 2 MiB.
type TablesConfig struct {
	HistoryLength int   // kernels before the running one that a prediction must match (3; at most MaxHistoryLength)
	Records       int   // records of history and successor kept per kernel (16)
	Rows          int   // most rows of a kernel's block table, rounded up to a power of two (2048)
	Associativity int   // blocks per row (2)
	Successors    int   // successors kept per block (4)
	MaxExecIDs    int   // kernels known at once; the least recently launched is forgotten (32,768)
	MaxBytes      int64 // memory for everything; beyond it, too, the least recently launched is forgotten (256 MiB)
}

func (c TablesConfig) withDefaults() TablesConfig {
	set := func(field *int, value, most int) {
		if *field <= 0 {
			*field = value
		}
		*field = min(*field, most)
	}
	set(&c.HistoryLength, DefaultHistoryLength, MaxHistoryLength)
	set(&c.Records, DefaultRecords, 1<<10)
	set(&c.Rows, DefaultRows, 1<<24)
	set(&c.Associativity, DefaultAssociativity, 64)
	set(&c.Successors, DefaultSuccessors, math.MaxUint8)
	set(&c.MaxExecIDs, DefaultMaxExecIDs, 1<<24)
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	rows := 1
	for rows < c.Rows {
		rows *= 2
	}
	c.Rows = rows
	return c
}

// Tables are DeepUM's correlation tables. They see kernels (by signature, in
// stream order) and the blocks that were faulted in or migrated for each, and
// learn two things:
//
//   - The execution table has an entry per kernel with records of (the three
//     kernels before it, the kernel after it), most recent first. Three
//     predecessors tell apart the many places in a training step that run the
//     same kernel on the same data, such as a shared workspace being cleared.
//   - Each kernel has a block table of its own, a set-associative cache from a
//     block to the blocks that followed it, most recent first, and the first
//     and the last block of the kernel's latest execution.
//
// Prediction ([Tables.Chain]) walks the running kernel's block table from the
// block touched last. When the walk has met the kernel's last block, the
// execution table says which kernel comes next and the walk goes on at that
// one's first block, as many kernels ahead as asked. Where either table knows
// nothing, the walk ends: a guess beyond it would displace what is known to be
// needed.
//
// Learning and lookup are apart, as in the correlator and the prefetcher
// threads of the original: Launch and Touch learn, everything else only reads.
//
// # Invariants
//
//   - A kernel's first and last block change only when its execution is over,
//     so that a walk under a running execution follows the one before.
//   - Records and tables belong to a kernel and go with it; what others recorded
//     about its ID then matches nothing.
//   - Bytes() is the sum over the kernels known and never exceeds MaxBytes by
//     more than the running kernel's own tables.
//
// # Caveats
//
// One writer at a time; readers may run beside each other but not beside it.
// An execution that touches only part of its blocks (the rest being resident)
// moves the first and last block: report blocks brought in by a prefetch, too.
// A block table grows up to its limit and then forgets the least recently
// used block of a row; the walk ends at a forgotten one.
type Tables struct {
	config  TablesConfig
	kernels *simplelru.LRU[uint64, *execution] // by signature
	byID    map[ExecID]*execution
	lastID  ExecID
	bytes   int64
	stats   TableStats

	running *execution
	history predecessors // the kernels before the running one
	touched bool         // the running execution has touched a block
	first   uint64       // the first block it touched
	last    uint64       // the latest
}

// predecessors are the kernels before one, latest first; unused places are 0.
type predecessors [MaxHistoryLength]ExecID

func (h predecessors) after(id ExecID, length int) predecessors {
	copy(h[1:length], h[:length-1])
	h[0] = id
	return h
}

// record is one way a kernel was reached and left.
type record struct {
	before predecessors
	next   ExecID
}

// execution is what is known of one kernel: its entry in the execution table
// and its block table.
type execution struct {
	id      ExecID
	records []record // latest first
	ran     bool     // at least one execution is over
	located bool     // start and end are known
	start   uint64
	end     uint64
	blocks  blockTable
}

// TableStats count what the tables were asked and how well they knew.
type TableStats struct {
	Launches  int64 // kernels looked up
	Known     int64 // of which were known before
	Predicted int64 // launches whose kernel the execution table had an opinion on
	Correct   int64 // of which it was right
	Forgotten int64 // kernels dropped because of the limits
	Displaced int64 // blocks dropped from full rows
}

// NewTables returns empty tables.
func NewTables(config TablesConfig) *Tables {
	t := &Tables{config: config.withDefaults(), byID: map[ExecID]*execution{}}
	kernels, err := simplelru.NewLRU(t.config.MaxExecIDs, func(_ uint64, e *execution) {
		delete(t.byID, e.id)
		t.bytes -= e.bytes()
		t.stats.Forgotten++
	})
	if err != nil {
		panic(fmt.Sprintf("correlate: a cache of %d: %v", t.config.MaxExecIDs, err)) // withDefaults makes the size positive
	}
	t.kernels = kernels
	return t
}

// Launch says that the kernel with this signature is about to run, in stream
// order, and that the one before it is over. It returns the kernel's ID.
func (t *Tables) Launch(signature uint64) ExecID {
	t.stats.Launches++
	e, known := t.kernels.Get(signature)
	if known {
		t.stats.Known++
	} else {
		if t.lastID == math.MaxUint32 {
			t.forgetAll()
		}
		t.lastID++
		e = &execution{id: t.lastID}
	}
	if before := t.running; before != nil {
		if next := before.next(t.history); next != 0 {
			t.stats.Predicted++
			if next == e.id {
				t.stats.Correct++
			}
		}
		t.charge(before, func() { before.recordNext(t.history, e.id, t.config.Records) })
		before.ran = true
		if t.touched {
			before.located, before.start, before.end = true, t.first, t.last
		}
		t.history = t.history.after(before.id, t.config.HistoryLength)
	}
	if !known {
		// Only now: it may push out the kernel that was running.
		t.kernels.Add(signature, e)
		t.byID[e.id] = e
		t.bytes += e.bytes()
	}
	t.running, t.touched = e, false
	t.shrink()
	return e.id
}

// Touch says that a block was faulted in or migrated for the running kernel,
// in order. Before the first launch it does nothing.
func (t *Tables) Touch(block uint64) {
	e := t.running
	if e == nil || t.touched && block == t.last {
		return
	}
	if !t.touched {
		t.touched, t.first, t.last = true, block, block
		return
	}
	previous := t.last
	t.last = block
	t.charge(e, func() {
		if e.blocks.follow(previous, block, &t.config) {
			t.stats.Displaced++
		}
	})
	t.shrink()
}

// charge accounts for the memory that a change to an execution takes.
func (t *Tables) charge(e *execution, change func()) {
	before := e.bytes()
	change()
	if t.byID[e.id] == e {
		t.bytes += e.bytes() - before
	}
}

// shrink forgets kernels until the memory limit holds; the running one stays.
func (t *Tables) shrink() {
	for t.bytes > t.config.MaxBytes && t.kernels.Len() > 1 {
		t.kernels.RemoveOldest()
	}
}

// forgetAll starts over when the IDs are used up.
func (t *Tables) forgetAll() {
	t.kernels.Purge()
	t.lastID, t.running, t.touched, t.history = 0, nil, false, predecessors{}
}

// recordNext puts a record first, dropping the oldest beyond the limit.
func (e *execution) recordNext(before predecessors, next ExecID, limit int) {
	r := record{before: before, next: next}
	at := len(e.records)
	for i := range e.records {
		if e.records[i] == r {
			at = i
			break
		}
	}
	if at == len(e.records) {
		if at < limit {
			e.records = append(e.records, r)
		} else {
			at--
		}
	}
	copy(e.records[1:at+1], e.records[:at])
	e.records[0] = r
}

// next is the kernel that followed this one when it was last reached in the
// same way, or 0.
func (e *execution) next(before predecessors) ExecID {
	for i := range e.records {
		if e.records[i].before == before {
			return e.records[i].next
		}
	}
	return 0
}

// PredictedNext returns up to n kernels expected after the running one, next
// first. It ends at the first that cannot be predicted.
func (t *Tables) PredictedNext(n int) []ExecID {
	var ids []ExecID
	e, before := t.running, t.history
	for e != nil && len(ids) < n {
		if e, before = t.successor(e, before); e != nil {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// successor is the kernel expected after another and the history it then has,
// or nil.
func (t *Tables) successor(e *execution, before predecessors) (*execution, predecessors) {
	next := t.byID[e.next(before)]
	return next, before.after(e.id, t.config.HistoryLength)
}

// Chain visits the blocks expected to be touched: first the rest of the
// running kernel's (0 kernels ahead), then those of the kernels expected after
// it, up to degree kernels ahead, each block once and nearest first. It ends
// when visit returns false or where the tables know nothing more.
func (t *Tables) Chain(degree int, visit func(kernelsAhead int, block uint64) bool) {
	e, before := t.running, t.history
	if e == nil {
		return
	}
	w := walks.Get().(*walk)
	defer walks.Put(w)
	w.reset(visit)
	from, fresh := e.start, true
	if t.touched {
		from, fresh = t.last, false
	}
	for ahead := 0; ; ahead++ {
		if !w.through(e, ahead, from, fresh, ahead == 0 && t.touched) {
			return
		}
		if ahead >= degree {
			return
		}
		if e, before = t.successor(e, before); e == nil {
			return
		}
		from, fresh = e.start, true
	}
}

// walk is the state of one Chain.
type walk struct {
	visit func(kernelsAhead int, block uint64) bool
	seen  map[uint64]int // the latest kernel whose walk met the block, counted from 1
	queue []uint64
}

var walks = sync.Pool{New: func() any { return &walk{seen: map[uint64]int{}} }}

func (w *walk) reset(visit func(int, uint64) bool) {
	w.visit = visit
	clear(w.seen)
}

// through walks one kernel's block table and says whether the chain goes on
// behind it. fresh says that the walk's first block is itself still to come.
func (w *walk) through(e *execution, ahead int, from uint64, fresh, touched bool) bool {
	if !e.located && !touched {
		return e.ran // it ran and touched nothing, or it has never run
	}
	meet := func(block uint64, expected bool) bool {
		kernel, met := w.seen[block]
		if met && kernel == ahead+1 {
			return true
		}
		w.seen[block] = ahead + 1
		w.queue = append(w.queue, block)
		return met || !expected || w.visit(ahead, block)
	}
	w.queue = w.queue[:0]
	if !meet(from, fresh) {
		return false
	}
	ended := false
	for i := 0; i < len(w.queue); i++ {
		block := w.queue[i]
		ended = ended || e.located && block == e.end
		for _, next := range e.blocks.successors(block) {
			if !meet(next, true) {
				return false
			}
		}
	}
	return ended
}

// Bytes is the memory that the tables use.
func (t *Tables) Bytes() int64 { return t.bytes }

// Kernels is how many kernels are known.
func (t *Tables) Kernels() int { return t.kernels.Len() }

// Stats returns the counters so far.
func (t *Tables) Stats() TableStats { return t.stats }
