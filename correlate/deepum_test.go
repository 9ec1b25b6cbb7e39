package correlate

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// visit is one block that Chain named.
type visit struct {
	ahead int
	block uint64
}

func chain(t *Tables, degree int) []visit {
	var all []visit
	t.Chain(degree, func(ahead int, block uint64) bool {
		all = append(all, visit{ahead, block})
		return true
	})
	return all
}

// execute runs kernels; each is a signature and the blocks it touches.
type executed struct {
	signature uint64
	blocks    []uint64
}

func execute(t *Tables, kernels ...executed) {
	for _, k := range kernels {
		t.Launch(k.signature)
		for _, b := range k.blocks {
			t.Touch(b)
		}
	}
}

var periodic = []executed{ // one iteration of something periodic
	{1, []uint64{10, 11, 12}},
	{2, []uint64{20}},
	{3, nil}, // finds everything resident
	{4, []uint64{40, 11, 41}},
}

func TestPeriodicKernels(t *testing.T) {
	tables := NewTables(TablesConfig{})
	for range 3 {
		execute(tables, periodic...)
	}
	id := map[uint64]ExecID{}
	for _, k := range periodic {
		id[k.signature] = tables.Launch(k.signature)
	}
	tables.Launch(1)
	if got, want := tables.PredictedNext(5), []ExecID{id[2], id[3], id[4], id[1], id[2]}; !slices.Equal(got, want) {
		t.Errorf("kernels after 1: %v, want %v", got, want)
	}
	// The rounds above touched nothing in their last iteration, which says
	// nothing about where the kernels begin and end.
	want := []visit{{0, 10}, {0, 11}, {0, 12}, {1, 20}, {3, 40}, {3, 41}}
	for degree, n := range map[int]int{0: 3, 1: 4, 2: 4, 3: 6, 9: 6} {
		if got := chain(tables, degree); !slices.Equal(got, want[:n]) {
			t.Errorf("%d ahead: %v, want %v", degree, got, want[:n])
		}
	}
	// In the middle of a kernel only its rest is still to come.
	tables.Touch(10)
	tables.Touch(11)
	if got, want := chain(tables, 1), []visit{{0, 12}, {1, 20}}; !slices.Equal(got, want) {
		t.Errorf("after 11: %v, want %v", got, want)
	}
	tables.Touch(12)
	if got, want := chain(tables, 1), []visit{{1, 20}}; !slices.Equal(got, want) {
		t.Errorf("after 12: %v, want %v", got, want)
	}
	// A block never seen in this kernel: nothing to go by.
	tables.Touch(99)
	if got := chain(tables, 9); len(got) != 0 {
		t.Errorf("after an unknown block: %v", got)
	}
	if s := tables.Stats(); s.Launches != 17 || s.Known != 13 || s.Predicted != s.Correct || s.Correct == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestNothingKnown(t *testing.T) {
	tables := NewTables(TablesConfig{})
	tables.Touch(1) // before any launch
	if got := chain(tables, 5); len(got) != 0 || tables.PredictedNext(5) != nil {
		t.Errorf("empty tables predict %v", got)
	}
	tables.Launch(7)
	tables.Touch(1)
	tables.Touch(2)
	if got := chain(tables, 5); len(got) != 0 {
		t.Errorf("the first kernel's first execution predicts %v", got)
	}
}

// TestBranches: a shared kernel (9) is left in different ways, which only the
// kernels before it tell.
func TestBranches(t *testing.T) {
	round := []executed{
		{1, []uint64{1}}, {9, []uint64{9}}, {2, []uint64{2}}, {5, []uint64{5}}, {9, []uint64{9}}, {3, []uint64{3}},
	}
	for _, test := range []struct {
		history  int
		accuracy float64 // of the last rounds
	}{{1, 1}, {2, 1}, {3, 1}} {
		tables := NewTables(TablesConfig{HistoryLength: test.history})
		for range 4 {
			execute(tables, round...)
		}
		before := tables.Stats()
		for range 10 {
			execute(tables, round...)
		}
		after := tables.Stats()
		if predicted := after.Predicted - before.Predicted; predicted != 60 || after.Correct-before.Correct != predicted {
			t.Errorf("history of %d: %d of %d right, want 60 of 60", test.history, after.Correct-before.Correct, predicted)
		}
	}
	// Two rounds that differ only in the fourth kernel back: a history of
	// three takes the latest, one of four knows.
	long := func(first, last uint64) []executed {
		return []executed{{first, nil}, {5, nil}, {6, nil}, {7, nil}, {8, nil}, {last, nil}}
	}
	for history, want := range map[int]bool{3: false, 4: true} {
		tables := NewTables(TablesConfig{HistoryLength: history})
		for range 3 {
			execute(tables, long(1, 2)...)
			execute(tables, long(3, 4)...)
		}
		execute(tables, long(1, 2)[:5]...)
		two := tables.byIDOf(t, 2)
		if got := tables.PredictedNext(1); len(got) != 1 || (got[0] == two) != want {
			t.Errorf("history of %d predicts %v, kernel 2 is %d: want %v", history, got, two, want)
		}
	}
}

func (t *Tables) byIDOf(tb testing.TB, signature uint64) ExecID {
	tb.Helper()
	e, ok := t.kernels.Peek(signature)
	if !ok {
		tb.Fatalf("kernel %d is not known", signature)
	}
	return e.id
}

func TestSuccessorsAreMostRecentFirst(t *testing.T) {
	tables := NewTables(TablesConfig{Successors: 2})
	for _, second := range []uint64{20, 21, 22, 21} {
		execute(tables, executed{1, []uint64{10, second, 30}}, executed{2, nil})
	}
	tables.Launch(1)
	tables.Touch(10)
	// 20 was pushed out, 21 came last.
	if got, want := chain(tables, 0), []visit{{0, 21}, {0, 22}, {0, 30}}; !slices.Equal(got, want) {
		t.Errorf("after 10: %v, want %v", got, want)
	}
}

func TestRecordsAreMostRecentFirst(t *testing.T) {
	e := &execution{}
	history := func(id ExecID) predecessors { return predecessors{id} }
	for _, id := range []ExecID{1, 2, 3, 1, 4} { // room for three: 2 goes
		e.recordNext(history(id), id+10, 3)
	}
	for id, want := range map[ExecID]ExecID{1: 11, 2: 0, 3: 13, 4: 14} {
		if got := e.next(history(id)); got != want {
			t.Errorf("after %d: %d, want %d", id, got, want)
		}
	}
	e.recordNext(history(1), 99, 3)
	if got := e.next(history(1)); got != 99 {
		t.Errorf("the latest of two ways on is %d, want 99", got)
	}
}

func TestTableOverflow(t *testing.T) {
	const blocks = 1000
	var kernel executed
	for b := range uint64(blocks) {
		kernel.blocks = append(kernel.blocks, b)
	}
	// Large enough: nothing is lost, in spite of growing from a few rows.
	tables := NewTables(TablesConfig{Rows: 4096, Associativity: 4})
	execute(tables, kernel, executed{1, nil}, kernel, executed{1, nil})
	tables.Launch(0)
	if got := chain(tables, 0); len(got) != blocks || tables.Stats().Displaced != 0 {
		t.Errorf("%d of %d blocks predicted, %d displaced", len(got), blocks, tables.Stats().Displaced)
	}
	// Too small: the walk ends at the first forgotten block, and is sure of nothing beyond.
	tables = NewTables(TablesConfig{Rows: 16, Associativity: 2})
	execute(tables, kernel, executed{1, []uint64{5000}}, kernel, executed{1, []uint64{5000}})
	tables.Launch(0)
	got := chain(tables, 3)
	if len(got) >= blocks/2 || slices.ContainsFunc(got, func(v visit) bool { return v.ahead > 0 }) {
		t.Errorf("%d blocks predicted, the last %v", len(got), got[len(got)-1])
	}
	if d := tables.Stats().Displaced; d < blocks-32 {
		t.Errorf("%d displaced", d)
	}
	e, _ := tables.kernels.Peek(0)
	if e.blocks.rows != 16 || len(e.blocks.tags) != 32 {
		t.Errorf("grew to %d rows", e.blocks.rows)
	}
}

func TestKernelLimit(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 10} {
		tables := NewTables(TablesConfig{MaxExecIDs: limit})
		ids := map[ExecID]bool{}
		for signature := range uint64(50) {
			ids[tables.Launch(signature)] = true
			tables.Touch(signature)
			tables.Touch(signature + 1)
		}
		if len(ids) != 50 || tables.Kernels() != limit || tables.Stats().Forgotten != int64(50-limit) {
			t.Errorf("limit %d: %d IDs, %d known, %+v", limit, len(ids), tables.Kernels(), tables.Stats())
		}
		check(t, tables)
		// What was forgotten gets a new ID, and what predicted it predicts nothing.
		if id := tables.Launch(0); limit < 50 && ids[id] {
			t.Errorf("limit %d: ID %d was used again", limit, id)
		}
		check(t, tables)
	}
}

func TestMemoryLimit(t *testing.T) {
	const limit = 100 << 10
	tables := NewTables(TablesConfig{MaxBytes: limit})
	for signature := range uint64(500) {
		tables.Launch(signature)
		for b := range uint64(20) {
			tables.Touch(signature + b)
		}
		if tables.Bytes() > limit {
			t.Fatalf("%d bytes used after %d kernels, the limit is %d", tables.Bytes(), signature+1, limit)
		}
	}
	if tables.Kernels() < 10 || tables.Stats().Forgotten == 0 {
		t.Errorf("%d kernels kept, %d forgotten", tables.Kernels(), tables.Stats().Forgotten)
	}
	check(t, tables)
	// One kernel larger than everything stays, alone.
	tables.Launch(1 << 40)
	for b := range uint64(10000) {
		tables.Touch(b)
	}
	if tables.Kernels() != 1 {
		t.Errorf("%d kernels beside one that fills the limit", tables.Kernels())
	}
	check(t, tables)
}

func TestIDsUsedUp(t *testing.T) {
	tables := NewTables(TablesConfig{})
	execute(tables, periodic...)
	tables.lastID = math.MaxUint32
	if id := tables.Launch(77); id != 1 || tables.Kernels() != 1 {
		t.Errorf("ID %d, %d kernels known", id, tables.Kernels())
	}
	check(t, tables)
}

func TestClockRunsOut(t *testing.T) {
	config := TablesConfig{Rows: 1, Associativity: 2, Successors: 1}.withDefaults()
	var b blockTable
	b.follow(1, 2, &config)
	b.clock = math.MaxUint32
	b.follow(3, 4, &config)
	b.follow(5, 6, &config) // pushes out 1, the oldest
	if b.find(1) >= 0 || b.find(3) < 0 || b.find(5) < 0 {
		t.Errorf("kept %v, used %v", b.tags, b.used)
	}
}

func TestChainStops(t *testing.T) {
	tables := NewTables(TablesConfig{})
	for range 2 {
		execute(tables, periodic...)
	}
	tables.Launch(1)
	for limit := 1; limit <= 6; limit++ {
		n := 0
		tables.Chain(9, func(int, uint64) bool { n++; return n < limit })
		if n != limit {
			t.Errorf("visited %d blocks, asked to stop at %d", n, limit)
		}
	}
}

// check verifies the invariants of tables.
func check(t testing.TB, tables *Tables) {
	t.Helper()
	var bytes int64
	if tables.kernels.Len() != len(tables.byID) || tables.kernels.Len() > tables.config.MaxExecIDs {
		t.Fatalf("%d kernels by signature, %d by ID, limit %d", tables.kernels.Len(), len(tables.byID), tables.config.MaxExecIDs)
	}
	for _, e := range tables.kernels.Values() {
		if tables.byID[e.id] != e {
			t.Fatalf("kernel %d is not found by its ID", e.id)
		}
		bytes += e.bytes()
		if len(e.records) > tables.config.Records {
			t.Fatalf("%d records", len(e.records))
		}
		b := &e.blocks
		if b.rows > tables.config.Rows || len(b.tags) != b.rows*b.ways || len(b.next) != len(b.tags)*b.width {
			t.Fatalf("a table of %d rows and %d ways", b.rows, len(b.tags))
		}
		for way, used := range b.used {
			if used != 0 && (b.find(b.tags[way]) != way || used > b.clock) {
				t.Fatalf("block %d is found at %d, not at %d", b.tags[way], b.find(b.tags[way]), way)
			}
			if int(b.lengths[way]) > b.width {
				t.Fatalf("%d successors", b.lengths[way])
			}
		}
	}
	if bytes != tables.Bytes() {
		t.Fatalf("%d bytes used, %d accounted", bytes, tables.Bytes())
	}
	if tables.Kernels() > 1 && bytes > tables.config.MaxBytes {
		t.Fatalf("%d bytes used, limit %d", bytes, tables.config.MaxBytes)
	}
	s := tables.Stats()
	if s.Correct > s.Predicted || s.Predicted > s.Launches || s.Known > s.Launches {
		t.Fatalf("stats %+v", s)
	}
}

func FuzzTables(f *testing.F) {
	f.Add([]byte("L1T2T3L2T4L1T2C3"), uint8(3), uint16(9))
	f.Add([]byte("L1L2L3L1L2L3T1T2T3T4T5T6T7T8T9C9L1C9"), uint8(1), uint16(0))
	f.Fuzz(func(t *testing.T, ops []byte, limit uint8, bytes uint16) {
		if len(ops) > 600 {
			ops = ops[:600]
		}
		tables := NewTables(TablesConfig{
			HistoryLength: int(limit%4) + 1, Records: int(limit%3) + 1, Rows: int(limit%8) + 1, Associativity: int(limit%2) + 1,
			Successors: int(limit%3) + 1, MaxExecIDs: int(limit) + 1, MaxBytes: int64(bytes) + 1,
		})
		touched := map[uint64]bool{}
		for len(ops) >= 2 {
			op, arg := ops[0], ops[1]
			ops = ops[2:]
			switch op % 3 {
			case 0:
				if tables.Launch(uint64(arg)) == 0 {
					t.Fatal("a launch without an ID")
				}
			case 1:
				tables.Touch(uint64(arg))
				touched[uint64(arg)] = true
			default:
				state := fmt.Sprint(tables.stats, tables.bytes, tables.lastID, tables.history)
				seen := map[uint64]bool{}
				ahead := 0
				degree := int(arg % 16)
				tables.Chain(degree, func(kernelsAhead int, block uint64) bool {
					if seen[block] || !touched[block] || kernelsAhead < ahead || kernelsAhead > degree {
						t.Fatalf("block %d, %d ahead after %d of %d", block, kernelsAhead, ahead, degree)
					}
					seen[block], ahead = true, kernelsAhead
					return true
				})
				if n := len(tables.PredictedNext(degree)); n > degree || ahead > n {
					t.Fatalf("%d kernels predicted of %d, blocks %d ahead", n, degree, ahead)
				}
				if now := fmt.Sprint(tables.stats, tables.bytes, tables.lastID, tables.history); now != state {
					t.Fatalf("a look-up changed %s to %s", state, now)
				}
			}
			check(t, tables)
		}
	})
}

// training is an iteration of about the size of a real one.
func training() []executed {
	kernels := make([]executed, 5000)
	for i := range kernels {
		kernels[i].signature = uint64(i) * 0x9e3779b97f4a7c15
		for b := range 10 {
			kernels[i].blocks = append(kernels[i].blocks, uint64(i*7+b))
		}
	}
	return kernels
}

func BenchmarkTablesIteration(b *testing.B) {
	kernels := training()
	tables := NewTables(TablesConfig{})
	execute(tables, kernels...)
	for b.Loop() {
		execute(tables, kernels...)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(kernels)), "ns/launch")
	b.ReportMetric(float64(tables.Bytes())/1e6, "MB")
}

func BenchmarkTablesChain(b *testing.B) {
	kernels := training()
	tables := NewTables(TablesConfig{})
	for range 2 {
		execute(tables, kernels...)
	}
	for _, degree := range []int{1, 8, 64} {
		b.Run(strings.TrimSpace(fmt.Sprint(degree)), func(b *testing.B) {
			blocks := 0
			for b.Loop() {
				blocks = 0
				tables.Chain(degree, func(int, uint64) bool { blocks++; return true })
			}
			b.ReportMetric(float64(blocks), "blocks")
		})
	}
}
