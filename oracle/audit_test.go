package oracle

import (
	"math"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// auditor replays what a schedule did, knows nothing of how it was decided,
// and complains about everything that the hardware would not have done.
type auditor struct {
	t       testing.TB
	p       *program
	o       Options
	items   []audited
	used    int64 // items
	pinned  int64
	out, in copying
	running int // launch, or -1
	next    int
	ended   float64
	began   float64
	now     float64
}

type audited struct {
	present, touched, saved bool
	leaving, coming         bool
}

type copying struct {
	item  int32
	moved float64 // bytes across
}

func newAuditor(t testing.TB, p *program, o Options) *auditor {
	return &auditor{t: t, p: p, o: o, items: make([]audited, len(p.items)), running: -1, out: copying{item: never}, in: copying{item: never}}
}

func (a *auditor) action(act action) {
	a.t.Helper()
	fail := func(format string, args ...any) {
		a.t.Helper()
		a.t.Fatalf("at %g s, launch %d, item %d: "+format, append([]any{act.now, a.next, act.item}, args...)...)
	}
	it := &audited{}
	if act.what != actLaunch && act.what != actEnd {
		it = &a.items[act.item]
	}
	takes := func() {
		if it.present {
			fail("takes space twice")
		}
		it.present = true
		a.used += a.p.items[act.item].bytes
	}
	// What has crossed since the last action, each direction slowed by the other.
	rates := [2]float64{a.o.H2DBytesPerSecond, a.o.D2HBytesPerSecond}
	if a.in.item != never && a.out.item != never {
		rates[0], rates[1] = min(rates[0], a.o.DuplexBytesPerSecond/2), min(rates[1], a.o.DuplexBytesPerSecond/2)
	}
	if elapsed := act.now - a.now; elapsed > 0 {
		a.in.moved += rates[0] * elapsed
		a.out.moved += rates[1] * elapsed
	} else if elapsed < 0 {
		fail("time runs backwards")
	}
	a.now = act.now
	ends := func(c *copying, rate float64) {
		if c.item != act.item {
			fail("a copy of %d ends, %d was begun", act.item, c.item)
		}
		want := float64(a.p.items[act.item].copied)
		if off := (c.moved - want) / rate; !math.IsInf(rate, 1) && math.Abs(off) > 1e-9*(1+act.now) {
			fail("a copy of %g bytes ends when the bus has moved %g", want, c.moved)
		}
		c.item = never
	}
	begins := func(c *copying) {
		if c.item != never || a.o.DuplexBytesPerSecond == 0 && (a.out.item != never || a.in.item != never) {
			fail("two copies at once")
		}
		*c = copying{item: act.item}
	}
	switch act.what {
	case actFresh:
		if it.touched {
			fail("its contents came from nowhere")
		}
		a.pinned = a.p.launches[a.next].pinnedBytes // it starts at this moment
		takes()
	case actLaunch:
		if act.launch != a.next || a.running >= 0 || act.now < a.ended {
			fail("launch %d starts out of order", act.launch)
		}
		l := &a.p.launches[act.launch]
		for j, k := range l.items {
			if i := a.items[k]; !i.present || i.leaving || i.coming {
				fail("launch needs item %d, which is %+v", k, i)
			}
			a.items[k].touched = true
			if !l.reads[j] {
				a.items[k].saved = false
			}
		}
		a.pinned = l.pinnedBytes
		a.running, a.began = act.launch, act.now
	case actEnd:
		want := a.p.launches[a.running].seconds
		if act.launch != a.running || math.Abs(act.now-a.began-want) > 1e-9*(1+act.now) {
			fail("launch %d ends after %g s, it takes %g", act.launch, act.now-a.began, want)
		}
		a.running, a.next, a.ended = -1, act.launch+1, act.now
	case actOut:
		begins(&a.out)
		if !it.present || !it.touched || it.coming {
			fail("copied out while %+v", *it)
		}
		if a.running >= 0 {
			for _, k := range a.p.launches[a.running].items {
				if k == act.item {
					fail("copied out under the launch that uses it")
				}
			}
		}
		it.leaving = true
	case actLeft:
		ends(&a.out, a.o.D2HBytesPerSecond)
		it.leaving, it.saved = false, true
	case actDrop:
		dead := int(a.p.items[act.item].freed) <= a.next
		if !it.present || it.leaving || it.coming || !it.saved && !dead {
			fail("dropped while %+v, dead %v", *it, dead)
		}
		it.present = false
		a.used -= a.p.items[act.item].bytes
	case actIn:
		if !it.saved || !it.touched {
			fail("copied in without a copy on the host: %+v", *it)
		}
		begins(&a.in)
		takes()
		it.coming = true
	case actCame:
		ends(&a.in, a.o.H2DBytesPerSecond)
		it.coming = false
	}
	if a.used+a.pinned > a.o.BudgetBytes {
		fail("%d bytes used of a budget of %d", a.used+a.pinned, a.o.BudgetBytes)
	}
}

// auditAll audits every plan for a trace and returns the result of the best.
func auditAll(t testing.TB, tr *trace.Trace, o Options) (Result, error) {
	t.Helper()
	r, err := Run(tr, o)
	if err != nil {
		return r, err
	}
	if o, err = o.withDefaults(); err != nil {
		t.Fatal(err)
	}
	p, err := newProgram(tr, o)
	if err != nil {
		t.Fatal(err)
	}
	best := math.Inf(1)
	for _, tune := range tunings(o) {
		s := newScheduler(p, newPlan(p, o.BudgetBytes, tune), o, tune.turns)
		s.audit = newAuditor(t, p, o).action
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
		best = min(best, s.result().IterationSeconds)
	}
	if best != r.IterationSeconds {
		t.Fatalf("Run says %g s, its best plan takes %g", r.IterationSeconds, best)
	}
	return r, nil
}

func TestAuditSharedLogs(t *testing.T) {
	raced.Skip(t)
	tr := testlogs.Load(t, "moe")
	for _, duplex := range []float64{0, 70e9, math.Inf(1)} {
		o := Options{BudgetBytes: tr.PeakLiveBytes() / 2, H2DBytesPerSecond: 46e9, D2HBytesPerSecond: 40e9, DuplexBytesPerSecond: duplex, BlockBytes: 2 << 20}
		if _, err := auditAll(t, tr, o); err != nil {
			t.Error(err)
		}
	}
}

// arbitraryTrace makes a legal trace of any bytes.
func arbitraryTrace(data []byte) *trace.Trace {
	tr := &trace.Trace{}
	add := func(e trace.Event) { tr.Events = append(tr.Events, e) }
	var live []uint64
	var last uint64
	marks := 0
	mark := func() {
		add(trace.Event{Kind: trace.KindMark, Name: "iter" + string(rune('0'+marks%10))})
		marks++
	}
	mark()
	for len(data) >= 2 {
		op, arg := data[0]%8, data[1]
		data = data[2:]
		switch {
		case op == 0 || len(live) == 0:
			last++
			add(trace.Event{Kind: trace.KindAlloc, Alloc: last, Bytes: int64(arg%64) << 18})
			live = append(live, last)
		case op == 1:
			at := int(arg) % len(live)
			add(trace.Event{Kind: trace.KindFree, Alloc: live[at]})
			live = append(live[:at], live[at+1:]...)
		case op == 2 && arg%4 == 0:
			mark()
		default:
			e := trace.Event{Kind: trace.KindLaunch, Duration: time.Duration(int(arg)-8) * time.Millisecond}
			for i := 0; i <= int(op)/3; i++ {
				e.Accesses = append(e.Accesses, trace.Access{
					Alloc: live[(int(arg)*7+i*13)%len(live)], Mode: trace.AccessMode(int(arg) / 16 % 4),
				})
			}
			add(e)
		}
	}
	add(trace.Event{Kind: trace.KindMark, Name: trace.MarkEnd})
	return tr
}

func FuzzSchedule(f *testing.F) {
	f.Add([]byte("\x00\x20\x00\x20\x03\x10\x04\x21\x02\x00\x03\x11\x04\x22\x02\x00\x03\x10\x04\x21"), uint16(40), uint8(255))
	f.Add([]byte("0A0B0C3D4E5F6G7H1A3B4C0Z3A4B5C6D7E2D3A4B5C6D7E"), uint16(80), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, budget uint16, duplex uint8) {
		if len(data) > 400 {
			data = data[:400]
		}
		tr := arbitraryTrace(data)
		o := Options{
			BudgetBytes: int64(budget)<<18 + 1, H2DBytesPerSecond: 1 << 30, D2HBytesPerSecond: 1 << 29,
			// From one direction at a time, over directions that slow each other, to more than both can use.
			DuplexBytesPerSecond: float64(duplex) * (1 << 23),
			BlockBytes:           1 << (budget % 21), PieceBytes: 3 << 20, Timeline: true,
			LaunchCost: time.Duration(duplex%4) * time.Millisecond,
		}
		r, err := auditAll(t, tr, o)
		if err != nil {
			return // does not fit, or has no iteration
		}
		for _, s := range r.Timeline {
			if s.ResidentBytes > o.BudgetBytes {
				t.Fatalf("%d bytes resident of %d", s.ResidentBytes, o.BudgetBytes)
			}
		}
		if o.BlockBytes == 1 {
			checkPhysics(t, r, 1<<30, o.DuplexBytesPerSecond > 0)
		}
	})
}
