package analyse

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/trace"
)

const base = 0x7f0000000000

// story writes recordings by hand; times are in microseconds.
type story struct {
	a  *Analyser
	op uint64
}

func begin(h trace.Header) *story { return &story{a: New(h)} }

func us(t int) time.Duration { return time.Duration(t) * time.Microsecond }

func (s *story) add(e trace.Event) { s.a.Add(&e) }

func (s *story) alloc(t int, id uint64, at uint64, bytes int64, site string) {
	s.add(trace.Event{Kind: trace.KindAlloc, Time: us(t), Alloc: id, Address: at, Bytes: bytes, Name: site})
}

func (s *story) function(id uint32, name string) {
	s.add(trace.Event{Kind: trace.KindFunction, Function: id, Name: name})
}

func (s *story) launch(t int, function uint32, stream uint64, allocs ...uint64) uint64 {
	e := trace.Event{Kind: trace.KindLaunch, Time: us(t), Function: function, Stream: stream, Duration: -1}
	for _, a := range allocs {
		e.Accesses = append(e.Accesses, trace.Access{Alloc: a})
	}
	s.add(e)
	s.op++
	return s.op
}

func (s *story) done(t int, stream, op uint64) {
	s.add(trace.Event{Kind: trace.KindProgress, Time: us(t), Stream: stream, Alloc: op})
}

func (s *story) fault(t int, at uint64) {
	s.add(trace.Event{Kind: trace.KindFault, Time: us(t), Address: at, GPU: 1, Batch: uint32(t), Mode: trace.AccessRead})
}

func (s *story) move(t, took int, at uint64, bytes int64, to trace.Side, c trace.Cause) {
	s.add(trace.Event{Kind: trace.KindMigration, Time: us(t), Duration: us(took), Address: at, Bytes: bytes, To: to, Cause: c, GPU: 1})
}

func (r *Report) kernel(t *testing.T, name string) KernelRow {
	t.Helper()
	for _, k := range r.Kernels {
		if k.Kernel == name {
			return k
		}
	}
	t.Fatalf("no kernel %s in %+v", name, r.Kernels)
	return KernelRow{}
}

func (r *Report) cause(c Cause) int64 { return r.Causes[c].Faults }

// checkSums holds the report to the invariants of the package.
func checkSums(t testing.TB, r *Report) {
	t.Helper()
	var causes, kernels, allocs, phases, processes, pairs int64
	for _, x := range r.Pairs {
		pairs += x.Faults
	}
	for _, x := range r.Causes {
		causes += x.Faults
		if x.Faults < 0 {
			t.Errorf("%+v", x)
		}
	}
	for _, x := range r.Kernels {
		kernels += x.Faults
	}
	for _, x := range r.Allocations {
		allocs += x.Faults
	}
	for _, x := range r.Phases {
		phases += x.Faults
	}
	for _, x := range r.Processes {
		processes += x.Faults
	}
	at := r.Attribution
	n := r.Summary.Faults
	if causes != n || kernels != n || allocs != n || phases != n || processes != n || pairs != n || at.ByProgress+at.ByAccess+at.ByOrder+at.ByLaunch+at.CopyEngine+at.None != n {
		t.Errorf("%d faults: by cause %d, kernel %d, allocation %d, phase %d, process %d, pair %d, attribution %+v", n, causes, kernels, allocs, phases, processes, pairs, at)
	}
	var in, out, timeline int64
	for _, x := range r.Migrations {
		in += x.H2DBytes
		out += x.D2HBytes
	}
	for _, x := range r.Timeline.Buckets {
		timeline += x.H2DBytes + x.D2HBytes
	}
	if in != r.Summary.H2DBytes || out != r.Summary.D2HBytes || timeline != in+out {
		t.Errorf("%d in, %d out, by cause %d and %d, over time %d", r.Summary.H2DBytes, r.Summary.D2HBytes, in, out, timeline)
	}
}

// Two kernels run one after the other; progress says when, and the faults of
// each find it, also where only the access sets tell.
func TestKernelsByProgressAndAccess(t *testing.T) {
	s := begin(trace.Header{})
	s.alloc(0, 1, base, 4<<20, "")
	s.alloc(0, 2, base+8<<20, 4<<20, "model.py:7 forward")
	s.function(1, "gemm")
	s.function(2, "softmax")
	a := s.launch(10, 1, 0, 1)
	b := s.launch(11, 2, 0, 2)
	s.fault(100, base)        // only gemm can run
	s.done(200, 0, a)         // gemm is done
	s.fault(300, base+8<<20)  // only softmax
	s.launch(400, 1, 0, 1)    // gemm again, behind it
	s.fault(410, base+9<<20)  // of softmax or of gemm: softmax names it
	s.fault(411, base+4096)   // gemm
	s.fault(412, base+64<<20) // nobody's memory: the first of the two
	s.done(500, 0, b)
	r := s.a.Report(true)
	checkSums(t, r)
	if n := r.kernel(t, "gemm").Faults; n != 2 {
		t.Errorf("gemm has %d faults, want 2", n)
	}
	if n := r.kernel(t, "softmax").Faults; n != 3 {
		t.Errorf("softmax has %d faults, want 3", n)
	}
	if at := r.Attribution; at.ByProgress != 1 && at.ByAccess != 3 || at.ByOrder != 1 || at.None != 0 {
		t.Errorf("%+v", at)
	}
	if x := r.Allocations[0]; x.Name() != fmt.Sprintf("%#x", base) && x.Name() != "model.py:7 forward" {
		t.Errorf("%+v", r.Allocations)
	}
}

func TestCauses(t *testing.T) {
	const mib = 1 << 20
	s := begin(trace.Header{})
	s.alloc(0, 1, base, 64*mib, "")
	s.function(1, "k")
	s.launch(1, 1, 0, 1)
	in := func(t int, at uint64, bytes int64, c trace.Cause) { s.move(t, 50, at, bytes, trace.SideDevice, c) }
	out := func(t int, at uint64, bytes int64, c trace.Cause) { s.move(t, 50, at, bytes, trace.SideHost, c) }

	s.fault(10, base) // first touch
	in(20, base, 2*mib, trace.CauseCoherence)
	in(100, base+2*mib, 2*mib, trace.CauseUser) // a prefetch that is used
	out(3000, base, 2*mib, trace.CauseEviction)
	s.fault(4000, base) // back at once: less than the peak came in between
	in(4010, base, 2*mib, trace.CauseCoherence)
	out(9000, base, 2*mib, trace.CauseEviction)
	for i := range 4 { // more than the peak comes in
		in(9100+i*100, base+uint64(4+2*i)*mib, 2*mib, trace.CauseUser)
		out(9150+i*100, base+uint64(4+2*i)*mib, 2*mib, trace.CauseUser)
	}
	s.fault(20000, base) // never predicted
	in(20010, base, 2*mib, trace.CauseCoherence)
	out(30000, base, 2*mib, trace.CauseCoherence) // the CPU takes it
	s.fault(31000, base)                          // and the GPU wants it back
	in(31010, base, 2*mib, trace.CauseCoherence)
	out(40000, base, 2*mib, trace.CauseEviction)
	s.fault(41000, base+4096) // the prefetch comes just after
	in(41500, base, 2*mib, trace.CauseUser)
	out(50000, base, 2*mib, trace.CauseEviction)
	in(51000, base, 2*mib, trace.CauseUser) // took 50 us
	s.fault(51020, base+8192)               // while it was on its way
	s.fault(60000, base+8192)               // an upgrade
	s.add(trace.Event{Kind: trace.KindThrash, Time: us(60100), Address: base, Bytes: 4096})
	s.fault(60200, base)
	s.done(70000, 0, 1)
	r := s.a.Report(true)
	checkSums(t, r)
	want := [Causes]int64{FirstTouch: 1, EvictedEarly: 1, NeverPredicted: 1, CPUTouched: 1, PrefetchedLate: 2, AlreadyThere: 1, Thrash: 1}
	for c := range Causes {
		if r.cause(c) != want[c] {
			t.Errorf("%v: %d faults, want %d", c, r.cause(c), want[c])
		}
	}
	sum := r.Summary
	if sum.DistinctBytes != 12*mib || sum.ResidentBytes != 4*mib || sum.EvictedBytes != 8*mib {
		t.Errorf("%+v", sum)
	}
	if sum.H2DBytes != 22*mib || r.Predictor.PrefetchedBytes != 14*mib {
		t.Errorf("%d in, %d prefetched", sum.H2DBytes, r.Predictor.PrefetchedBytes)
	}
}

func TestCPUAndGPUThrash(t *testing.T) {
	s := begin(trace.Header{})
	for i := range 6 {
		s.fault(i*200, base)
		s.move(i*200+10, 10, base, 4096, trace.SideDevice, trace.CauseCoherence)
		s.move(i*200+100, 10, base, 4096, trace.SideHost, trace.CauseCoherence)
	}
	r := s.a.Report(true)
	checkSums(t, r)
	if r.cause(FirstTouch) != 1 || r.cause(Thrash) < 3 || r.cause(CPUTouched)+r.cause(Thrash) != 5 {
		t.Errorf("%+v", r.Causes)
	}
}

// A prefetch that leaves again without a launch that names it was wasted.
func TestWastedPrefetch(t *testing.T) {
	s := begin(trace.Header{})
	s.alloc(0, 1, base, 2<<20, "used")
	s.alloc(0, 2, base+2<<20, 2<<20, "unused")
	s.function(1, "k")
	s.launch(1, 1, 0, 1)
	s.move(10, 5, base, 4<<20, trace.SideDevice, trace.CauseUser)
	s.launch(20, 1, 0, 1)
	s.move(30, 5, base, 4<<20, trace.SideHost, trace.CauseUser)
	r := s.a.Report(true)
	if r.Predictor.WastedBytes != 2<<20 || r.Predictor.Coverage != 1 {
		t.Errorf("%+v", r.Predictor)
	}
	for _, a := range r.Allocations {
		if want := map[string]int64{"used": 0, "unused": 2 << 20}[a.Site]; a.WastedBytes != want || a.H2DBytes != 2<<20 {
			t.Errorf("%+v", a)
		}
	}
}

// A migration that is told of late, as the driver does, still counts in its time.
func TestOutOfOrder(t *testing.T) {
	s := begin(trace.Header{})
	s.fault(0, base)
	s.move(10, 10, base, 2<<20, trace.SideDevice, trace.CauseCoherence)
	s.fault(2000, base)
	s.move(1000, 10, base, 2<<20, trace.SideHost, trace.CauseEviction) // before the second fault
	r := s.a.Report(true)
	if r.cause(FirstTouch) != 1 || r.cause(EvictedEarly) != 1 || len(r.Limits) != 1 {
		t.Errorf("%+v %v", r.Causes, r.Limits)
	}
}

func TestPhasesAndIterations(t *testing.T) {
	s := begin(trace.Header{})
	for i, name := range []string{"gemm", "gelu_backward_kernel", "multi_tensor_apply_kernel<adam>"} {
		s.function(uint32(i), name)
	}
	for i := range 3 {
		at := i * 1000
		for k, f := range []uint32{0, 0, 1, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} {
			s.launch(at+10*k, f, 0)
		}
	}
	r := s.a.Report(true)
	if len(r.Iterations) != 3 {
		t.Errorf("iterations %+v", r.Iterations)
	}
	by := map[string]int64{}
	for _, p := range r.Phases {
		by[p.Phase] = p.Launches
	}
	if by["backward"] != 6 || by["optimizer"] != 3*2+3*8 || // 8 launches behind it are its own still
		by["unknown"] != 2 {
		t.Errorf("%v", by)
	}
}

func TestDriverCounters(t *testing.T) {
	c := Counters{H2DBytes: 2 << 20, D2HBytes: 0, CPUFaults: 3, GPUFaults: 4}
	if got, ok := ParseCounters(c.Mark()); !ok || got != c {
		t.Errorf("%+v, %v", got, ok)
	}
	s := begin(trace.Header{})
	for range 3 {
		s.fault(1, base) // merged
	}
	for i := range 3 {
		s.fault(2+i, base)
	}
	s.function(1, "k")
	s.launch(0, 1, 0)
	s.done(9, 0, 1)
	s.move(10, 10, base, 2<<20, trace.SideDevice, trace.CauseCoherence)
	s.add(trace.Event{Kind: trace.KindMark, Name: c.Mark()})
	if r := s.a.Report(true); *r.Summary.Driver != c || len(r.Limits) != 0 {
		t.Errorf("%+v", r.Limits)
	}
	c.D2HBytes, c.GPUFaults = 1, 6
	s.add(trace.Event{Kind: trace.KindMark, Time: us(20), Name: c.Mark()})
	if r := s.a.Report(true); len(r.Limits) != 2 || !strings.Contains(r.Limits[0], "1 to the host") || !strings.Contains(r.Limits[1], "6 serviced faults, the events tell of 4") {
		t.Errorf("%+v", r.Limits)
	}
}

// Whatever a file says, memory stays bounded: names and accesses at their
// largest, streams that never finish, blocks all over.
func TestHostileMemory(t *testing.T) {
	short.Skip(t)
	a := New(trace.Header{})
	long := strings.Repeat("n", 60<<10)
	accesses := make([]trace.Access, 4000)
	for i := range accesses {
		accesses[i].Alloc = uint64(i)
	}
	began := time.Now()
	for i := range 20_000 {
		e := trace.Event{Kind: trace.KindFunction, Function: uint32(i), Name: fmt.Sprint(i) + long}
		switch i % 4 {
		case 1:
			e = trace.Event{Kind: trace.KindLaunch, Stream: uint64(i), Function: uint32(i - 1), Accesses: append([]trace.Access(nil), accesses...)}
		case 2:
			e = trace.Event{Kind: trace.KindAlloc, Alloc: uint64(i), Address: uint64(i) << 21, Bytes: 4096, Name: fmt.Sprint(i) + long}
		case 3:
			e = trace.Event{Kind: trace.KindFault, Address: uint64(i) << 30, GPU: 1}
			if i%8 == 3 {
				e = trace.Event{Kind: trace.KindProgress, Stream: uint64(i - 2), Alloc: 1 << 60}
			}
		}
		e.Time = time.Duration(i) * time.Millisecond
		a.Add(&e)
	}
	r := a.Report(true)
	checkSums(t, r)
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 300<<20 || time.Since(began) > 60*time.Second {
		t.Errorf("%d MiB after %v", m.HeapAlloc>>20, time.Since(began))
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(r)
}

// synthetic generates events of a job that pages: launches, faults in batches,
// migrations and evictions, with progress.
type synthetic struct {
	n, op   uint64
	address uint64
	time    time.Duration
	queued  []trace.Event
	at      int
}

const syntheticSpan = 16 << 30

func (g *synthetic) next(e *trace.Event) {
	if g.at == len(g.queued) {
		g.fill()
	}
	*e = g.queued[g.at]
	g.at++
}

func (g *synthetic) fill() {
	g.queued, g.at = g.queued[:0], 0
	add := func(e trace.Event) { g.queued = append(g.queued, e) }
	if g.op == 0 {
		for i := range uint64(256) {
			add(trace.Event{Kind: trace.KindAlloc, Alloc: i + 1, Address: base + i*(syntheticSpan/256), Bytes: syntheticSpan / 256})
		}
		for i := range uint32(64) {
			add(trace.Event{Kind: trace.KindFunction, Function: i, Name: fmt.Sprint("kernel", i)})
		}
	}
	g.time += 20 * time.Microsecond
	g.op++
	block := g.address / (syntheticSpan / 256) % 256
	add(trace.Event{Kind: trace.KindLaunch, Time: g.time, Function: uint32(g.op % 64), Duration: -1, Accesses: []trace.Access{{Alloc: block + 1}}})
	for batch := range uint32(4) {
		begin := g.time
		for range 160 {
			g.n = g.n*6364136223846793005 + 1442695040888963407 // so that it does not compress like a tune
			g.time += time.Duration(100 + g.n>>57)
			add(trace.Event{Kind: trace.KindFault, Time: g.time, Address: base + (g.address+g.n>>40%512*4096)%syntheticSpan, GPU: 1, Mode: trace.AccessRead, Batch: uint32(g.op)*4 + batch})
		}
		for i := range uint64(16) {
			add(trace.Event{Kind: trace.KindMigration, Time: begin + time.Duration(i)*time.Microsecond, Duration: 3 * time.Microsecond, Address: base + (g.address+i<<16)%syntheticSpan, Bytes: 64 << 10, To: trace.SideDevice, Cause: trace.CauseCoherence, GPU: 1})
		}
		add(trace.Event{Kind: trace.KindMigration, Time: begin, Duration: 90 * time.Microsecond, Address: base + (g.address+syntheticSpan/2)%syntheticSpan, Bytes: 2 << 20, Cause: trace.CauseEviction, GPU: 1})
		g.address = (g.address + 2<<20) % syntheticSpan
	}
	add(trace.Event{Kind: trace.KindProgress, Time: g.time, Alloc: g.op})
}

func TestSynthetic(t *testing.T) {
	a := New(trace.Header{})
	var g synthetic
	var e trace.Event
	for range 300_000 {
		g.next(&e)
		a.Add(&e)
	}
	r := a.Report(true)
	checkSums(t, r)
	if r.Attribution.None != 0 || r.Attribution.ByOrder > 0 || r.Summary.Faults < 250_000 || len(r.Limits) != 0 {
		t.Errorf("%+v %v", r.Attribution, r.Limits)
	}
}

// A live view asks again and again; that must change nothing in the end.
func TestReportWhileRunning(t *testing.T) {
	once, often := New(trace.Header{}), New(trace.Header{})
	var g synthetic
	var e trace.Event
	for i := range 100_000 {
		g.next(&e)
		once.Add(&e)
		often.Add(&e)
		if i%9973 == 0 {
			often.Report(false)
		}
	}
	a, b := once.Report(true), often.Report(true)
	checkSums(t, b)
	if a.Summary != b.Summary || a.Attribution != b.Attribution || a.Batches.Count != b.Batches.Count {
		t.Errorf("\n%+v\n%+v", a.Summary, b.Summary)
	}
}

func generate(t testing.TB, out io.Writer, events int) {
	w, err := trace.NewWriter(out, trace.Header{}, trace.WriterOptions{FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	var g synthetic
	var e trace.Event
	for range events {
		g.next(&e)
		if err := w.Append(&e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// The promise is 100 million events in less than 1 GiB, at 2 million a second on
// one core: PENSTOCK_TEST_EVENTS=100000000 go test -run Long ./faults/analyse
func TestLong(t *testing.T) {
	text := os.Getenv("PENSTOCK_TEST_EVENTS")
	if text == "" {
		t.Skip("set PENSTOCK_TEST_EVENTS to how many events to analyse")
	}
	events, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "long"+trace.Extension)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	generate(t, f, events)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	began, beganCPU := time.Now(), cpuTime(t)
	r, err := File(path, nil)
	if err != nil || r.Events != int64(events) {
		t.Fatal(r.Events, err)
	}
	rate := float64(events) / time.Since(began).Seconds()
	perCPU := float64(events) / (cpuTime(t) - beganCPU).Seconds()
	checkSums(t, r)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") {
			t.Logf("%d events, %.2f million a second of time, %.2f of one core, %s", events, rate/1e6, perCPU/1e6, strings.Join(strings.Fields(line), " "))
			if kib, _ := strconv.Atoi(strings.Fields(line)[1]); kib > 1<<20 {
				t.Errorf("peak memory of %d KiB, want at most 1 GiB", kib)
			}
		}
	}
}

// cpuTime is what this process has used of its cores: on a busy machine the fairer clock.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkReport reads a recording from memory and analyses it: events a second
// are what `penstock faults report` reaches on one core.
func BenchmarkReport(b *testing.B) {
	const events = 2_000_000
	var file bytes.Buffer
	generate(b, &file, events)
	runtime.GOMAXPROCS(1)
	b.ResetTimer()
	for b.Loop() {
		r, err := Read(bytes.NewReader(file.Bytes()))
		if err != nil || r.Events != events {
			b.Fatal(r.Events, err)
		}
	}
	b.ReportMetric(events*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(file.Len())/events, "B/event")
}

// PENSTOCK_TEST_WRITE=FILE writes the synthetic recording, of PENSTOCK_TEST_EVENTS
// events, to try commands on.
func TestWriteSynthetic(t *testing.T) {
	path := os.Getenv("PENSTOCK_TEST_WRITE")
	if path == "" {
		t.Skip("set PENSTOCK_TEST_WRITE to a file to write a synthetic recording to it")
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	events := 300_000
	if n, err := strconv.Atoi(os.Getenv("PENSTOCK_TEST_EVENTS")); err == nil {
		events = n
	}
	generate(t, f, events)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Memory of an allocation that was freed has a new life with the next one there,
// and what runs still on the old one finds it.
func TestNewOwner(t *testing.T) {
	s := begin(trace.Header{})
	s.alloc(0, 1, base, 2<<20, "old")
	s.function(1, "k")
	s.launch(1, 1, 0, 1)
	s.fault(10, base)
	s.move(20, 50, base, 2<<20, trace.SideDevice, trace.CauseCoherence)
	s.move(2000, 50, base, 2<<20, trace.SideHost, trace.CauseUser)
	s.add(trace.Event{Kind: trace.KindFree, Time: us(3000), Alloc: 1})
	s.fault(3500, base) // the kernel runs still
	s.alloc(4000, 2, base, 2<<20, "new")
	s.launch(4001, 1, 0, 2)
	s.fault(5000, base+4096) // not evicted too early: nobody has used this before
	s.fault(5001, base+4096) // the same fault, not serviced yet
	s.done(6000, 0, 2)
	r := s.a.Report(true)
	checkSums(t, r)
	if r.cause(FirstTouch) != 3 || r.cause(EvictedEarly) != 1 {
		t.Errorf("%+v", r.Causes)
	}
	for _, a := range r.Allocations {
		if a.Faults != 2 {
			t.Errorf("%+v", a)
		}
	}
	if r.Summary.DistinctBytes != 2<<20 {
		t.Errorf("%d distinct bytes", r.Summary.DistinctBytes)
	}
}

// Faults that the driver merges are counted each, and once as serviced.
func TestMergedFaults(t *testing.T) {
	s := begin(trace.Header{})
	for i, at := range []uint64{base, base, base, base + 4096, base} {
		when := us(10)
		if i >= 3 {
			when += time.Duration(i) * 400
		}
		s.add(trace.Event{Kind: trace.KindFault, Time: when, Address: at, GPU: 1, Batch: 7})
	}
	r := s.a.Report(true)
	checkSums(t, r)
	if r.Summary.Faults != 5 || r.Summary.ServicedFaults != 3 || r.cause(FirstTouch) != 5 {
		t.Errorf("%+v %+v", r.Summary, r.Causes)
	}
}
