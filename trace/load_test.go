package trace_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

// smallLog has one of everything a launch log can hold.
const smallLog = "A\t0\t1024\n" +
	"A\t1\t4096\n" +
	"N\t0\t3\t_Zadd\n" +
	"M\tbuilt\n" +
	"M\titer0\n" +
	"K\t0\t(nil)\t0\t8\t1\t1\t256\t1\t1\t0+0\t1+128\t0+512\n" +
	"C\t1\t0x1b0b7870\td\t64\tw0+0\tr1+64\n" +
	"C\t-1\t(nil)\to\t1\tr1+0\n" +
	"C\t2\t7\ts\t25344\n" +
	"M\titer1\n" +
	"F\t0\n" +
	"A\t2\t0\n" +
	"K\t3\t(nil)\t0\t1\t1\t1\t32\t1\t1\t1+0\t2+0\n" +
	"M\tend\n" +
	"T\t0\t923039\n" +
	"T\t1\t15\n" +
	"T\t2\t16\n" +
	"S\tlaunches=2\tex=0\treserved=8192\tpeak=6144\n"

func TestLaunchLog(t *testing.T) {
	tr, err := trace.Parse("/some/where/small.tsv", []byte(smallLog))
	if err != nil {
		t.Fatal(err)
	}
	if tr.Name != "small" || tr.Header.ReportedPeakBytes != 6144 || tr.Header.ReportedReservedBytes != 8192 {
		t.Errorf("name %q, header %+v", tr.Name, tr.Header)
	}
	want := []trace.Event{
		{Kind: trace.KindAlloc, Alloc: 0, Bytes: 1024},
		{Kind: trace.KindAlloc, Alloc: 1, Bytes: 4096},
		{Kind: trace.KindFunction, Name: "_Zadd"},
		{Kind: trace.KindMark, Name: "built"},
		{Kind: trace.KindMark, Name: "iter0"},
		{Kind: trace.KindLaunch, Duration: 923039, Grid: [3]uint32{8, 1, 1}, Block: [3]uint32{256, 1, 1},
			Accesses: []trace.Access{{Alloc: 0}, {Alloc: 1, Offset: 128}, {Alloc: 0, Offset: 512}}},
		{Kind: trace.KindCopy, Duration: 15, Stream: 0x1b0b7870, Copy: trace.CopyDeviceToDevice, Bytes: 64,
			Accesses: []trace.Access{{Alloc: 0, Mode: trace.AccessWrite}, {Alloc: 1, Offset: 64, Mode: trace.AccessRead}}},
		{Kind: trace.KindCopy, Duration: -1, Copy: trace.CopyDeviceToHost, Bytes: 1, Accesses: []trace.Access{{Alloc: 1, Mode: trace.AccessRead}}},
		{Kind: trace.KindCopy, Duration: 16, Stream: 7, Copy: trace.CopyFill, Bytes: 25344},
		{Kind: trace.KindMark, Name: "iter1"},
		{Kind: trace.KindFree, Alloc: 0},
		{Kind: trace.KindAlloc, Alloc: 2},
		{Kind: trace.KindLaunch, Duration: -1, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Accesses: []trace.Access{{Alloc: 1}, {Alloc: 2}}},
		{Kind: trace.KindMark, Name: "end"},
	}
	sameEvents(t, tr.Events, want)

	if got := tr.PeakLiveBytes(); got != 5120 {
		t.Errorf("peak %d, want 5120", got)
	}
	its := tr.Iterations()
	if len(its) != 2 || its[0] != (trace.Range{Name: "iter0", First: 5, End: 9}) || its[1] != (trace.Range{Name: "iter1", First: 10, End: 13}) {
		t.Errorf("iterations %+v", its)
	}
	if l := tr.LargestLaunch(); l != (trace.Launch{Event: 5, Kernel: "_Zadd", Bytes: 5120}) {
		t.Errorf("largest launch %+v", l)
	}
}

func gzipped(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The kind of file is seen in its content; its name does not matter.
func TestDetection(t *testing.T) {
	dir := t.TempDir()
	plain, err := trace.Parse("x", []byte(smallLog))
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "own.tsv") // deliberately misnamed
	if err := plain.WriteFile(own); err != nil {
		t.Fatal(err)
	}
	zipped := filepath.Join(dir, "zipped.pstrace")
	if err := os.WriteFile(zipped, gzipped(t, smallLog), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{own, zipped} {
		tr, err := trace.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		sameEvents(t, tr.Events, plain.Events)
		if tr.Header != plain.Header {
			t.Errorf("%s: header %+v, want %+v", path, tr.Header, plain.Header)
		}
	}
	if tr, _ := trace.Load(zipped); tr.Name != "zipped" {
		t.Errorf("name %q", tr.Name)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, content, want string }{
		{"empty", "", "not a trace"},
		{"elf", "\x7fELF\x02\x01", "not a trace"},
		{"prose", "hello world\n", "not a trace"},
		{"json", "{\"a\": 1}", "not a trace"},
		{"html", "<!doctype html>", "not a trace"},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		tr, err := trace.Load(path)
		if tr != nil || !errors.Is(err, trace.ErrNotTrace) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: trace %v, error %v", c.name, tr, err)
		}
	}
	if _, err := trace.Load(dir); err == nil || !strings.Contains(err.Error(), "is a folder") {
		t.Errorf("folder: %v", err)
	}
	if _, err := trace.Load(filepath.Join(dir, "none.tsv")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestDamagedLog(t *testing.T) {
	cut := func(after string) string { return smallLog[:strings.Index(smallLog, after)+len(after)] }
	for _, c := range []struct {
		name, log string
		line      int
		offset    int64
		events    int
		truncated bool
		want      string
	}{
		{"cut in a line", cut("K\t0\t(nil)\t0\t8"), 6, 46, 5, true, "the last line is cut short"},
		{"cut behind a line", cut("M\titer1\n"), 11, -1, 10, true, "ends before its timings"},
		{"cut in the timings", cut("T\t1\t15\n"), 17, -1, 14, true, "ends before its timings"},
		{"cut in a number", cut("A\t1\t40"), 2, 9, 1, true, "the last line is cut short"},
		{"letter", "A\t0\t8\nX\t1\n", 2, 6, 1, false, `unknown event letter "X"`},
		{"number", "A\t0\t8\nA\tone\t8\n", 2, 6, 1, false, `"one" in column 2, not a number`},
		{"missing", "A\t0\t8\nA\t1\n", 2, 6, 1, false, "has no column 3"},
		{"extra", "A\t0\t8\t9\n", 1, 0, 0, false, "extra columns"},
		{"negative", "A\t0\t-8\n", 1, 0, 0, false, "not a number"},
		{"huge", "A\t0\t18446744073709551615\n", 1, 0, 0, false, "too many"},
		{"overflow", "A\t18446744073709551616\t1\n", 1, 0, 0, false, "not a number"},
		{"pointer", "K\t-1\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0-0\n", 1, 0, 0, false, "malformed pointer"},
		{"stream", "K\t-1\tnull\t0\t1\t1\t1\t1\t1\t1\n", 1, 0, 0, false, "not a stream"},
		{"grid", "K\t-1\t(nil)\t0\t4294967296\t1\t1\t1\t1\t1\n", 1, 0, 0, false, "too large"},
		{"copy kind", "C\t-1\t(nil)\tz\t1\n", 1, 0, 0, false, "unknown copy kind"},
		{"copy access", "C\t-1\t(nil)\tc\t1\t0+0\n", 1, 0, 0, false, "without r or w"},
		{"timing twice", "C\t4\t(nil)\tc\t1\nC\t4\t(nil)\tc\t1\n", 2, 14, 1, false, "timing id 4 is used a second time"},
		{"timing", "C\t4\t(nil)\tc\t1\nT\t4\t-6\n", 2, 14, 1, false, "not a number"},
		{"endless timing", "C\t4\t(nil)\tc\t1\nT\t4\t9223372036854775807\n", 2, 14, 1, false, "more than a day"},
		{"nothing", "# empty\n", 2, 8, 0, true, "no events"},
		{"long line", "M\t" + strings.Repeat("x", 5<<20) + "\n", 0, 0, 0, false, "longer than 4 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := trace.Parse("some.tsv", []byte(c.log))
			var d *trace.DamageError
			if !errors.As(err, &d) {
				t.Fatalf("error %v", err)
			}
			if tr == nil || len(tr.Events) != c.events || d.Events != c.events {
				t.Errorf("%d events returned, %d said, want %d", len(tr.Events), d.Events, c.events)
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "some.tsv") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line with %q", err, c.want)
			}
			if c.line != 0 && d.Line != c.line {
				t.Errorf("line %d, want %d", d.Line, c.line)
			}
			if c.offset >= 0 && d.Offset != c.offset {
				t.Errorf("offset %d, want %d", d.Offset, c.offset)
			}
			if errors.Is(err, trace.ErrTruncated) != c.truncated {
				t.Errorf("truncated: %v", !c.truncated)
			}
		})
	}
}

// Every way of cutting a log short is noticed from its first timed launch on, and
// what is returned is a prefix.
func TestLogCutAnywhere(t *testing.T) {
	whole, err := trace.Parse("x", []byte(smallLog))
	if err != nil {
		t.Fatal(err)
	}
	summary := strings.Index(smallLog, "S\t")
	for n := strings.Index(smallLog, "K\t") + 1; n <= summary; n++ {
		tr, err := trace.Parse("x", []byte(smallLog[:n]))
		var d *trace.DamageError
		if !errors.As(err, &d) {
			t.Fatalf("cut at %d: error %v", n, err)
		}
		for i := range tr.Events {
			e := tr.Events[i]
			e.Duration = whole.Events[i].Duration // timings come last, so are lost
			sameEvents(t, []trace.Event{e}, whole.Events[i:i+1])
		}
	}
	packed := gzipped(t, smallLog)
	for n := range packed {
		if _, err := trace.Parse("x", packed[:n]); err == nil {
			t.Fatalf("compressed log cut at %d of %d accepted", n, len(packed))
		}
	}
}

// Logs made by hand need neither a summary nor timings.
func TestMinimalLogs(t *testing.T) {
	for _, log := range []string{
		"A\t0\t8\nN\t0\t1\tk\nK\t-1\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\n",
		"# by hand\r\nA\t0\t8\r\nN\t0\t1\tk\r\nK\t5\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\r\nT\t5\t77\r\n",
		"M\titer0\nM\tend",
	} {
		if _, err := trace.Parse("x", []byte(log)); err != nil {
			t.Errorf("%q: %v", log, err)
		}
	}
}

func TestValidate(t *testing.T) {
	alloc := func(id uint64, n int64) trace.Event { return trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: n} }
	free := func(id uint64) trace.Event { return trace.Event{Kind: trace.KindFree, Alloc: id} }
	fn := trace.Event{Kind: trace.KindFunction, Function: 3, Name: "k"}
	launch := func(id, offset uint64) trace.Event {
		return trace.Event{Kind: trace.KindLaunch, Function: 3, Accesses: []trace.Access{{Alloc: id, Offset: offset}}}
	}
	for _, c := range []struct {
		name   string
		events []trace.Event
		at     int
		want   string
	}{
		{"fine", []trace.Event{fn, alloc(1, 8), launch(1, 0), launch(1, 8), launch(1, 519), free(1), alloc(2, 8)}, 0, ""},
		{"reused", []trace.Event{alloc(1, 8), free(1), alloc(1, 8)}, 2, "allocation id 1 is used a second time"},
		{"freed twice", []trace.Event{alloc(1, 8), free(1), free(1)}, 2, "free of allocation 1, which is not live"},
		{"freed never made", []trace.Event{free(1)}, 0, "not live"},
		{"dead access", []trace.Event{fn, alloc(1, 8), free(1), launch(1, 0)}, 3, "launch on allocation 1, which is not live"},
		{"outside", []trace.Event{fn, alloc(1, 8), launch(1, 520)}, 2, "at byte 520 of allocation 1, which has 8 bytes"},
		{"unknown function", []trace.Event{alloc(1, 8), launch(1, 0)}, 1, "function 3, which was never announced"},
		{"negative", []trace.Event{alloc(1, -8)}, 0, "-8 bytes"},
		{"too much", []trace.Event{alloc(1, 1<<60), alloc(2, 1)}, 1, "above 2^60"},
		{"copy of the dead", []trace.Event{{Kind: trace.KindCopy, Accesses: []trace.Access{{Alloc: 4}}}}, 0, "copy on allocation 4"},
		{"nameless mark", []trace.Event{{Kind: trace.KindMark}}, 0, "without a name"},
		{"zero event", []trace.Event{{}}, 0, "unknown kind 0"},
		{"future event", []trace.Event{{Kind: 14}}, 0, "unknown kind 14"},
	} {
		err := (&trace.Trace{Name: "t", Events: c.events}).Validate()
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		var invalid *trace.InvalidError
		if !errors.As(err, &invalid) || invalid.Event != c.at || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want event %d: %s", c.name, err, c.at, c.want)
		}
	}
	// Loading validates too.
	if tr, err := trace.Parse("x", []byte("F\t9\n")); tr != nil || err == nil {
		t.Errorf("free of nothing loaded: %v %v", tr, err)
	}
}

func TestIterations(t *testing.T) {
	marks := func(names ...string) *trace.Trace {
		tr := &trace.Trace{}
		for _, n := range names {
			tr.Events = append(tr.Events, trace.Event{Kind: trace.KindMark, Name: n}, trace.Event{Kind: trace.KindCopy})
		}
		return tr
	}
	for _, c := range []struct {
		marks []string
		want  []trace.Range
	}{
		{nil, nil},
		{[]string{"built", "end"}, nil},
		{[]string{"built", "iter0", "iter1", "end", "later"}, []trace.Range{{"iter0", 3, 4}, {"iter1", 5, 6}}},
		{[]string{"iter0", "note", "iter1"}, []trace.Range{{"iter0", 1, 4}}},
		{[]string{"iter9", "iter10", "iteration", "iter", "end"}, []trace.Range{{"iter9", 1, 2}, {"iter10", 3, 8}}},
	} {
		got := marks(c.marks...).Iterations()
		if len(got) != len(c.want) {
			t.Errorf("%v: %v, want %v", c.marks, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v: %v, want %v", c.marks, got, c.want)
			}
		}
	}
}

func TestLargestLaunchCountsOnce(t *testing.T) {
	var many []trace.Access
	tr := &trace.Trace{Events: []trace.Event{{Kind: trace.KindFunction, Function: 1}}}
	for id := range uint64(40) {
		tr.Events = append(tr.Events, trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: 10})
		many = append(many, trace.Access{Alloc: id}, trace.Access{Alloc: id, Offset: 4})
	}
	tr.Events = append(tr.Events,
		trace.Event{Kind: trace.KindLaunch, Function: 1, Accesses: many[:10]},
		trace.Event{Kind: trace.KindLaunch, Function: 1, Accesses: many},
		trace.Event{Kind: trace.KindLaunch, Function: 1, Accesses: many})
	if l := tr.LargestLaunch(); l != (trace.Launch{Event: 42, Function: 1, Kernel: "function 1", Bytes: 400}) {
		t.Errorf("%+v", l)
	}
	if l := (&trace.Trace{}).LargestLaunch(); l.Event != -1 {
		t.Errorf("no launch: %+v", l)
	}
}

func TestShippedTrace(t *testing.T) {
	tr, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Name != "gpt2m" || tr.PeakLiveBytes() != 6365903244 || tr.Header.ReportedPeakBytes != 6376023552 {
		t.Errorf("%s: peak %d, reported %d", tr.Name, tr.PeakLiveBytes(), tr.Header.ReportedPeakBytes)
	}
	if got := len(tr.Iterations()); got != 3 {
		t.Errorf("%d iterations", got)
	}
	if l := tr.LargestLaunch(); l.Bytes <= 100<<20 || !strings.HasPrefix(l.Kernel, "_Z") && l.Kernel == "" {
		t.Errorf("largest launch %+v", l)
	}
}

// sharedTraces are the launch logs beside the repository, on machines that have them.
func sharedTraces(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("../../shared/traces/*.tsv.gz")
	if err != nil || len(paths) == 0 {
		t.Skip("no shared launch logs beside the repository")
	}
	return paths
}

func TestSharedTraces(t *testing.T) {
	for _, path := range sharedTraces(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			tr, err := trace.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			// The log's own peak is the framework allocator's: requests rounded up
			// to 512 bytes, and its workspaces, which the log does not count. It is
			// above ours, by at most 5 % (a convolution's workspace in resnet152).
			peak, reported := tr.PeakLiveBytes(), tr.Header.ReportedPeakBytes
			if peak > reported || float64(peak) < 0.95*float64(reported) {
				t.Errorf("peak %d, the log says %d", peak, reported)
			}
			its := tr.Iterations()
			if len(its) < 3 {
				t.Fatalf("%d iterations", len(its))
			}
			var untimed, launches int
			var gpu time.Duration
			for _, e := range tr.Events[its[len(its)-1].First:its[len(its)-1].End] {
				if e.Kind == trace.KindLaunch {
					launches++
					gpu += max(0, e.Duration)
					if e.Duration < 0 {
						untimed++
					}
				}
			}
			if untimed > 0 || launches < 1000 || gpu < 40*time.Millisecond || gpu > 2*time.Second {
				t.Errorf("last iteration: %d launches, %d untimed, %v on the GPU", launches, untimed, gpu)
			}
		})
	}
}

func BenchmarkLoadLaunchLog(b *testing.B) {
	b.SetBytes(int64(len(testdata.GPT2M)))
	for b.Loop() {
		if _, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLaunchRoles: what a log says of a launch's operands is kept, by a recording too; a letter that means nothing is damage.
func TestLaunchRoles(t *testing.T) {
	const head = "N\t1\t4\tf\nA\t0\t8\nK\t-1\t(nil)\t1\t1\t1\t1\t1\t1\t1"
	tr, err := trace.Parse("roles", []byte(head+"\tr0+0\tw0+1\tb0+2\t0+3\nM\tend\n"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "roles.pstrace")
	if err := tr.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	recorded, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []trace.Access{{Mode: trace.AccessRead}, {Offset: 1, Mode: trace.AccessWrite}, {Offset: 2, Mode: trace.AccessReadWrite}, {Offset: 3}}
	for _, got := range [][]trace.Access{tr.Events[2].Accesses, recorded.Events[2].Accesses} {
		if !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, bad := range []string{"x0+0", "r", "rr0+0", "r+0"} {
		if _, err := trace.Parse("bad", []byte(head+"\t"+bad+"\nM\tend\n")); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzLaunchLog(f *testing.F) {
	f.Add([]byte(smallLog))
	f.Add(gzipped(f, smallLog))
	f.Add([]byte("A\t0\t8\nK\t1\t0xffffffffffffffff\t4294967295\t1\t1\t1\t1\t1\t1\t0+8\nT\t1\t5\n"))
	f.Add([]byte("C\t-1\t(nil)\tc\t1\tw0+0\tr0+0\n"))
	f.Add([]byte("N\t1\t3\tf\nA\t0\t8\nA\t1\t8\nK\t-1\t(nil)\t1\t1\t1\t1\t1\t1\t1\tr0+0\tw1+0\tb1+4\t0+0\nM\tend\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := trace.Parse("fuzz", data)
		if tr == nil {
			if err == nil {
				t.Fatal("neither trace nor error")
			}
			return
		}
		exercise(t, tr)
	})
}

// exercise checks what holds of every trace that loads.
func exercise(t *testing.T, tr *trace.Trace) {
	if err := tr.Validate(); err != nil {
		t.Fatalf("a loaded trace is invalid: %v", err)
	}
	peak := tr.PeakLiveBytes()
	if l := tr.LargestLaunch(); l.Bytes > peak || peak < 0 {
		t.Fatalf("largest launch %d, peak %d", l.Bytes, peak)
	}
	for _, r := range tr.Iterations() {
		if r.First > r.End || r.End >= len(tr.Events) {
			t.Fatalf("iteration %+v of %d events", r, len(tr.Events))
		}
	}
}
