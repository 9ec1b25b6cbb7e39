package hostpool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/internal/hostmem"
)

// registrar is a driver that knows what is registered.
type registrar struct {
	cuda.Driver
	mu     sync.Mutex
	live   map[cuda.Ptr]int64
	calls  int
	fail   map[int]error // by the number of the call
	gate   chan struct{} // each HostRegister takes one from it; nil: it does not
	bound  atomic.Int64
	noBind error
}

func newRegistrar() *registrar { return &registrar{live: map[cuda.Ptr]int64{}, fail: map[int]error{}} }

func (r *registrar) Info() cuda.DeviceInfo { return cuda.DeviceInfo{} }
func (r *registrar) BindThread() error     { r.bound.Add(1); return r.noBind }

func (r *registrar) HostRegister(p cuda.Ptr, bytes int64) error {
	if r.gate != nil {
		<-r.gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if err := r.fail[r.calls]; err != nil {
		return err
	}
	r.live[p] = bytes
	return nil
}

func (r *registrar) HostUnregister(p cuda.Ptr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[p] == 0 {
		return cuda.NewError(713, "cuMemHostUnregister")
	}
	delete(r.live, p)
	return nil
}

func (r *registrar) registered() (bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.live {
		bytes += n
	}
	return bytes
}

func open(t *testing.T, d cuda.Driver, c Config) *Pool {
	t.Helper()
	p, err := New(d, c, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func take(t *testing.T, p *Pool, bytes int64) []Extent {
	t.Helper()
	e, err := p.Take(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func give(t *testing.T, p *Pool, e []Extent) {
	t.Helper()
	if err := p.Give(e); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what the pool's thread brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(until) {
			t.Fatalf("not so after 20 s: %s", what)
		}
	}
}

// contents is the memory of an extent.
func contents(e Extent) []uint64 {
	return unsafe.Slice((*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&e.Base))), e.Bytes/8)
}

// Several threads take and give at random. What one holds no other has, all of
// it is registered memory, and nothing is lost.
func TestThreadsOwnWhatTheyTake(t *testing.T) {
	d := newRegistrar()
	const budget = 60 * mib // the last segment is short
	p := open(t, d, Config{BudgetBytes: budget, SegmentBytes: 16 * mib, AheadBytes: 8 * mib})
	var group sync.WaitGroup
	var spent atomic.Int64
	for id := range uint64(4) {
		group.Go(func() {
			r := rand.New(rand.NewPCG(id, 9))
			type held struct {
				extents []Extent
				stamp   uint64
			}
			var mine []held
			for i := range uint64(300) {
				if r.IntN(5) < 3 {
					asked := r.Int64N(14*mib) + 1
					e, err := p.Take(asked)
					if errors.Is(err, ErrHostBudget) {
						spent.Add(1)
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					stamp := id<<32 | i
					var sum int64
					for _, x := range e {
						sum += x.Bytes
						for at := int64(0); at < x.Bytes/8; at += Granularity / 8 / 4 {
							contents(x)[at] = stamp
						}
					}
					if sum != roundUp(asked) {
						t.Errorf("%d bytes asked for, %d given", asked, sum)
					}
					mine = append(mine, held{e, stamp})
				}
				if len(mine) > 0 && (r.IntN(5) >= 2 || i > 280) {
					k := r.IntN(len(mine))
					for _, x := range mine[k].extents {
						for at := int64(0); at < x.Bytes/8; at += Granularity / 8 / 4 {
							if got := contents(x)[at]; got != mine[k].stamp {
								t.Errorf("%+v of %#x holds %#x", x, mine[k].stamp, got)
								return
							}
						}
					}
					if err := p.Give(mine[k].extents); err != nil {
						t.Error(err)
						return
					}
					mine = append(mine[:k], mine[k+1:]...)
				}
			}
			for _, h := range mine {
				if err := p.Give(h.extents); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if spent.Load() == 0 {
		t.Error("the budget was never spent: this tests too little")
	}
	s := p.Stats()
	if s.InUseBytes != 0 || s.PeakBytes > budget || s.GrownBytes != budget || s.FreeExtents != 4 || s.LargestFreeBytes != 16*mib || s.Failure != nil {
		t.Errorf("at the end %+v", s)
	}
	if d.registered() != budget {
		t.Errorf("%d bytes registered", d.registered())
	}
}

func TestBudget(t *testing.T) {
	p := open(t, newRegistrar(), Config{BudgetBytes: 33 * mib, SegmentBytes: 8 * mib})
	a := take(t, p, 30*mib)
	if len(a) != 4 { // 8, 8, 8 and 6: never across a border
		t.Errorf("%+v", a)
	}
	_, err := p.Take(3 * mib)
	var full *HostBudgetError
	if !errors.Is(err, ErrHostBudget) || !errors.As(err, &full) || *full != (HostBudgetError{4 * mib, 30 * mib, 32 * mib}) {
		t.Errorf("over the budget: %v", err)
	}
	if want := "4 MiB of host memory asked for with 30 MiB in use would exceed the host budget of 32 MiB: raise --host-budget or use less"; err.Error() != want {
		t.Errorf("%q", err)
	}
	take(t, p, 2*mib)
	if _, err := p.Take(1); !errors.Is(err, ErrHostBudget) {
		t.Errorf("full: %v", err)
	}
	if _, err := p.Take(1 << 62); !errors.Is(err, ErrHostBudget) {
		t.Errorf("huge: %v", err)
	}
	for _, bytes := range []int64{0, -1} {
		if _, err := p.Take(bytes); err == nil || errors.Is(err, ErrHostBudget) {
			t.Errorf("Take(%d): %v", bytes, err)
		}
	}
	give(t, p, a[:2])
	if err := p.Give([]Extent{a[2], a[0]}); err == nil { // a[0] for the second time: neither is taken
		t.Error("memory was given back twice")
	}
	if s := p.Stats(); s.InUseBytes != 16*mib || s.PeakBytes != 32*mib {
		t.Errorf("%+v", s)
	}
	give(t, p, a[2:])
}

func TestPiecesAreFewAndFit(t *testing.T) {
	p := open(t, newRegistrar(), Config{BudgetBytes: 64 * mib, SegmentBytes: 32 * mib})
	var all [][]Extent
	for range 16 {
		all = append(all, take(t, p, 4*mib))
	}
	give(t, p, all[1]) // 4 MiB
	for _, i := range []int{4, 5, 6} {
		give(t, p, all[i]) // 12 MiB in a row
	}
	give(t, p, all[9]) // and 4 MiB
	if e := take(t, p, 3*mib); len(e) != 1 || e[0].Base != all[1][0].Base {
		t.Errorf("4 MiB: not the smallest that fits: %+v", e)
	}
	if e := take(t, p, 14*mib); len(e) != 2 || e[0].Base != all[4][0].Base || e[0].Bytes != 12*mib || e[1].Bytes != 2*mib {
		t.Errorf("14 MiB: not the largest first: %+v", e)
	}
}

func TestTakeWaitsForGrowing(t *testing.T) {
	d := newRegistrar()
	d.gate = make(chan struct{})
	p := open(t, d, Config{BudgetBytes: 32 * mib, SegmentBytes: 8 * mib, AheadBytes: Granularity})
	const wait = 20 * time.Millisecond
	go func() {
		eventually(t, "somebody waits", func() bool { return p.Stats().Waits == 1 })
		time.Sleep(wait)
		for range 3 {
			d.gate <- struct{}{}
		}
	}()
	take(t, p, 20*mib)
	if s := p.Stats(); s.Waits != 1 || s.Waited < wait || s.GrownBytes != 24*mib || s.Growing < wait {
		t.Errorf("%+v", s)
	}
	take(t, p, 4*mib)
	if s := p.Stats(); s.Waits != 1 {
		t.Errorf("what was there was waited for: %+v", s)
	}
	close(d.gate)
	if d.bound.Load() != 1 {
		t.Errorf("%d threads bound to the device", d.bound.Load())
	}
}

func TestGrowsAheadAndAsExpected(t *testing.T) {
	p := open(t, newRegistrar(), Config{BudgetBytes: 64 * mib, SegmentBytes: 4 * mib, AheadBytes: 6 * mib})
	grown := func(bytes int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d MiB grown", bytes/mib), func() bool { return p.Stats().GrownBytes == bytes })
	}
	grown(8 * mib)
	e := take(t, p, 8*mib)
	grown(16 * mib)
	p.Expect(30 * mib)
	grown(32 * mib)
	p.Expect(1 << 60)
	grown(64 * mib)
	give(t, p, e)
	if s := p.Stats(); s.GrownBytes != 64*mib || s.Waits != 0 {
		t.Errorf("%+v", s)
	}
}

// What is pinned is what was in use at most and what is kept ready, in whole segments: nothing is rounded to a power of two.
func TestPinsNoMoreThanItSays(t *testing.T) {
	for _, c := range []struct {
		config       Config
		inUse, wants int64
	}{
		{Config{BudgetBytes: 256 * mib, SegmentBytes: 4 * mib, AheadBytes: 6 * mib}, 34 * mib, 40 * mib},
		{Config{BudgetBytes: 256 * mib, SegmentBytes: 4 * mib, AheadBytes: 6 * mib}, 36 * mib, 44 * mib},
		{Config{BudgetBytes: 256 * mib, SegmentBytes: 16 * mib, AheadBytes: Granularity}, 66 * mib, 80 * mib},
		{Config{BudgetBytes: 256 * mib, SegmentBytes: 16 * mib, AheadBytes: Granularity}, 1, 16 * mib},
		{Config{BudgetBytes: 48 * mib, SegmentBytes: 32 * mib, AheadBytes: 16 * mib}, 34 * mib, 48 * mib},
	} {
		if got := c.config.MostPinned(c.inUse); got != c.wants {
			t.Errorf("%+v, %d in use: %d are said to be pinned, want %d", c.config, c.inUse, got, c.wants)
		}
		p := open(t, newRegistrar(), c.config)
		for left := c.inUse; left > 0; {
			n := min(left, 10*mib)
			take(t, p, n)
			left -= n
		}
		eventually(t, fmt.Sprintf("%d pinned", c.wants), func() bool { return p.Stats().GrownBytes == c.wants })
		time.Sleep(5 * time.Millisecond)
		if s := p.Stats(); s.GrownBytes != c.wants {
			t.Errorf("%+v goes on to %d", c.config, s.GrownBytes)
		}
	}
	const gib = 1 << 30
	if got := (Config{BudgetBytes: 100 * gib}).MostPinned(8*gib + 1); got != 13*gib {
		t.Errorf("without settings: %d", got)
	}
}

func TestGrowingFails(t *testing.T) {
	d := newRegistrar()
	refused := cuda.NewError(2, "cuMemHostRegister")
	d.fail[2], d.fail[3] = refused, refused
	p := open(t, d, Config{BudgetBytes: 32 * mib, SegmentBytes: 8 * mib, AheadBytes: 16 * mib})
	eventually(t, "the second segment fails", func() bool { return p.Stats().Failure != nil })
	take(t, p, 8*mib) // what is there is given out all the same
	_, err := p.Take(4 * mib)
	var growth *GrowthError
	if !errors.Is(err, cuda.ErrOutOfMemory) || !errors.As(err, &growth) || growth.GrownBytes != 8*mib || strings.Contains(err.Error(), "\n") {
		t.Fatalf("a Take that needs the third: %v", err)
	}
	if s := p.Stats(); s.InUseBytes != 8*mib || s.GrownBytes != 8*mib {
		t.Errorf("%+v", s)
	}
	take(t, p, 4*mib) // each one that needs more tries again
	if s := p.Stats(); s.Failure != nil {
		t.Errorf("%+v", s)
	}

	lost := newRegistrar()
	lost.noBind = cuda.NewError(201, "cuCtxSetCurrent")
	q := open(t, lost, Config{BudgetBytes: 8 * mib})
	if _, err := q.Take(1); !errors.Is(err, cuda.ErrInvalidContext) {
		t.Errorf("without a context: %v", err)
	}
}

// TestGrowsAfterAFailure: a moment in which memory was short is not remembered for ever, by who cannot wait in a Take either.
func TestGrowsAfterAFailure(t *testing.T) {
	d := newRegistrar()
	d.fail[1], d.fail[2] = cuda.NewError(2, "cuMemHostRegister"), cuda.NewError(2, "cuMemHostRegister")
	p := open(t, d, Config{BudgetBytes: 32 * mib, SegmentBytes: 16 * mib, AheadBytes: Granularity})
	var growth *GrowthError
	eventually(t, "the first segment fails", func() bool { _, _, err := p.TryTake(6 * mib); return errors.As(err, &growth) })
	var e []Extent
	eventually(t, "it is there all the same", func() bool {
		got, ready, err := p.TryTake(6 * mib)
		if err != nil && !errors.As(err, &growth) {
			t.Fatal(err)
		}
		e = got
		return ready
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	// 16 and 8 MiB were refused; 4 MiB were not, then 8.
	if len(e) != 1 || e[0].Bytes != 6*mib || e[0].Base != p.memory.base()+4*mib || d.live[p.memory.base()] != 4*mib || d.live[p.memory.base()+4*mib] != 8*mib {
		t.Errorf("%+v of %v", e, d.live)
	}
	if s := p.Stats(); s.Failure != nil {
		t.Errorf("%+v", s)
	}
}

func TestClose(t *testing.T) {
	d := newRegistrar()
	d.gate = make(chan struct{}, 8)
	d.gate <- struct{}{}
	p, err := New(d, Config{BudgetBytes: 32 * mib, SegmentBytes: 8 * mib}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	take(t, p, 8*mib)
	waits := make(chan error)
	go func() {
		_, err := p.Take(16 * mib)
		waits <- err
	}()
	eventually(t, "somebody waits", func() bool { return p.Stats().Waits > 0 && p.Stats().GrownBytes == 8*mib })
	go func() {
		eventually(t, "the pool is being closed", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.closed })
		d.gate <- struct{}{} // the segment under way is finished first
	}()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, ErrClosed) {
		t.Errorf("who waited got %v", err)
	}
	if d.registered() != 0 {
		t.Errorf("%d bytes stay registered", d.registered())
	}
	if _, err := p.Take(1); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestBadConfigs(t *testing.T) {
	for _, c := range []Config{{}, {BudgetBytes: -1}, {BudgetBytes: Granularity - 1}, {BudgetBytes: mib << 20, SegmentBytes: -1}, {BudgetBytes: mib << 20, AheadBytes: -1}} {
		if _, err := New(newRegistrar(), c, zap.NewNop()); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	_, err := New(newRegistrar(), Config{BudgetBytes: 1 << 60}, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "MiB or less") || strings.Contains(err.Error(), "\n") {
		t.Errorf("more than the machine has: %v", err)
	}
	m := hostmem.Memory{AvailableBytes: 3 << 30, LimitedBy: "the memory limit of control group /job"}
	if err := checkBudget(m.AvailableBytes-leftToOthers, m); err != nil {
		t.Error(err)
	}
	err = checkBudget(m.AvailableBytes, m)
	if want := "the host budget of 3 GiB is more than can be pinned: the memory limit of control group /job leaves 3 GiB, of which 256 MiB are for others: give --host-budget 2816MiB or less"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	if err := checkBudget(1<<30, hostmem.Memory{AvailableBytes: leftToOthers, LimitedBy: "free memory"}); err == nil || !strings.Contains(err.Error(), "impossible") {
		t.Errorf("%v", err)
	}
}

// The memory is kept from children and asks for huge pages.
func TestFlagsOfTheMapping(t *testing.T) {
	p := open(t, newRegistrar(), Config{BudgetBytes: 8 * mib})
	e := take(t, p, 8*mib)[0]
	if e.Base%Granularity != 0 {
		t.Errorf("%#x is not at a huge page", uint64(e.Base))
	}
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	_, area, ok := strings.Cut(string(b), fmt.Sprintf("%x-", uint64(e.Base)))
	_, flags, ok2 := strings.Cut(area, "VmFlags:")
	if !ok || !ok2 {
		t.Skip("the mapping is not told apart in smaps")
	}
	flags, _, _ = strings.Cut(flags, "\n")
	for _, want := range []string{"dc", "dd"} { // not copied, not dumped
		if !strings.Contains(flags+" ", " "+want+" ") {
			t.Errorf("flag %s is missing:%s", want, flags)
		}
	}
}

func TestOnTheStubDriver(t *testing.T) {
	d := cudastub.Open(t, "STUB_FAIL=cuMemHostRegister:3")
	p := open(t, d, Config{BudgetBytes: 24 * mib, SegmentBytes: 8 * mib, AheadBytes: Granularity})
	e := take(t, p, 12*mib)
	if _, err := p.Take(10 * mib); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("the third segment: %v", err)
	}
	device, err := d.MemAlloc(8 * mib)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	contents(e[0])[5] = 77
	for _, err := range []error{
		d.CopyAsync(device, e[0].Base, e[0].Bytes, s), d.CopyAsync(e[1].Base, device, e[1].Bytes, s), d.StreamSynchronize(s),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if contents(e[1])[5] != 77 {
		t.Error("what went through the device did not come back")
	}
}

// On the simulated GPU the pool has addresses and costs, and no memory.
func TestSimulated(t *testing.T) {
	g := sim.New(sim.Profiles()[0], sim.Options{})
	th := g.Thread("pool")
	p := open(t, th, Config{BudgetBytes: 200 << 30})
	before := th.Now()
	e := take(t, p, 10<<30)
	if took := th.Now() - before; took < 200*time.Millisecond || took > time.Second {
		t.Errorf("10 GiB took %v of virtual time", took)
	}
	s, err := th.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	device, err := th.MemAlloc(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	if err := th.CopyAsync(e[9].Base, device, e[9].Bytes, s); err != nil {
		t.Error(err)
	}
	if err := th.StreamSynchronize(s); err != nil {
		t.Error(err)
	}
}
