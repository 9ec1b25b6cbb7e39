package live

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/bound"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/managed"
)

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config, *fakeDriver)
		want   string
	}{
		{"negative", func(c *Config, d *fakeDriver) { c.HostBudgetBytes = -1 }, "negative"},
		{"above the card", func(c *Config, d *fakeDriver) { c.BudgetBytes = 2 << 30 }, "above the card"},
		{"too small", func(c *Config, d *fakeDriver) { c.BudgetBytes = mib }, "too small"},
		{"no managed memory", func(c *Config, d *fakeDriver) { d.caps.ManagedMemory = false }, "no managed memory"},
		{"WSL", func(c *Config, d *fakeDriver) { d.caps.ConcurrentManagedAccess = false }, "WSL"},
		{"no room for an arena", func(c *Config, d *fakeDriver) { c.ManagedLimitBytes = mib }, "PENSTOCK_MANAGED_LIMIT"},
	} {
		config, d := defaults(), newDriver(1<<30)
		c.change(&config, d)
		if _, err := New(config, d, newHook(), zap.NewNop()); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", c.name, err, c.want)
		}
	}
}

func TestRouting(t *testing.T) {
	r := newRig(t, defaults())
	for _, c := range []struct {
		bytes  int64
		tensor bool
	}{{1, false}, {um.SmallBytes - 1, false}, {um.SmallBytes, true}, {5 * mib, true}} {
		p := r.malloc(c.bytes, 0)
		if got := r.paged().runtime.Owns(p); got != c.tensor {
			t.Errorf("%d bytes: in the arena %t, want %t", c.bytes, got, c.tensor)
		}
		r.must(r.l.RecordStream(p, 0x5000))
		if s := r.l.Stats(); s.AllocatedBytes != c.bytes || s.AllocationsLive != 1 {
			t.Errorf("%d bytes: %d allocated, %d live", c.bytes, s.AllocatedBytes, s.AllocationsLive)
		}
		r.must(r.l.Free(p))
	}
	for _, n := range []int64{0, -5} {
		if _, err := r.l.Malloc(n, 0); err == nil {
			t.Errorf("Malloc(%d) succeeds", n)
		}
	}
	if err := r.l.Free(0x123); err == nil {
		t.Error("a free of something else succeeds")
	}
	r.must(r.l.Close())
	r.must(r.l.Close())
}

// TestOverflow: without a budget plain memory serves until the card is full.
func TestOverflow(t *testing.T) {
	c := defaults()
	c.BudgetBytes = 0
	r := newRig(t, c)
	var plain []cuda.Ptr
	for len(plain) < 100 {
		p := r.malloc(32*mib, 0)
		if r.paged().opened.Load() {
			if !r.paged().runtime.Owns(p) {
				t.Error("the allocation that found the card full is not in the arena")
			}
			break
		}
		plain = append(plain, p)
	}
	if want := (1<<30 - reserveBytes) / (32 * mib); len(plain) != want {
		t.Fatalf("%d allocations of 32 MiB fitted, want %d: all but the reserve", len(plain), want)
	}
	if s := r.l.Stats(); s.Retries == 0 || s.Engine != "managed" || s.OOMs != 0 {
		t.Errorf("%+v", s)
	}
	if p := r.malloc(2*mib, 0); !r.paged().runtime.Owns(p) {
		t.Error("an allocation after the overflow is plain")
	}
	for _, p := range plain { // segments go back as they empty: they are room for tensors
		r.must(r.l.Free(p))
	}
	if _, _, used := r.d.next, r.d.total, r.d.used; used != 0 {
		t.Errorf("%d bytes of plain memory kept after everything in it was freed", used)
	}
	r.must(r.l.Close())
}

func TestPlainOnly(t *testing.T) {
	c := defaults()
	c.PlainOnly = true
	r := newRig(t, c)
	p := r.malloc(40*mib, 0)
	if _, err := r.l.Malloc(40*mib, 0); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("above the budget: %v", err)
	}
	if s := r.l.Stats(); s.Engine != "plain" || s.OOMs != 1 || s.ResidentBytes != 40*mib {
		t.Errorf("%+v", s)
	}
	r.must(r.l.Free(p))
	r.l.EmptyCache()
	if r.d.used != 0 {
		t.Errorf("%d bytes kept by an empty cache", r.d.used)
	}
}

// TestLargerThanAnyMemory asks for sizes that overflow when they are rounded up.
func TestLargerThanAnyMemory(t *testing.T) {
	c := defaults()
	c.BudgetBytes = 0
	r := newRig(t, c)
	r.malloc(mib, 0) // leaves a segment that has room
	for _, bytes := range []int64{math.MaxInt64, math.MaxInt64 - mib, 1<<47 + 1} {
		if p, err := r.l.Malloc(bytes, 0); !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%d bytes: %#x, %v", bytes, uint64(p), err)
		}
	}
	r.malloc(mib, 0)
}

func TestOutOfMemory(t *testing.T) {
	r := newRig(t, defaults())
	for range 16 {
		r.malloc(8*mib, 0)
	}
	_, err := r.l.Malloc(8*mib, 0)
	if !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "device budget") || !strings.Contains(err.Error(), "host budget") {
		t.Errorf("both budgets spent: %v", err)
	}
	if s := r.l.Stats(); s.OOMs != 1 || s.Allocations != 16 {
		t.Errorf("%d out of memory, %d allocations", s.OOMs, s.Allocations)
	}
}

// TestWaitsForReuse: memory that is dead but still used by queued work is waited for.
func TestWaitsForReuse(t *testing.T) {
	c := defaults()
	c.ManagedLimitBytes = c.BudgetBytes + c.HostBudgetBytes // no more address space than that
	r := newRig(t, c)
	var p [16]cuda.Ptr
	for i := range p {
		p[i] = r.malloc(8*mib, 0)
	}
	r.must(r.l.RecordStream(p[3], 0x5000))
	r.h.launch(0, p[3])
	r.h.launch(1, p[3])
	r.must(r.l.Free(p[3]))
	seq, _ := r.h.launch(1) // only a later operation shows that the stream has passed everything before
	time.AfterFunc(20*time.Millisecond, func() { r.h.finish(0, seq); r.h.finish(1, seq) })
	if q := r.malloc(8*mib, 0); q != p[3] {
		t.Errorf("at %#x, want the only free place, %#x", uint64(q), uint64(p[3]))
	}
}

// TestWaitsForDiscard: so is memory that a worker is letting go of, though no queued work uses it.
func TestWaitsForDiscard(t *testing.T) {
	c := defaults()
	c.ManagedLimitBytes = c.BudgetBytes + c.HostBudgetBytes
	r := newRig(t, c)
	r.holdBack()
	var p [16]cuda.Ptr
	for i := range p {
		p[i] = r.malloc(8*mib, 0)
	}
	seq, _ := r.h.launch(0, p[:8]...)
	r.eventually("the budget is full", func() bool { return r.h.gate(0) >= seq })
	r.h.finish(0, seq)
	block := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(block) })
	t.Cleanup(unblock) // before the engine is closed
	r.d.mu.Lock()
	r.d.block = block
	r.d.mu.Unlock()
	r.must(r.l.Free(p[3]))
	r.eventually("the engine hears of that", func() bool { // before the next operation, which shows that the stream has passed everything before
		r.l.mu.Lock()
		defer r.l.mu.Unlock()
		r.l.drain()
		return r.l.tensors.LiveBytes() == 15*8*mib
	})
	seq, _ = r.h.launch(0, p[0])
	r.h.finish(0, seq)
	seq, _ = r.h.launch(0, p[8]) // for which the dead ones make room
	r.eventually("a worker lets go of it", func() bool {
		r.d.mu.Lock()
		defer r.d.mu.Unlock()
		return r.d.discarded > 0
	})
	r.h.finish(0, seq)
	r.eventually("nothing is queued", func() bool { return r.look() == 0 })
	time.AfterFunc(5*idleWait, unblock)
	if q := r.malloc(8*mib, 0); q != p[3] {
		t.Errorf("at %#x, want the only free place, %#x", uint64(q), uint64(p[3]))
	}
}

// TestWaitsLongForReuse: dead memory is waited for as long as work runs that was queued before, of which some is not
// reported unless streams are asked; when the context has ended not.
func TestWaitsLongForReuse(t *testing.T) {
	for _, ends := range []bool{false, true} {
		c := defaults()
		c.ManagedLimitBytes = c.BudgetBytes + c.HostBudgetBytes
		r := newRig(t, c)
		var p [16]cuda.Ptr
		for i := range p {
			p[i] = r.malloc(8*mib, 0)
		}
		r.h.launch(0, p[3])
		r.must(r.l.Free(p[3]))
		seq, _ := r.h.launch(0)
		asked := make(chan struct{})
		r.h.mu.Lock()
		r.h.asked = asked
		r.h.mu.Unlock()
		go func() {
			<-asked
			time.Sleep(300 * time.Millisecond) // without any progress
			if !ends {
				r.h.finish(0, seq)
				return
			}
			r.d.mu.Lock()
			defer r.d.mu.Unlock()
			r.d.ended = cuda.NewError(700, "cuMemGetInfo")
		}()
		q := r.malloc(8*mib, 0x5000) // in plain memory at last
		if !ends && q != p[3] || ends && q == p[3] {
			t.Errorf("at %#x; want the only free place, %#x, unless the context ends (%v)", uint64(q), uint64(p[3]), ends)
		}
	}
}

// TestReservedAfterEmptyCache: what was freed a moment ago, which the engine may not have heard of, is
// not reserved any more.
func TestReservedAfterEmptyCache(t *testing.T) {
	r := newRig(t, defaults())
	kept := r.malloc(8*mib, 0)
	want := r.l.Stats().ReservedBytes
	for range 50 {
		p := r.malloc(8*mib, 0)
		r.h.launch(0, kept, p)
		r.must(r.l.Free(p))
		r.l.EmptyCache()
		if n := r.l.reservedBytes(); n != want {
			t.Fatalf("%d bytes are reserved, want %d", n, want)
		}
	}
}

func TestSetFraction(t *testing.T) {
	r := newRig(t, defaults())
	for _, f := range []float64{0, -1, 1.01} {
		if err := r.l.SetFraction(f); err == nil || !strings.Contains(err.Error(), "fraction") {
			t.Errorf("fraction %v: %v", f, err)
		}
	}
	for _, c := range []struct {
		fraction float64
		want     int64
	}{{1, 64 * mib}, {0.5, 64 * mib}, {0.0001, minBudgetBytes}} {
		r.must(r.l.SetFraction(c.fraction))
		if got := r.l.Stats().BudgetBytes; got != c.want {
			t.Errorf("fraction %v: budget %d, want %d", c.fraction, got, c.want)
		}
	}
	c := defaults()
	c.BudgetBytes, c.PlainOnly = 0, true
	r = newRig(t, c)
	r.must(r.l.SetFraction(0.25))
	if got := r.l.Stats().BudgetBytes; got != 256*mib {
		t.Errorf("a quarter of 1 GiB is %d", got)
	}
	if _, err := r.l.Malloc(257*mib, 0); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("above the fraction: %v", err)
	}
}

func TestPrivatePools(t *testing.T) {
	r := newRig(t, defaults())
	a, b := PoolID{1, 2}, PoolID{1, 3}
	r.must(r.l.BeginPool(a))
	if err := r.l.BeginPool(b); err == nil {
		t.Error("pools can be nested")
	}
	p := r.malloc(8*mib, 0)
	if r.paged().runtime.Owns(p) {
		t.Error("an allocation in a private pool is a tensor")
	}
	if err := r.l.EndPool(b); err == nil || r.l.active.Load() == nil {
		t.Errorf("a pool is ended by the end of another: %v", err)
	}
	r.must(r.l.EndPool(a))
	if q := r.malloc(8*mib, 0); !r.paged().runtime.Owns(q) {
		t.Error("an allocation after the pool is not a tensor")
	}
	r.must(r.l.Free(p))
	// The pool's memory is its own: nothing else is placed there, and its next user is.
	r.l.EmptyCache()
	r.must(r.l.BeginPool(a))
	if q := r.malloc(8*mib, 0); q != p {
		t.Errorf("the pool gave %#x, want its own %#x", uint64(q), uint64(p))
	}
	r.must(r.l.EndPool(a))
	r.must(r.l.ReleasePool(a))
	r.must(r.l.Free(p))
	r.must(r.l.ReleasePool(a))
	if err := r.l.ReleasePool(a); err == nil {
		t.Error("a pool that is gone is released again")
	}
	if r.d.used != 0 {
		t.Errorf("%d bytes of plain memory kept after the pool was released", r.d.used)
	}
}

// TestGate: a launch that names an absent tensor waits until it is on the device.
func TestGate(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	if r.h.every != progressEvery || r.h.mode != hook.Gated {
		t.Fatalf("mode %v, progress every %d", r.h.mode, r.h.every)
	}
	p := r.malloc(8*mib, 0)
	seq, gated := r.h.launch(1, p)
	if gated { // else it was brought in before, as fresh memory may be
		r.eventually("the gate opens", func() bool { return r.h.gate(1) >= seq })
	}
	if !r.h.isResident(p) || !r.d.holds(cuda.Range{Base: p, Bytes: 8 * mib}) {
		t.Error("the gate opened with the tensor absent")
	}
	r.h.finish(1, seq)
	r.must(r.l.Close())
}

// TestOversubscribed goes round three times the budget with gates.
func TestOversubscribed(t *testing.T) {
	c := defaults()
	c.HostBudgetBytes = 256 * mib
	for _, policy := range []um.Policy{um.Naive, um.LRU, um.DeepUM, um.Penstock} {
		t.Run(policy.Name, func(t *testing.T) {
			c.Policy = policy
			r := newRig(t, c)
			r.holdBack()
			var p [24]cuda.Ptr
			for i := range p {
				p[i] = r.malloc(8*mib, 0)
			}
			for range 3 {
				for i := range p {
					seq, gated := r.h.launch(0, p[i])
					if gated {
						r.eventually("the gate opens", func() bool { return r.h.gate(0) >= seq })
					}
					// One that is not held back may find that its tensor has just begun to leave:
					// the kernel then faults for it.
					if gated && policy.Fetch != um.FetchOnFault && !r.d.holds(cuda.Range{Base: p[i], Bytes: 8 * mib}) {
						t.Fatalf("the gate of launch %d is open and its tensor is not on the device: %+v", seq, r.l.Stats())
					}
					r.h.finish(0, seq)
				}
			}
			s := r.l.Stats()
			if s.Evictions == 0 || s.ResidentPeakBytes > 64*mib || s.LateLaunches > 0 || s.Failure != "" {
				t.Errorf("%d evictions, %d bytes at most, %d late, failure %q", s.Evictions, s.ResidentPeakBytes, s.LateLaunches, s.Failure)
			}
			if _, out := r.d.moves(); out == 0 || r.d.peak() > 64*mib/managed.BlockBytes {
				t.Errorf("%d moves out, %d blocks on the device at most", out, r.d.peak())
			}
			for _, x := range p {
				r.must(r.l.Free(x))
			}
			r.must(r.l.Close())
		})
	}
}

// TestFewEvents: a few launches are enough to be acted upon, also when they were
// read by a thread of the job. (Plans are made anew after some events only.)
func TestFewEvents(t *testing.T) {
	c := defaults()
	c.HostBudgetBytes, c.Policy = 256*mib, um.LRU
	r := newRig(t, c)
	var p [24]cuda.Ptr
	for i := range p {
		p[i] = r.malloc(8*mib, 0)
	}
	for range 2 {
		for i := range p {
			seq, _ := r.h.launch(0, p[i])
			for range 17 {
				r.h.launch(0)
			}
			r.l.Stats() // reads the ring
			r.eventually("the tensor is brought in", func() bool { return r.d.holds(cuda.Range{Base: p[i], Bytes: 8 * mib}) })
			r.h.finish(0, seq)
		}
	}
	r.must(r.l.Close())
}

// TestFailure: a move that fails opens every gate and ends holding back; the job goes on,
// and finished work is still told from unfinished.
func TestFailure(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	r.d.mu.Lock()
	r.d.moveError = errors.New("the bus is on fire")
	r.d.mu.Unlock()
	p := r.malloc(8*mib, 0)
	seq, _ := r.h.launch(1, p)
	r.eventually("the gates are open", func() bool { return r.h.gate(0) > seq && r.h.gate(1) > seq })
	if m := r.h.modes[len(r.h.modes)-1]; m != hook.Gated { // the only one in which streams report how far they are
		t.Errorf("the hook is left in mode %v", m)
	}
	last, gated := r.h.launch(0, p)
	if gated {
		t.Error("a launch is held back by an engine that has failed")
	}
	queued := func() int {
		r.l.mu.Lock()
		defer r.l.mu.Unlock()
		return r.paged().runtime.Queued()
	}
	r.eventually("both launches are read", func() bool { return queued() == 2 })
	r.h.finish(1, seq)
	r.eventually("one stream's launch is finished, and only that one's", func() bool { return queued() == 1 })
	r.h.finish(0, last)
	r.eventually("the other's is", func() bool { return queued() == 0 })
	s := r.l.Stats()
	if !strings.Contains(s.Failure, "the bus is on fire") || !strings.Contains(s.Verdict(), "failure of the engine") {
		t.Errorf("failure %q\n%s", s.Failure, s.Verdict())
	}
	r.malloc(8*mib, 0)
	r.malloc(8, 0)
	r.must(r.l.Free(p))
	if err := r.l.Close(); err == nil || !strings.Contains(err.Error(), "the bus is on fire") {
		t.Errorf("Close: %v, want the failure", err)
	}
}

// TestGiveUp: after an error of its own the engine holds nothing back any more, also when nobody can have its lock.
func TestGiveUp(t *testing.T) {
	for _, locked := range []bool{false, true} {
		r := newRig(t, defaults())
		if locked {
			r.l.mu.Lock()
		}
		began := time.Now()
		r.l.GiveUp(errors.New("internal error"))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if locked {
			r.l.mu.Unlock()
		} else if r.l.Stats().Failure != "internal error" {
			t.Errorf("%+v", r.l.Stats())
		}
	}
}

// TestWatchdog: a move that does not end gives the engine up.
func TestWatchdog(t *testing.T) {
	if watchdogPatience < 10*process.MostBetween {
		t.Error("the watchdog cannot tell waiting from a stopped process")
	}
	r := newRig(t, defaults())
	r.holdBack()
	block := make(chan struct{})
	r.d.mu.Lock()
	r.d.block = block
	r.d.mu.Unlock()
	p := r.malloc(8*mib, 0) // no block of it can come
	seq, gated := r.h.launch(0, p)
	if !gated {
		t.Fatal("the launch is not held back")
	}
	r.eventually("the watchdog bites", func() bool {
		r.l.mu.Lock()
		defer r.l.mu.Unlock()
		if r.paged().runtime.Held() { // as if so much time had passed
			r.l.vain.Duration = 2 * watchdogPatience
		}
		return r.l.failed != nil
	})
	if r.h.gate(0) < seq {
		t.Error("the gate is still closed")
	}
	close(block)
	if err := r.l.Close(); err == nil || !strings.Contains(err.Error(), "held back") {
		t.Errorf("Close: %v", err)
	}
}

// TestWatchdogWaitsForWork: while an operation runs that came before the launch that is held back, the engine is not given
// up, as long as that may take: the driver may make a move wait for it.
func TestWatchdogWaitsForWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream int
		flags  int
	}{{"on its stream", 0, 0}, {"on another", 1, hook.FlagProgress}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, defaults())
			r.holdBack()
			block := make(chan struct{})
			defer close(block)
			r.d.mu.Lock()
			r.d.block = block
			r.d.mu.Unlock()
			p := r.malloc(8*mib, 0)
			long := r.h.launchFlagged(c.stream, c.flags)
			r.h.launch(0, p)
			wait := func() (looks int, failed error) {
				r.l.mu.Lock()
				defer r.l.mu.Unlock()
				if r.paged().runtime.Held() && r.l.vain.Duration < watchdogPatience { // as if so much time had passed
					r.l.idle.Duration, r.l.vain.Duration = 2*watchdogPatience, 2*watchdogPatience
					looks = 1
				}
				return looks, r.l.failed
			}
			for looks := 0; looks < 20; time.Sleep(time.Millisecond) {
				n, failed := wait()
				if failed != nil {
					t.Fatalf("given up while work runs: %v", failed)
				}
				looks += n
			}
			r.h.finish(c.stream, long)
			r.eventually("the watchdog bites", func() bool { _, failed := wait(); return failed != nil })
		})
	}
}

// TestOversize: a launch that names more than the budget is let go, and named.
func TestOversize(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	a, b := r.malloc(48*mib, 0), r.malloc(48*mib, 0)
	seq, _ := r.h.launch(0, a, b)
	r.eventually("the launch is let go", func() bool { return r.h.gate(0) >= seq })
	s := r.l.Stats()
	if s.LateLaunches != 1 || s.OversizeLaunches != 1 || s.OversizeName != "kernel" || s.OversizeBytes < 96*mib {
		t.Errorf("%d late, %d oversize: %q of %d bytes", s.LateLaunches, s.OversizeLaunches, s.OversizeName, s.OversizeBytes)
	}
}

func TestFencesOfPlainMemory(t *testing.T) {
	r := newRig(t, defaults())
	p := r.malloc(100_000, 0)
	r.must(r.l.RecordStream(p, 0x5000))
	r.must(r.l.Free(p))
	if q := r.malloc(100_000, 0); q == p {
		t.Error("reused before the other stream has passed")
	}
	r.d.reachEvents()
	if q := r.malloc(100_000, 0); q != p {
		t.Errorf("at %#x after the other stream has passed, want %#x", uint64(q), uint64(p))
	}
}

// TestFencesOfCapturingStreams: an event that is captured says nothing. Memory that a stream uses which captures is
// reused once it has passed what was queued until the capture had ended.
func TestFencesOfCapturingStreams(t *testing.T) {
	for _, unseen := range []bool{false, true} {
		r := newRig(t, defaults())
		p := r.malloc(100_000, 0)
		r.must(r.l.RecordStream(p, 0x5000))
		r.d.capture(0x5000, unseen)
		r.must(r.l.Free(p))
		r.d.reachEvents()
		for range 3 {
			if q := r.malloc(100_000, 0); q == p {
				t.Fatal("reused while the other stream captures")
			}
		}
		r.d.capture(0, false)
		if q := r.malloc(100_000, 0); q == p {
			t.Fatal("reused before the other stream has passed")
		}
		r.d.reachEvents()
		if q := r.malloc(100_000, 0); q != p {
			t.Errorf("at %#x after the other stream has passed, want %#x", uint64(q), uint64(p))
		}
	}
}

// recording is a Sink.
type recording struct {
	log      []string
	unseen   string
	progress uint64
	timed    []timing
}

func (s *recording) Alloc(p cuda.Ptr, bytes int64, stream uint64) {
	s.log = append(s.log, "alloc")
}
func (s *recording) Free(cuda.Ptr) { s.log = append(s.log, "free") }
func (s *recording) Record(rec *hook.Record, stream uint64, name func(uint32) string, address func(uint32) (cuda.Ptr, bool)) {
	s.log = append(s.log, name(rec.ID))
	for _, slot := range rec.Slots {
		if _, ok := address(slot); ok {
			s.log = append(s.log, "names a tensor")
		}
	}
}
func (s *recording) Move([]cuda.Range, um.Direction, time.Duration, time.Duration) {}
func (s *recording) Progress(stream, seq uint64)                                   { s.progress = seq }
func (s *recording) Faults([]faults.Event, faults.Lost)                            {}
func (s *recording) Timing(seq uint64, took time.Duration) {
	s.timed = append(s.timed, timing{seq: seq, took: took})
}
func (s *recording) FaultSource(why string) { s.unseen = why }
func (s *recording) DriverSums(faults.Sums) {}

// TestSink receives what happens in the order of happening.
func TestSink(t *testing.T) {
	s := &recording{}
	c := defaults()
	c.Sink = s
	r := newRig(t, c)
	p := r.malloc(8*mib, 0)
	r.h.launch(0, p)
	r.must(r.l.Free(p))
	r.must(r.l.Close())
	if got := strings.Join(s.log, ", "); got != "alloc, kernel, names a tensor, free" {
		t.Errorf("recorded: %s", got)
	}
	if !strings.Contains(s.unseen, "GPU fault events unavailable") {
		t.Errorf("the recording says that faults are missing because %q", s.unseen)
	}
}

// TestHearForTheSink: the sink knows of a launch when it has asked, however busy the loop is, and
// is told that it does not know of one that is not in the ring yet.
func TestHearForTheSink(t *testing.T) {
	c := defaults()
	c.Sink = &recording{}
	r := newRig(t, c)
	for range 200 {
		r.h.launch(0)
		if !r.l.Hear() {
			t.Fatal("not all is heard of")
		}
	}
	r.h.mu.Lock()
	r.h.head++
	r.h.writing++
	r.h.mu.Unlock()
	if r.l.Hear() {
		t.Error("an operation that is not written yet is heard of")
	}
	r.must(r.l.Close())
}

// TestPlainRecording: in plain memory, where nothing can fault, the hook is off although there
// is a sink, also after a pause.
func TestPlainRecording(t *testing.T) {
	c := defaults()
	c.BudgetBytes, c.Sink = 0, &recording{}
	r := newRig(t, c)
	r.l.Record(false)
	r.l.Record(true)
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if r.h.mode != hook.Off {
		t.Errorf("the hook is in mode %d", r.h.mode)
	}
}

// TestPausedAsksSeldom: progress is asked for closely only for a recording of faults.
func TestPausedAsksSeldom(t *testing.T) {
	c := defaults()
	c.Sink = &recording{}
	r := newRig(t, c)
	r.l.mu.Lock()
	r.h.SetProgressEvery(progressWhileFaulting)
	r.paged().faults.lastAt = time.Now()
	r.l.mu.Unlock()
	r.l.Record(false)
	r.l.mu.Lock()
	every := r.h.every
	r.l.mu.Unlock()
	if every != progressEvery {
		t.Errorf("every %d operations while paused", every)
	}
	r.must(r.l.Close())
}

func TestStatsJSON(t *testing.T) {
	r := newRig(t, defaults())
	r.malloc(8*mib, 0)
	text, err := json.Marshal(r.l.Stats())
	r.must(err)
	var m map[string]any
	r.must(json.Unmarshal(text, &m))
	for key, want := range map[string]any{
		"allocated_bytes": 8.0 * mib, "allocations": 1.0, "faults": -1.0, "prediction_hit_rate": -1.0,
		"engine": "managed", "policy": "penstock", "budget_bytes": 64.0 * mib, "hooked": true,
		"device_free_bytes": 56.0 * mib, "device_total_bytes": 1024.0 * mib,
	} {
		if m[key] != want {
			t.Errorf("%s is %v, want %v", key, m[key], want)
		}
	}
	r.l.ResetPeaks()
	if s := r.l.Stats(); s.AllocatedPeakBytes != 8*mib {
		t.Errorf("peak after a reset: %d", s.AllocatedPeakBytes)
	}
}

func TestVerdict(t *testing.T) {
	managed := Stats{Part: pagedPart{}, Engine: "managed", Hooked: true, Faults: unavailable, PredictionHitRate: unavailable}
	for _, c := range []struct {
		name   string
		change func(*Stats)
		want   string
	}{
		{"fits", func(s *Stats) { s.Engine, s.Part = "plain", nil }, "nothing was moved"},
		{"nothing left", func(s *Stats) {}, "nothing had to leave"},
		{"failure", func(s *Stats) { s.Failure = "no luck" }, "failure of the engine: no luck"},
		{"oversize", func(s *Stats) { s.D2HBytes, s.OversizeLaunches, s.OversizeName, s.OversizeBytes = 1, 1, "gemm", 3<<30 }, "gemm touches 3 GiB"},
		{"out", func(s *Stats) { s.D2HBytes, s.StallSeconds, s.OutSeconds = 1, 1, 2 }, "limited by eviction"},
		{"in", func(s *Stats) { s.D2HBytes, s.StallSeconds, s.InSeconds = 1, 1, 2 }, "limited by prefetch"},
		{"no hook", func(s *Stats) { s.Hooked = false }, "no launch hook"},
		{"faults unseen", func(s *Stats) {}, "faults: unavailable"},
		{"events lost", func(s *Stats) { s.Faults, s.DroppedEvents = 5, 2 }, "2 events were lost"},
		{"late", func(s *Stats) { s.LateLaunches = 4 }, "4 launches went out with memory missing"},
		{"over the budget", func(s *Stats) { s.BudgetBytes, s.ResidentPeakBytes = 3<<30, 3<<30+8<<20 }, "8 MiB more than the budget"},
		{"ring full", func(s *Stats) { s.DroppedRecords = 4 }, "4 launch records were lost"},
		{"opaque", func(s *Stats) { s.OpaqueLaunches = 4 }, "4 launches had parameters"},
		{"unhooked", func(s *Stats) { s.UnhookedSymbols = 4 }, "4 driver entry points"},
	} {
		s := managed
		c.change(&s)
		text := s.Verdict()
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: %q is not in\n%s", c.name, c.want, text)
		}
		for label, speaker := range map[string]string{"": "penstock: ", "rank1": "penstock[rank1]: "} {
			s.Process = label
			for line := range strings.Lines(s.Verdict()) {
				if !strings.HasPrefix(line, speaker) {
					t.Errorf("%s: a line without its source: %q, want %q", c.name, line, speaker)
				}
			}
		}
	}
}

func TestExplicitVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Stats, *ExplicitStats)
		want   string
	}{
		{"nothing moved", func(s *Stats, x *ExplicitStats) { s.H2DBytes, s.D2HBytes = 0, 0 }, "everything fitted on the device"},
		{"hidden", func(s *Stats, x *ExplicitStats) {}, "every move was hidden"},
		{"rates", func(s *Stats, x *ExplicitStats) { x.InGBPerSecond, x.OutGBPerSecond = 47, 46 }, "3 GiB to the device (47.0 GB/s while copying) and 4 GiB to the host (46.0 GB/s)"},
		{"oversize", func(s *Stats, x *ExplicitStats) {
			s.OversizeLaunches, s.OversizeName, s.OversizeBytes = 1, "gemm", 3<<30
		}, "gemm touches 3 GiB"},
		{"space", func(s *Stats, x *ExplicitStats) { x.SpaceStallSeconds, x.FetchStallSeconds = 2, 1 }, "limited by eviction to the host"},
		{"fetch", func(s *Stats, x *ExplicitStats) { x.SpaceStallSeconds, x.FetchStallSeconds = 1, 2 }, "limited by fetching"},
		{"map", func(s *Stats, x *ExplicitStats) { x.MapStallSeconds = 1 }, "limited by mapping"},
		{"grants", func(s *Stats, x *ExplicitStats) { x.MapStallSeconds, x.GrantStallSeconds = 1, 2 }, "limited by launches that do not say"},
		{"pinning", func(s *Stats, x *ExplicitStats) { x.SpaceStallSeconds, x.HostWaitSeconds = 2, 2 }, "limited by pinning"},
		{"failure", func(s *Stats, x *ExplicitStats) { s.Failure = "no luck" }, "failure of the engine: no luck"},
		{"made again", func(s *Stats, x *ExplicitStats) {
			x.Makes, x.LevelSeconds = "all", map[string]float64{"nothing": 0.449, "plain": 0.3266, "all": 0.253}
		}, "tried out (nothing 0.449 s, plain 0.327 s, all 0.253 s an iteration): all that can be is\n"},
		{"oracle", func(s *Stats, x *ExplicitStats) {
			x.Bound = bound.Bound{IterationSeconds: 0.12, Seconds: 0.0996, Share: 0.83, Bus: "of h200"}
		}, "an iteration took 0.120 s: 83 % of the speed of an oracle"},
		{"oracle with CPU", func(s *Stats, x *ExplicitStats) {
			x.FetchStallSeconds = 1
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.06, Share: 0.6, LaunchCostSeconds: 20e-6, CPUSeconds: 0.08, WithCPUSeconds: 0.085, WithCPUShare: 0.85}
		}, "the job's own CPU takes 20.0 us from launch to launch, 0.080 s an iteration: 85 % of the speed of an oracle that waits for it (0.085 s)\n"},
		{"limited by the CPU", func(s *Stats, x *ExplicitStats) {
			x.FetchStallSeconds = 1
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.06, Share: 0.6, LaunchCostSeconds: 20e-6, CPUSeconds: 0.08, WithCPUSeconds: 0.085, WithCPUShare: 0.85}
		}, "\npenstock: limited by the job's own CPU"},
		{"in memory", func(s *Stats, x *ExplicitStats) {
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.06, Share: 0.6, TimedLaunches: 900, TimedShare: 0.99, TimedError: 0.004, GPUSeconds: 0.05, CPUSeconds: 0.08, InMemorySeconds: 0.08, InMemoryShare: 0.8}
		}, "estimated from 900 launches that were timed without their waits (their kinds have 99 % of the GPU's time, give or take 0.4 %): 80 % of the speed in memory, where an iteration takes the GPU 0.050 s and the CPU 0.080 s"},
		{"a defect", func(s *Stats, x *ExplicitStats) {
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.11, Share: 1.1, Defects: 1}
		}, "110 % of the speed of an oracle"},
		{"CPU beside the bus", func(s *Stats, x *ExplicitStats) {
			x.FetchStallSeconds = 1
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.085, Share: 0.85, LaunchCostSeconds: 20e-6, CPUSeconds: 0.08, WithCPUSeconds: 0.09, WithCPUShare: 0.9}
		}, "limited by fetching"},
		{"no oracle", func(s *Stats, x *ExplicitStats) { x.Why = "too much" }, "not compared with an oracle: too much"},
		{"chosen", func(s *Stats, x *ExplicitStats) { s.EngineWhy = "it can" }, "explicit engine chosen: it can"},
		{"in place", func(s *Stats, x *ExplicitStats) { x.InPlaceBytes = 1 << 30 }, "launches used 1 GiB in host memory"},
		{"unresolved", func(s *Stats, x *ExplicitStats) { x.Unresolved = 200 }, "warning: 10.0 % of the launches have parameters that cannot be read"},
		{"chasing", func(s *Stats, x *ExplicitStats) { x.Chasers = 100 }, "warning: 5.0 % of the launches find tensors through addresses"},
		{"foreach", func(s *Stats, x *ExplicitStats) { x.WaitedLaunches, x.WaitedForeach = 4000, 1200 }, "warning: 30 % of the launches that waited work on many tensors"},
	} {
		x := &ExplicitStats{}
		s := Stats{Part: swapPart{}, Engine: "explicit", Hooked: true, Faults: unavailable, PredictionHitRate: unavailable, H2DBytes: 3 << 30, D2HBytes: 4 << 30, Launches: 2000, Explicit: x}
		c.change(&s, x)
		if text := s.Verdict(); !strings.Contains(text, c.want) || strings.Count(text, "\n") > 10 {
			t.Errorf("%s: %q is not in\n%s", c.name, c.want, text)
		}
	}
	few := Stats{Part: swapPart{}, Engine: "explicit", Hooked: true, Launches: 2000, Explicit: &ExplicitStats{Unresolved: 20, Chasers: 20, WaitedLaunches: 8000, WaitedForeach: 1900}}
	if text := few.Verdict(); strings.Contains(text, "warning") {
		t.Errorf("one launch of a hundred is no reason to warn:\n%s", text)
	}
}

// TestChooseEngine: where the choice is open the explicit engine is taken if it can run.
func TestChooseEngine(t *testing.T) {
	strict := struct{ StrictHook }{} // only its kind is looked at
	able := cuda.Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true, VirtualMemory: true, StreamMemOps: true, FunctionParamInfo: true, Kernels: true}
	with := func(change func(*cuda.Capabilities)) cuda.Capabilities { c := able; change(&c); return c }
	for _, c := range []struct {
		name   string
		config Config
		caps   cuda.Capabilities
		hook   Hook
		want   Engine
		why    string
		err    string
	}{
		{"managed asked for", Config{Engine: Managed}, able, strict, Managed, "", ""},
		{"explicit asked for", Config{Engine: Explicit}, able, strict, Explicit, "", ""},
		{"open", Config{Engine: Auto}, able, strict, Explicit, "has all", ""},
		{"several processes", Config{Engine: Auto, Label: "rank1", LocalProcesses: 2}, able, strict, Explicit, "has all", ""},
		{"so many that nothing is left for one", Config{Engine: Auto, LocalProcesses: 1 << 30}, able, strict, Managed, "of 1073741824 processes", ""},
		{"no memory moves", Config{Engine: Auto, PlainOnly: true}, able, strict, Managed, "", ""},
		{"no hook", Config{Engine: Auto}, able, nil, Managed, "hook is not loaded", ""},
		{"a hook without strict mode", Config{Engine: Auto}, able, newHook(), Managed, "hook is not loaded", ""},
		{"missed routes", Config{Engine: Auto, MissedRoutes: []string{"dlsym"}}, able, strict, Managed, "dlsym", ""},
		{"asked for past missed routes", Config{Engine: Explicit, MissedRoutes: []string{"dlsym"}}, able, strict, 0, "", "by way of dlsym pass the hook by"},
		{"no parameters", Config{Engine: Auto}, with(func(c *cuda.Capabilities) { c.FunctionParamInfo = false }), strict, Managed, "cuFuncGetParamInfo", ""},
		{"WSL", Config{Engine: Auto}, with(func(c *cuda.Capabilities) { c.ConcurrentManagedAccess = false }), strict, Explicit, "has all", ""},
		{"neither", Config{Engine: Auto}, with(func(c *cuda.Capabilities) { c.ManagedMemory, c.VirtualMemory = false, false }), strict, 0, "", "neither engine"},
		{"asked for and impossible", Config{Engine: Explicit}, with(func(c *cuda.Capabilities) { c.VirtualMemory = false }), strict, 0, "", "use --engine managed"},
	} {
		e, why, err := c.config.choose(c.caps, c.hook, 32<<30)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want an error with %q", c.name, err, c.err)
			}
		case err != nil || e != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == ""):
			t.Errorf("%s: %s because %q, %v; want %s because %q", c.name, e, why, err, c.want, c.why)
		}
	}
}
