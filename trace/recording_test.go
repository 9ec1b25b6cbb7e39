package trace_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

func sameEvents(t *testing.T, got, want []trace.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("event %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
}

// record writes events and returns the file.
func record(t testing.TB, events []trace.Event, options trace.WriterOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	options.FlushEvery = -1
	w, err := trace.NewWriter(&b, trace.Header{Source: "test"}, options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if err := w.Append(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readAll returns all events before the end or the error.
func readAll(data []byte) ([]trace.Event, error) {
	r, err := trace.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var events []trace.Event
	for e, err := range r.All() {
		if err != nil {
			return events, err
		}
		events = append(events, e)
	}
	return events, nil
}

// randomEvents are events with arbitrary contents in every field: the format
// keeps them all, whether or not a kind uses them.
func randomEvents(n int, seed uint64) []trace.Event {
	rng := rand.New(rand.NewPCG(seed, 1))
	number := func() uint64 { return rng.Uint64() >> rng.IntN(65) }
	events := make([]trace.Event, n)
	for i := range events {
		e := trace.Event{
			Kind: trace.Kind(1 + rng.IntN(13)), Mode: trace.AccessMode(rng.IntN(4)), Copy: trace.CopyKind(rng.IntN(5)),
			To: trace.Side(rng.IntN(2)), Cause: trace.Cause(rng.IntN(6)),
			Time: time.Duration(number()), Duration: time.Duration(number()), Stream: number(), Alloc: number(),
			Bytes: int64(number()), Address: number(), Function: uint32(number()),
		}
		for j := range e.Grid {
			e.Grid[j], e.Block[j] = uint32(number()), uint32(number())
		}
		if rng.IntN(3) == 0 {
			e.Name = strings.Repeat("ä", rng.IntN(100))
		}
		for range rng.IntN(40) {
			e.Accesses = append(e.Accesses, trace.Access{Alloc: number(), Offset: number(), Mode: trace.AccessMode(rng.IntN(4))})
		}
		if rng.IntN(2) == 0 {
			e.GPU, e.CopyEngine, e.Batch, e.Process = uint8(rng.IntN(256)), rng.IntN(2) == 0, rng.Uint32(), uint32(number())
		}
		events[i] = e
	}
	return events
}

func TestRoundTrip(t *testing.T) {
	shipped, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	long := trace.Event{Kind: trace.KindLaunch, Name: strings.Repeat("n", 64<<10), Accesses: make([]trace.Access, 1<<18)}
	for i := range long.Accesses {
		long.Accesses[i] = trace.Access{Alloc: uint64(i) << 45, Offset: math.MaxUint64 - uint64(i)}
	}
	extremes := trace.Event{Kind: trace.KindMigration, Time: math.MinInt64, Duration: math.MinInt64, Stream: math.MaxUint64,
		Alloc: math.MaxUint64, Bytes: math.MinInt64, Address: math.MaxUint64, Function: math.MaxUint32}
	for name, events := range map[string][]trace.Event{
		"empty":    nil,
		"random":   randomEvents(3000, 7),
		"shipped":  shipped.Events,
		"longest":  {long, long},
		"extremes": {extremes, {Kind: trace.KindAlloc}, extremes, {Kind: trace.KindFault, Time: math.MaxInt64, Address: 1}},
	} {
		for _, raw := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/uncompressed=%v", name, raw), func(t *testing.T) {
				data := record(t, events, trace.WriterOptions{Uncompressed: raw})
				got, err := readAll(data)
				if err != nil {
					t.Fatal(err)
				}
				sameEvents(t, got, events)
				t.Logf("%d events, %d bytes", len(events), len(data))
			})
		}
	}
}

// A recording must be smaller than the compressed text it could have been.
func TestCompact(t *testing.T) {
	shipped, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(record(t, shipped.Events, trace.WriterOptions{})); n > len(testdata.GPT2M) {
		t.Errorf("recording has %d bytes, the launch log %d", n, len(testdata.GPT2M))
	}
}

func TestUnrecordable(t *testing.T) {
	w, err := trace.NewWriter(io.Discard, trace.Header{}, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, e := range []trace.Event{
		{}, {Kind: 14}, {Kind: trace.KindMark, Mode: 4}, {Kind: trace.KindMark, Copy: 5}, {Kind: trace.KindMark, To: 2}, {Kind: trace.KindMark, Cause: 6},
		{Kind: trace.KindMark, Name: strings.Repeat("n", 64<<10+1)},
		{Kind: trace.KindLaunch, Accesses: make([]trace.Access, 1<<18+1)},
		{Kind: trace.KindLaunch, Accesses: []trace.Access{{Mode: 4}}},
	} {
		if err := w.Append(&e); err == nil || !strings.HasPrefix(err.Error(), "cannot record") {
			t.Errorf("kind %d: %v", e.Kind, err)
		}
	}
	if err := w.Append(&trace.Event{Kind: trace.KindMark, Name: "fine"}); err != nil {
		t.Errorf("a refused event must not stop the recording: %v", err)
	}
}

// TestAppendAll: what is given at once is recorded as by Append, nobody else's events
// between it; one that is refused is left out, and told of.
func TestAppendAll(t *testing.T) {
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, trace.Header{}, trace.WriterOptions{FlushEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	const producers, batches, each = 3, 200, 50
	var wg sync.WaitGroup
	for g := range producers {
		wg.Go(func() {
			for n := range batches {
				err := w.AppendAll(func(add func(*trace.Event)) {
					for i := range each {
						add(&trace.Event{Kind: trace.KindFree, Stream: uint64(g), Alloc: uint64(n*each + i)})
						if n == 7 && i == 7 {
							add(&trace.Event{})
						}
					}
				})
				if refused := n == 7; (err != nil) != refused {
					t.Errorf("batch %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.AppendAll(func(add func(*trace.Event)) { add(&trace.Event{Kind: trace.KindFree}) }); err != trace.ErrClosed {
		t.Errorf("after close: %v", err)
	}
	got, err := readAll(b.Bytes())
	if err != nil || len(got) != producers*batches*each {
		t.Fatalf("%d events, %v", len(got), err)
	}
	next := map[uint64]uint64{}
	for i, e := range got {
		if e.Alloc != next[e.Stream] || i%each > 0 && e.Stream != got[i-1].Stream {
			t.Fatalf("event %d is number %d of producer %d, want %d, in one run with its batch", i, e.Alloc, e.Stream, next[e.Stream])
		}
		next[e.Stream]++
	}
}

// chunks returns where each chunk of a recording begins, and its end.
func chunks(t *testing.T, data []byte) []int {
	t.Helper()
	var at []int
	pos := 12
	for pos < len(data) {
		at = append(at, pos)
		pos += 24 + int(binary.LittleEndian.Uint32(data[pos+8:]))
	}
	if pos != len(data) {
		t.Fatalf("chunks end at %d of %d", pos, len(data))
	}
	return append(at, pos)
}

// Wherever a recording is cut, all events of the whole chunks come back and the
// error names the place.
func TestCutRecording(t *testing.T) {
	events := randomEvents(4000, 3)
	data := record(t, events, trace.WriterOptions{})
	at := chunks(t, data)
	if len(at) < 5 {
		t.Fatalf("only %d chunks", len(at))
	}
	var cuts []int
	for _, c := range at[:len(at)-1] {
		cuts = append(cuts, c, c+1, c+23, c+24, c+30)
	}
	before := map[int]int{} // chunk start to events before it
	n := 0
	for _, c := range at {
		before[c] = n
		if c < len(data) {
			n += int(binary.LittleEndian.Uint32(data[c+16:]))
		}
	}
	for _, cut := range append(cuts, 0, 5, 11, len(data)-1) {
		if cut >= len(data) {
			continue
		}
		start := 0
		for _, c := range at {
			if c <= cut {
				start = c
			}
		}
		got, err := readAll(data[:cut])
		var d *trace.DamageError
		if !errors.As(err, &d) || !errors.Is(err, trace.ErrTruncated) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if d.Offset != int64(start) || d.Events != len(got) || len(got) != before[start] {
			t.Errorf("cut at %d: offset %d, events %d and %d, want %d and %d", cut, d.Offset, d.Events, len(got), start, before[start])
		}
		sameEvents(t, got, events[:len(got)])
	}
}

// Every byte of a recording is covered by some check.
func TestFlippedBytes(t *testing.T) {
	events := randomEvents(60, 4)
	for _, raw := range []bool{false, true} {
		data := record(t, events, trace.WriterOptions{Uncompressed: raw})
		for i := 0; i < len(data); i += short.Of(1, 7) {
			if i == 10 || i == 11 {
				continue // reserved, ignored by readers
			}
			bad := bytes.Clone(data)
			bad[i] ^= 0x10
			got, err := readAll(bad)
			if err == nil {
				t.Fatalf("byte %d flipped unnoticed", i)
			}
			sameEvents(t, got, events[:len(got)])
		}
	}
}

func TestTrailingAndNewer(t *testing.T) {
	data := record(t, randomEvents(3, 5), trace.WriterOptions{})
	got, err := readAll(append(bytes.Clone(data), "more"...))
	var d *trace.DamageError
	if !errors.As(err, &d) || d.Offset != int64(len(data)) || len(got) != 3 {
		t.Errorf("trailing data: %v after %d events", err, len(got))
	}
	newer := bytes.Clone(data)
	newer[8] = 3
	_, err = trace.Parse("newer.pstrace", newer)
	var v *trace.VersionError
	if !errors.As(err, &v) || v.Version != 3 || !strings.Contains(err.Error(), "newer.pstrace") {
		t.Errorf("newer version: %v", err)
	}
	if _, err := trace.NewReader(strings.NewReader("A\t0\t8\nA\t1\t8\n")); !errors.Is(err, trace.ErrNotTrace) {
		t.Errorf("text: %v", err)
	}
}

// withChunk builds a recording of one chunk whose payload and claims are the test's.
func withChunk(kind, codec byte, claimedBytes, events uint32, stored []byte) []byte {
	data := record(noTest{}, nil, trace.WriterOptions{Uncompressed: true})
	headerEnd := 12 + 24 + int(binary.LittleEndian.Uint32(data[12+8:]))
	out := bytes.Clone(data[:headerEnd])
	head := make([]byte, 24)
	binary.LittleEndian.PutUint32(head, 0x4b434850)
	head[4], head[5] = kind, codec
	binary.LittleEndian.PutUint32(head[8:], uint32(len(stored)))
	binary.LittleEndian.PutUint32(head[12:], claimedBytes)
	binary.LittleEndian.PutUint32(head[16:], events)
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(head[20:], crc32.Checksum(append(head[:20:20], stored...), table))
	return append(append(out, head...), stored...)
}

// noTest lets helpers that want a testing.TB run where there is none: it panics on failure.
type noTest struct{ testing.TB }

func (noTest) Helper()           {}
func (noTest) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Chunks with a right checksum may still lie.
func TestHostileChunks(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"codec", withChunk(2, 7, 1, 1, []byte{1}), "encoding"},
		{"kind", withChunk(9, 0, 1, 1, []byte{1}), "unknown kind 9"},
		{"no events", withChunk(2, 0, 1, 0, []byte{1}), "impossible number of events"},
		{"too many events", withChunk(2, 0, 1, 2, []byte{1}), "impossible number of events"},
		{"fewer events", withChunk(2, 0, 2, 1, []byte{1, 1}), "does not hold"},
		{"not zstd", withChunk(2, 1, 100, 1, []byte("not zstd at all")), "decompressed"},
		{"wrong sizes", withChunk(2, 0, 2, 1, []byte{1}), "encoding"},
		{"record kind", withChunk(2, 0, 1, 1, []byte{0}), "no known kind"},
		{"record bits", withChunk(2, 0, 3, 1, []byte{0x81, 0x80, 0x20}), "no known kind"},
		{"cut number", withChunk(2, 0, 3, 1, []byte{0x81, 0x01, 0x80}), "cut short"},
		{"long name", withChunk(2, 0, 6, 1, []byte{0x88, 0x40, 0xff, 0xff, 3, 'n'}), "too long"},
		{"many accesses", withChunk(2, 0, 6, 1, []byte{0x84, 0x80, 1, 0xff, 0xff, 3}), "impossible number of accesses"},
		{"access kind", withChunk(2, 0, 6, 1, []byte{0x84, 0x80, 1, 1, 8, 0}), "access in a record"},
		{"origin", withChunk(2, 0, 5, 1, []byte{0x86, 0x80, 4, 0xff, 4}), "impossible GPU"},
		{"batch", withChunk(2, 0, 8, 1, []byte{0x86, 0x80, 8, 0xff, 0xff, 0xff, 0xff, 0x7f}), "impossible batch"},
		{"enums", withChunk(2, 0, 5, 1, []byte{0x85, 0x80, 2, 0xff, 3}), "unknown copy kind or cause"},
		{"end count", withChunk(3, 0, 1, 0, []byte{9}), "says it has 9"},
		{"end payload", withChunk(3, 0, 0, 0, nil), "ends after 0 events"},
	} {
		got, err := readAll(c.data)
		var d *trace.DamageError
		if !errors.As(err, &d) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if d != nil && d.Events != len(got) {
			t.Errorf("%s: %d events, says %d", c.name, len(got), d.Events)
		}
	}
}

// A small file that decompresses into something huge is refused before it does.
func TestBombs(t *testing.T) {
	zeros := record(t, []trace.Event{{Kind: trace.KindLaunch, Accesses: make([]trace.Access, 1<<18)}}, trace.WriterOptions{})
	at := chunks(t, zeros)
	small := bytes.Clone(zeros[at[1]+24 : at[2]])
	if _, err := readAll(withChunk(2, 1, 1000, 1, small)); err == nil || !strings.Contains(err.Error(), "decompressed") {
		t.Errorf("frame larger than claimed: %v", err)
	}
	log := gzipped(t, strings.Repeat("M\tx\n", 1<<20))
	if _, err := trace.ParseLimited("bomb.tsv.gz", log, 1<<20); err == nil || !strings.Contains(err.Error(), "more than 1 MiB in memory") {
		t.Errorf("launch log: %v", err)
	}
	var many []trace.Event
	for range 20000 {
		many = append(many, trace.Event{Kind: trace.KindMark, Name: "x"})
	}
	var tooLarge *trace.TooLargeError
	if _, err := trace.ParseLimited("bomb.pstrace", record(t, many, trace.WriterOptions{}), 1<<20); !errors.As(err, &tooLarge) || !strings.Contains(err.Error(), "bomb.pstrace") {
		t.Errorf("recording: %v", err)
	}
}

// slowFile takes writes only when told.
type slowFile struct {
	gate chan struct{}
	bytes.Buffer
}

func (s *slowFile) Write(b []byte) (int, error) {
	<-s.gate
	return s.Buffer.Write(b)
}

// Appending does not wait for a slow file until it lags far behind, and loses nothing.
func TestSlowFile(t *testing.T) {
	f := &slowFile{gate: make(chan struct{}, 2)}
	f.gate <- struct{}{} // magic
	f.gate <- struct{}{} // header
	w, err := trace.NewWriter(f, trace.Header{}, trace.WriterOptions{Uncompressed: true, FlushEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	big := trace.Event{Kind: trace.KindMark, Name: strings.Repeat("n", 64<<10)}
	const n = 100 // 6 MiB: within the queue
	for range n {
		if err := w.Append(&big); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.Stats(); s.StalledSends != 0 || s.Events != n {
		t.Errorf("%+v", s)
	}
	done := make(chan error)
	go func() {
		var err error
		for range 400 { // 25 MiB: more than the queue holds
			err = errors.Join(err, w.Append(&big))
		}
		done <- err
	}()
	for w.Stats().StalledSends == 0 {
		runtime.Gosched()
	}
	close(f.gate) // from here on the file is fast
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := readAll(f.Bytes())
	if err != nil || len(got) != n+400 {
		t.Errorf("%d events, %v", len(got), err)
	}
}

func TestConcurrentAppends(t *testing.T) {
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, trace.Header{}, trace.WriterOptions{FlushEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const writers, each = 4, 3000
	for g := range writers {
		wg.Go(func() {
			for i := range each {
				if err := w.Append(&trace.Event{Kind: trace.KindFree, Stream: uint64(g), Alloc: uint64(i)}); err != nil {
					t.Error(err)
					return
				}
				if i%500 == 0 {
					if err := w.Flush(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != trace.ErrClosed {
		t.Errorf("second close: %v", err)
	}
	if err := w.Append(&trace.Event{Kind: trace.KindFree}); err != trace.ErrClosed {
		t.Errorf("append after close: %v", err)
	}
	if err := w.Flush(); err != trace.ErrClosed {
		t.Errorf("flush after close: %v", err)
	}
	got, err := readAll(b.Bytes())
	if err != nil || len(got) != writers*each {
		t.Fatalf("%d events, %v", len(got), err)
	}
	next := map[uint64]uint64{}
	for _, e := range got {
		if e.Alloc != next[e.Stream] {
			t.Fatalf("writer %d: %d after %d", e.Stream, e.Alloc, next[e.Stream])
		}
		next[e.Stream]++
	}
}

// fullDisk fails after some bytes, in the middle of a write.
type fullDisk struct {
	bytes.Buffer
	room int
}

var errFull = errors.New("no space left on device")

func (d *fullDisk) Write(b []byte) (int, error) {
	n := min(len(b), d.room)
	d.room -= n
	d.Buffer.Write(b[:n])
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func TestFullDisk(t *testing.T) {
	if _, err := trace.NewWriter(&fullDisk{room: 20}, trace.Header{}, trace.WriterOptions{}); !errors.Is(err, errFull) {
		t.Errorf("header: %v", err)
	}
	disk := &fullDisk{room: 1 << 20}
	w, err := trace.NewWriter(disk, trace.Header{}, trace.WriterOptions{Uncompressed: true})
	if err != nil {
		t.Fatal(err)
	}
	events := randomEvents(4000, 9)
	for i := range events {
		if err = w.Append(&events[i]); err != nil {
			break
		}
	}
	if flushErr := w.Flush(); !errors.Is(flushErr, errFull) {
		t.Errorf("flush: %v", flushErr)
	}
	if err := w.Append(&events[0]); !errors.Is(err, errFull) {
		t.Errorf("append after failure: %v", err)
	}
	if err := w.Close(); !errors.Is(err, errFull) {
		t.Errorf("close: %v", err)
	}
	got, err := readAll(disk.Bytes())
	if !errors.Is(err, trace.ErrTruncated) || len(got) == 0 {
		t.Errorf("%d events, %v", len(got), err)
	}
	sameEvents(t, got, events[:len(got)])
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.pstrace")
	if err := os.WriteFile(path, bytes.Repeat([]byte("old "), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	started := time.Date(2026, 11, 20, 12, 0, 0, 5, time.UTC)
	header := trace.Header{Source: "penstock 1", Command: "python train.py", GPU: "h200", Started: started}
	w, err := trace.Create(path, header, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trace.Create(path, header, trace.WriterOptions{}); err == nil || !strings.Contains(err.Error(), "another process is recording") {
		t.Errorf("second writer: %v", err)
	}
	events := []trace.Event{{Kind: trace.KindAlloc, Alloc: 1, Bytes: 8, Time: time.Second}, {Kind: trace.KindFree, Alloc: 1, Time: time.Hour}}
	for i := range events {
		if err := w.Append(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	// After Flush the events are safe whatever becomes of the process.
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path)
	if !errors.Is(err, trace.ErrTruncated) || !strings.Contains(err.Error(), path) {
		t.Errorf("still running: %v", err)
	}
	sameEvents(t, tr.Events, events)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tr, err = trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	sameEvents(t, tr.Events, events)
	if tr.Name != "run" || tr.Header != header {
		t.Errorf("%q %+v", tr.Name, tr.Header)
	}
	if _, err := trace.Create(filepath.Join(t.TempDir(), "no", "such"), header, trace.WriterOptions{}); err == nil {
		t.Error("created in a missing folder")
	}
	// Its header has the command line, and a secret may stand on that.
	fresh := filepath.Join(t.TempDir(), "new.pstrace")
	if w, err = trace.Create(fresh, header, trace.WriterOptions{}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(fresh); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("a new file: %v, %v", st.Mode(), err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// Old events reach the file without anyone asking.
func TestFlushEvery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.pstrace")
	w, err := trace.Create(path, trace.Header{}, trace.WriterOptions{FlushEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Append(&trace.Event{Kind: trace.KindMark, Name: "m"}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if tr, _ := trace.Load(path); tr != nil && len(tr.Events) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the event never reached the file")
		}
		time.Sleep(time.Millisecond)
	}
}

// A recording process killed without warning leaves a readable file.
func TestKilled(t *testing.T) {
	if path := os.Getenv("TRACE_TEST_RECORD_TO"); path != "" {
		w, err := trace.Create(path, trace.Header{}, trace.WriterOptions{FlushEvery: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for i := uint64(0); ; i++ {
			w.Append(&trace.Event{Kind: trace.KindAlloc, Alloc: i, Bytes: int64(i), Time: time.Duration(i * i)})
			if i == 100000 {
				w.Flush()
				fmt.Println("recorded")
			}
		}
	}
	path := filepath.Join(t.TempDir(), "killed.pstrace")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "TRACE_TEST_RECORD_TO="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(out, make([]byte, len("recorded")))
	cmd.Process.Kill()
	cmd.Wait()
	tr, err := trace.Load(path)
	if !errors.Is(err, trace.ErrTruncated) {
		t.Fatal(err)
	}
	if len(tr.Events) <= 100000 {
		t.Errorf("only %d events survived", len(tr.Events))
	}
	for i, e := range tr.Events {
		if e.Alloc != uint64(i) || e.Time != time.Duration(i*i) {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
}

func BenchmarkWriterAppend(b *testing.B) {
	shipped, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		b.Fatal(err)
	}
	w, err := trace.Create(filepath.Join(b.TempDir(), "b.pstrace"), trace.Header{}, trace.WriterOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := w.Append(&shipped.Events[i%len(shipped.Events)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(w.Stats().FileBytes)/float64(i), "filebytes/op")
}

func BenchmarkLoadRecording(b *testing.B) {
	shipped, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		b.Fatal(err)
	}
	data := record(b, shipped.Events, trace.WriterOptions{})
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := trace.Parse("b.pstrace", data); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzRecording(f *testing.F) {
	f.Add(record(f, randomEvents(20, 1), trace.WriterOptions{Uncompressed: true}))
	f.Add(record(f, nil, trace.WriterOptions{Uncompressed: true}))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := trace.Parse("fuzz", data)
		if tr == nil && err == nil {
			t.Fatal("neither trace nor error")
		}
		if tr != nil {
			exercise(t, tr)
		}
	})
}

// FuzzChunk gives the record decoder payloads whose checksum is right. What it
// accepts must survive another round trip.
func FuzzChunk(f *testing.F) {
	for seed := range uint64(4) {
		data := record(f, randomEvents(5, seed), trace.WriterOptions{Uncompressed: true})
		start := 12 + 24 + int(binary.LittleEndian.Uint32(data[12+8:]))
		n := int(binary.LittleEndian.Uint32(data[start+8:]))
		f.Add(uint32(5), data[start+24:start+24+n])
	}
	f.Fuzz(func(t *testing.T, events uint32, payload []byte) {
		if len(payload) > 1<<20 {
			return
		}
		got, err := readAll(withChunk(2, 0, uint32(len(payload)), events, payload))
		if err == nil {
			t.Fatal("a recording without an end was accepted")
		}
		again, err := readAll(record(t, got, trace.WriterOptions{Uncompressed: true}))
		if err != nil {
			t.Fatal(err)
		}
		sameEvents(t, again, got)
	})
}
