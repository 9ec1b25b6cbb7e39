package live

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/swapped"
)

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config, *livetest.Driver)
		want   string
	}{
		{"negative", func(c *Config, d *livetest.Driver) { c.HostBudgetBytes = -1 }, "negative"},
		{"above the card", func(c *Config, d *livetest.Driver) { c.BudgetBytes = 2 << 30 }, "above the card"},
		{"too small", func(c *Config, d *livetest.Driver) { c.BudgetBytes = mib }, "too small"},
		{"no managed memory", func(c *Config, d *livetest.Driver) { d.Caps.ManagedMemory = false }, "no managed memory"},
		{"WSL", func(c *Config, d *livetest.Driver) { d.Caps.ConcurrentManagedAccess = false }, "WSL"},
		{"no room for an arena", func(c *Config, d *livetest.Driver) { c.ManagedLimitBytes = mib }, "PENSTOCK_MANAGED_LIMIT"},
	} {
		config, d := defaults(), livetest.NewDriver(1<<30)
		c.change(&config, d)
		if _, err := New(config, d, livetest.NewHook(), zap.NewNop()); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
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
		p := r.MallocOn(c.bytes, 0)
		if got := r.l.Engine.Owns(p); got != c.tensor {
			t.Errorf("%d bytes: in the arena %t, want %t", c.bytes, got, c.tensor)
		}
		r.Must(r.l.RecordStream(p, 0x5000))
		if s := r.l.Stats(); s.AllocatedBytes != c.bytes || s.AllocationsLive != 1 {
			t.Errorf("%d bytes: %d allocated, %d live", c.bytes, s.AllocatedBytes, s.AllocationsLive)
		}
		r.Must(r.l.Free(p))
	}
	for _, n := range []int64{0, -5} {
		if _, err := r.l.Malloc(n, 0); err == nil {
			t.Errorf("Malloc(%d) succeeds", n)
		}
	}
	if err := r.l.Free(0x123); err == nil {
		t.Error("a free of something else succeeds")
	}
	r.Must(r.l.Close())
	r.Must(r.l.Close())
}

// TestOverflow: without a budget plain memory serves until the card is full.
func TestOverflow(t *testing.T) {
	c := defaults()
	c.BudgetBytes = 0
	r := newRig(t, c)
	var plain []cuda.Ptr
	for len(plain) < 100 {
		p := r.MallocOn(32*mib, 0)
		if r.l.Engine.Serving() {
			if !r.l.Engine.Owns(p) {
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
	if p := r.MallocOn(2*mib, 0); !r.l.Engine.Owns(p) {
		t.Error("an allocation after the overflow is plain")
	}
	for _, p := range plain { // segments go back as they empty: they are room for tensors
		r.Must(r.l.Free(p))
	}
	if _, _, used := r.d.Next, r.d.Total, r.d.Used; used != 0 {
		t.Errorf("%d bytes of plain memory kept after everything in it was freed", used)
	}
	r.Must(r.l.Close())
}

func TestPlainOnly(t *testing.T) {
	c := defaults()
	c.PlainOnly = true
	r := newRig(t, c)
	p := r.MallocOn(40*mib, 0)
	if _, err := r.l.Malloc(40*mib, 0); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("above the budget: %v", err)
	}
	if s := r.l.Stats(); s.Engine != "plain" || s.OOMs != 1 || s.ResidentBytes != 40*mib {
		t.Errorf("%+v", s)
	}
	r.Must(r.l.Free(p))
	r.l.EmptyCache()
	if r.d.Used != 0 {
		t.Errorf("%d bytes kept by an empty cache", r.d.Used)
	}
}

// TestLargerThanAnyMemory asks for sizes that overflow when they are rounded up.
func TestLargerThanAnyMemory(t *testing.T) {
	c := defaults()
	c.BudgetBytes = 0
	r := newRig(t, c)
	r.MallocOn(mib, 0) // leaves a segment that has room
	for _, bytes := range []int64{math.MaxInt64, math.MaxInt64 - mib, 1<<47 + 1} {
		if p, err := r.l.Malloc(bytes, 0); !errors.Is(err, um.ErrOutOfMemory) {
			t.Errorf("%d bytes: %#x, %v", bytes, uint64(p), err)
		}
	}
	r.MallocOn(mib, 0)
}

func TestOutOfMemory(t *testing.T) {
	r := newRig(t, defaults())
	for range 16 {
		r.MallocOn(8*mib, 0)
	}
	_, err := r.l.Malloc(8*mib, 0)
	if !errors.Is(err, um.ErrOutOfMemory) || !strings.Contains(err.Error(), "device budget") || !strings.Contains(err.Error(), "host budget") {
		t.Errorf("both budgets spent: %v", err)
	}
	if s := r.l.Stats(); s.OOMs != 1 || s.Allocations != 16 {
		t.Errorf("%d out of memory, %d allocations", s.OOMs, s.Allocations)
	}
}

// TestReservedAfterEmptyCache: what was freed a moment ago, which the engine may not have heard of, is
// not reserved any more.
func TestReservedAfterEmptyCache(t *testing.T) {
	r := newRig(t, defaults())
	kept := r.MallocOn(8*mib, 0)
	want := r.l.Stats().ReservedBytes
	for range 50 {
		p := r.MallocOn(8*mib, 0)
		r.h.Queue(0, kept, p)
		r.Must(r.l.Free(p))
		r.l.EmptyCache()
		if n := r.l.ReservedBytes(); n != want {
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
		r.Must(r.l.SetFraction(c.fraction))
		if got := r.l.Stats().BudgetBytes; got != c.want {
			t.Errorf("fraction %v: budget %d, want %d", c.fraction, got, c.want)
		}
	}
	c := defaults()
	c.BudgetBytes, c.PlainOnly = 0, true
	r = newRig(t, c)
	r.Must(r.l.SetFraction(0.25))
	if got := r.l.Stats().BudgetBytes; got != 256*mib {
		t.Errorf("a quarter of 1 GiB is %d", got)
	}
	if _, err := r.l.Malloc(257*mib, 0); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("above the fraction: %v", err)
	}
}

func TestPrivatePools(t *testing.T) {
	r := newRig(t, defaults())
	a, b := PoolID{1, 2}, PoolID{1, 3}
	r.Must(r.l.BeginPool(a))
	if err := r.l.BeginPool(b); err == nil {
		t.Error("pools can be nested")
	}
	p := r.MallocOn(8*mib, 0)
	if r.l.Engine.Owns(p) {
		t.Error("an allocation in a private pool is a tensor")
	}
	if err := r.l.EndPool(b); err == nil || r.l.active.Load() == nil {
		t.Errorf("a pool is ended by the end of another: %v", err)
	}
	r.Must(r.l.EndPool(a))
	if q := r.MallocOn(8*mib, 0); !r.l.Engine.Owns(q) {
		t.Error("an allocation after the pool is not a tensor")
	}
	r.Must(r.l.Free(p))
	// The pool's memory is its own: nothing else is placed there, and its next user is.
	r.l.EmptyCache()
	r.Must(r.l.BeginPool(a))
	if q := r.MallocOn(8*mib, 0); q != p {
		t.Errorf("the pool gave %#x, want its own %#x", uint64(q), uint64(p))
	}
	r.Must(r.l.EndPool(a))
	r.Must(r.l.ReleasePool(a))
	r.Must(r.l.Free(p))
	r.Must(r.l.ReleasePool(a))
	if err := r.l.ReleasePool(a); err == nil {
		t.Error("a pool that is gone is released again")
	}
	if r.d.Used != 0 {
		t.Errorf("%d bytes of plain memory kept after the pool was released", r.d.Used)
	}
}

// TestSeveralPrivatePools: each allocation says which pool it comes from, and what a pool's graph writes is an allocation again.
func TestSeveralPrivatePools(t *testing.T) {
	r := newRig(t, defaults())
	a, b := PoolID{1, 2}, PoolID{1, 3}
	if _, err := r.l.MallocIn(a, 4096, 0); err == nil || r.l.PoolUsers(a) != 0 {
		t.Errorf("a pool that nobody made: %v, %d users", err, r.l.PoolUsers(a))
	}
	r.Must(r.l.RetainPool(a))
	r.Must(r.l.RetainPool(b))
	r.Must(r.l.RetainPool(b))
	if r.l.PoolUsers(a) != 1 || r.l.PoolUsers(b) != 2 {
		t.Errorf("%d and %d users", r.l.PoolUsers(a), r.l.PoolUsers(b))
	}
	in := func(id PoolID, bytes int64) cuda.Ptr {
		p, err := r.l.MallocIn(id, bytes, 0)
		r.Must(err)
		return p
	}
	small, large, other := in(a, 4096), in(a, 8*mib), in(b, 4096)
	if q := r.MallocOn(8*mib, 0); !r.l.Engine.Owns(q) {
		t.Error("an allocation outside of the pools is not a tensor")
	}
	want := []cuda.Range{{Base: small, Bytes: 4096}, {Base: large, Bytes: 8 * mib}}
	slices.SortFunc(want, func(x, y cuda.Range) int { return cmp.Compare(x.Base, y.Base) })
	if got := r.l.PoolBlocks(a); !slices.Equal(got, want) {
		t.Errorf("the pool has %v, not %v", got, want)
	}
	r.Must(r.l.Free(large))
	if err := r.l.RestoreIn(b, large, 8*mib); err == nil {
		t.Error("another pool's memory was given away")
	}
	if err := r.l.RestoreIn(a, small, 4096); err == nil {
		t.Error("what is in use was given away")
	}
	before := r.l.Stats().AllocationsLive
	r.Must(r.l.RestoreIn(a, large, 8*mib))
	if now := r.l.Stats().AllocationsLive; now != before+1 || len(r.l.PoolBlocks(a)) != 2 {
		t.Errorf("%d live allocations, %d before", now, before)
	}
	// What outlives its pool is given back when it is freed.
	r.Must(r.l.ReleasePool(a))
	r.Must(r.l.Free(small))
	r.Must(r.l.Free(large))
	if err := r.l.ReleasePool(a); err == nil || len(r.l.PoolBlocks(a)) != 0 {
		t.Error("the pool is still there")
	}
	r.Must(r.l.ReleasePool(b))
	r.Must(r.l.Free(other))
	if r.l.PoolUsers(b) != 1 {
		t.Errorf("%d users of the other pool", r.l.PoolUsers(b))
	}
	r.Must(r.l.ReleasePool(b))
	if r.d.Used != 0 {
		t.Errorf("%d bytes of plain memory kept", r.d.Used)
	}
}

// TestGiveUp: after an error of its own the engine holds nothing back any more, also when nobody can have its lock.
func TestGiveUp(t *testing.T) {
	for _, locked := range []bool{false, true} {
		r := newRig(t, defaults())
		if locked {
			r.l.Mu.Lock()
		}
		began := time.Now()
		r.l.GiveUp(errors.New("internal error"))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if locked {
			r.l.Mu.Unlock()
		} else if r.l.Stats().Failure != "internal error" {
			t.Errorf("%+v", r.l.Stats())
		}
	}
}

func TestFencesOfPlainMemory(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(100_000, 0)
	r.Must(r.l.RecordStream(p, 0x5000))
	r.Must(r.l.Free(p))
	if q := r.MallocOn(100_000, 0); q == p {
		t.Error("reused before the other stream has passed")
	}
	r.d.ReachEvents()
	if q := r.MallocOn(100_000, 0); q != p {
		t.Errorf("at %#x after the other stream has passed, want %#x", uint64(q), uint64(p))
	}
}

// TestFencesOfCapturingStreams: an event that is captured says nothing. Memory that a stream uses which captures is
// reused once it has passed what was queued until the capture had ended.
func TestFencesOfCapturingStreams(t *testing.T) {
	for _, unseen := range []bool{false, true} {
		r := newRig(t, defaults())
		p := r.MallocOn(100_000, 0)
		r.Must(r.l.RecordStream(p, 0x5000))
		r.d.Capture(0x5000, unseen)
		r.Must(r.l.Free(p))
		r.d.ReachEvents()
		for range 3 {
			if q := r.MallocOn(100_000, 0); q == p {
				t.Fatal("reused while the other stream captures")
			}
		}
		r.d.Capture(0, false)
		if q := r.MallocOn(100_000, 0); q == p {
			t.Fatal("reused before the other stream has passed")
		}
		r.d.ReachEvents()
		if q := r.MallocOn(100_000, 0); q != p {
			t.Errorf("at %#x after the other stream has passed, want %#x", uint64(q), uint64(p))
		}
	}
}

// TestSink receives what happens in the order of happening.
func TestSink(t *testing.T) {
	s := &livetest.Sink{}
	c := defaults()
	c.Sink = s
	r := newRig(t, c)
	p := r.MallocOn(8*mib, 0)
	r.h.Queue(0, p)
	r.Must(r.l.Free(p))
	r.Must(r.l.Close())
	if got := strings.Join(s.Log, ", "); got != "alloc, kernel, names a tensor, free" {
		t.Errorf("recorded: %s", got)
	}
	if !strings.Contains(s.Unseen, "GPU fault events unavailable") {
		t.Errorf("the recording says that faults are missing because %q", s.Unseen)
	}
}

// TestHearForTheSink: the sink knows of a launch when it has asked, however busy the loop is, and
// is told that it does not know of one that is not in the ring yet.
func TestHearForTheSink(t *testing.T) {
	c := defaults()
	c.Sink = &livetest.Sink{}
	r := newRig(t, c)
	for range 200 {
		r.h.Queue(0)
		if !r.l.Hear() {
			t.Fatal("not all is heard of")
		}
	}
	r.h.Mu.Lock()
	r.h.Newest++
	r.h.Writing++
	r.h.Mu.Unlock()
	if r.l.Hear() {
		t.Error("an operation that is not written yet is heard of")
	}
	r.Must(r.l.Close())
}

// TestPlainRecording: in plain memory, where nothing can fault, the hook is off although there
// is a sink, also after a pause.
func TestPlainRecording(t *testing.T) {
	c := defaults()
	c.BudgetBytes, c.Sink = 0, &livetest.Sink{}
	r := newRig(t, c)
	r.l.Record(false)
	r.l.Record(true)
	r.h.Mu.Lock()
	defer r.h.Mu.Unlock()
	if r.h.Mode != hook.Off {
		t.Errorf("the hook is in mode %d", r.h.Mode)
	}
}

func TestStatsJSON(t *testing.T) {
	r := newRig(t, defaults())
	r.MallocOn(8*mib, 0)
	text, err := json.Marshal(r.l.Stats())
	r.Must(err)
	var m map[string]any
	r.Must(json.Unmarshal(text, &m))
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

// TestChooseEngine: where the choice is open the explicit engine is taken if it can run.
func TestChooseEngine(t *testing.T) {
	strict := struct{ swapped.Hook }{} // only its kind is looked at
	able := cuda.Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true, VirtualMemory: true, StreamMemOps: true, FunctionParamInfo: true, Kernels: true}
	with := func(change func(*cuda.Capabilities)) cuda.Capabilities { c := able; change(&c); return c }
	for _, c := range []struct {
		name   string
		config Config
		caps   cuda.Capabilities
		hook   process.Hook
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
		{"a hook without strict mode", Config{Engine: Auto}, able, livetest.NewHook(), Managed, "hook is not loaded", ""},
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
