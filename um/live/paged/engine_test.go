package paged

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/managed"
)

// TestWaitsForReuse: memory that is dead but still used by queued work is waited for.
func TestWaitsForReuse(t *testing.T) {
	c := defaults()
	r := newRig(t, c, c.BudgetBytes+c.HostBudgetBytes) // no more address space than that
	var p [16]cuda.Ptr
	for i := range p {
		p[i] = r.MallocOn(8*mib, 0)
	}
	r.Must(r.l.RecordStream(p[3], 0x5000))
	r.h.Queue(0, p[3])
	r.h.Queue(1, p[3])
	r.Must(r.l.Free(p[3]))
	seq, _ := r.h.Queue(1) // only a later operation shows that the stream has passed everything before
	time.AfterFunc(20*time.Millisecond, func() { r.h.Finish(0, seq); r.h.Finish(1, seq) })
	if q := r.MallocOn(8*mib, 0); q != p[3] {
		t.Errorf("at %#x, want the only free place, %#x", uint64(q), uint64(p[3]))
	}
}

// TestWaitsForDiscard: so is memory that a worker is letting go of, though no queued work uses it.
func TestWaitsForDiscard(t *testing.T) {
	c := defaults()
	r := newRig(t, c, c.BudgetBytes+c.HostBudgetBytes)
	r.holdBack()
	var p [16]cuda.Ptr
	for i := range p {
		p[i] = r.MallocOn(8*mib, 0)
	}
	seq, _ := r.h.Queue(0, p[:8]...)
	r.Eventually("the budget is full", func() bool { return r.h.Gate(0) >= seq })
	r.h.Finish(0, seq)
	block := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(block) })
	t.Cleanup(unblock) // before the engine is closed
	r.d.Mu.Lock()
	r.d.Block = block
	r.d.Mu.Unlock()
	r.Must(r.l.Free(p[3]))
	r.Eventually("the engine hears of that", func() bool { // before the next operation, which shows that the stream has passed everything before
		r.l.Mu.Lock()
		defer r.l.Mu.Unlock()
		r.l.Drain()
		return r.l.Tensors.LiveBytes() == 15*8*mib
	})
	seq, _ = r.h.Queue(0, p[0])
	r.h.Finish(0, seq)
	seq, _ = r.h.Queue(0, p[8]) // for which the dead ones make room
	r.Eventually("a worker lets go of it", func() bool {
		r.d.Mu.Lock()
		defer r.d.Mu.Unlock()
		return r.d.Discarded > 0
	})
	r.h.Finish(0, seq)
	r.Eventually("nothing is queued", func() bool { return r.look() == 0 })
	time.AfterFunc(5*process.IdleWait, unblock)
	if q := r.MallocOn(8*mib, 0); q != p[3] {
		t.Errorf("at %#x, want the only free place, %#x", uint64(q), uint64(p[3]))
	}
}

// TestWaitsLongForReuse: dead memory is waited for as long as work runs that was queued before, of which some is not
// reported unless streams are asked; when the context has ended not.
func TestWaitsLongForReuse(t *testing.T) {
	for _, ends := range []bool{false, true} {
		c := defaults()
		r := newRig(t, c, c.BudgetBytes+c.HostBudgetBytes)
		var p [16]cuda.Ptr
		for i := range p {
			p[i] = r.MallocOn(8*mib, 0)
		}
		r.h.Queue(0, p[3])
		r.Must(r.l.Free(p[3]))
		seq, _ := r.h.Queue(0)
		asked := make(chan struct{})
		r.h.Mu.Lock()
		r.h.Asked = asked
		r.h.Mu.Unlock()
		go func() {
			<-asked
			time.Sleep(300 * time.Millisecond) // without any progress
			if !ends {
				r.h.Finish(0, seq)
				return
			}
			r.d.Mu.Lock()
			defer r.d.Mu.Unlock()
			r.d.Ended = cuda.NewError(700, "cuMemGetInfo")
		}()
		q, err := r.l.Malloc(8*mib, 0x5000)
		if !ends && (err != nil || q != p[3]) || ends && !errors.Is(err, r.d.Ended) {
			t.Errorf("at %#x, %v; want the only free place, %#x, unless the context ends (%v)", uint64(q), err, uint64(p[3]), ends)
		}
	}
}

// TestGate: a launch that names an absent tensor waits until it is on the device.
func TestGate(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	if r.h.Every != process.ProgressEvery || r.h.Mode != hook.Gated {
		t.Fatalf("mode %v, progress every %d", r.h.Mode, r.h.Every)
	}
	p := r.MallocOn(8*mib, 0)
	seq, gated := r.h.Queue(1, p)
	if gated { // else it was brought in before, as fresh memory may be
		r.Eventually("the gate opens", func() bool { return r.h.Gate(1) >= seq })
	}
	if !r.h.IsResident(p) || !r.d.Holds(cuda.Range{Base: p, Bytes: 8 * mib}) {
		t.Error("the gate opened with the tensor absent")
	}
	r.h.Finish(1, seq)
	r.Must(r.l.Close())
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
				p[i] = r.MallocOn(8*mib, 0)
			}
			for range 3 {
				for i := range p {
					seq, gated := r.h.Queue(0, p[i])
					if gated {
						r.Eventually("the gate opens", func() bool { return r.h.Gate(0) >= seq })
					}
					// One that is not held back may find that its tensor has just begun to leave:
					// the kernel then faults for it.
					if gated && policy.Fetch != um.FetchOnFault && !r.d.Holds(cuda.Range{Base: p[i], Bytes: 8 * mib}) {
						t.Fatalf("the gate of launch %d is open and its tensor is not on the device: %+v", seq, r.l.Stats())
					}
					r.h.Finish(0, seq)
				}
			}
			s := r.l.Stats()
			if s.Evictions == 0 || s.ResidentPeakBytes > 64*mib || s.LateLaunches > 0 || s.Failure != "" {
				t.Errorf("%d evictions, %d bytes at most, %d late, failure %q", s.Evictions, s.ResidentPeakBytes, s.LateLaunches, s.Failure)
			}
			if _, out := r.d.Moves(); out == 0 || r.d.Peak() > 64*mib/managed.BlockBytes {
				t.Errorf("%d moves out, %d blocks on the device at most", out, r.d.Peak())
			}
			for _, x := range p {
				r.Must(r.l.Free(x))
			}
			r.Must(r.l.Close())
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
		p[i] = r.MallocOn(8*mib, 0)
	}
	for range 2 {
		for i := range p {
			seq, _ := r.h.Queue(0, p[i])
			for range 17 {
				r.h.Queue(0)
			}
			r.l.Stats() // reads the ring
			r.Eventually("the tensor is brought in", func() bool { return r.d.Holds(cuda.Range{Base: p[i], Bytes: 8 * mib}) })
			r.h.Finish(0, seq)
		}
	}
	r.Must(r.l.Close())
}

// TestFailure: a move that fails opens every gate and ends holding back; the job goes on,
// and finished work is still told from unfinished.
func TestFailure(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	r.d.Mu.Lock()
	r.d.MoveError = errors.New("the bus is on fire")
	r.d.Mu.Unlock()
	p := r.MallocOn(8*mib, 0)
	seq, _ := r.h.Queue(1, p)
	r.Eventually("the gates are open", func() bool { return r.h.Gate(0) > seq && r.h.Gate(1) > seq })
	if m := r.h.Modes[len(r.h.Modes)-1]; m != hook.Gated { // the only one in which streams report how far they are
		t.Errorf("the hook is left in mode %v", m)
	}
	last, gated := r.h.Queue(0, p)
	if gated {
		t.Error("a launch is held back by an engine that has failed")
	}
	queued := func() int {
		r.l.Mu.Lock()
		defer r.l.Mu.Unlock()
		return r.e.runtime.Queued()
	}
	r.Eventually("both launches are read", func() bool { return queued() == 2 })
	r.h.Finish(1, seq)
	r.Eventually("one stream's launch is finished, and only that one's", func() bool { return queued() == 1 })
	r.h.Finish(0, last)
	r.Eventually("the other's is", func() bool { return queued() == 0 })
	s := r.l.Stats()
	if !strings.Contains(s.Failure, "the bus is on fire") || !strings.Contains(s.Verdict(), "failure of the engine") {
		t.Errorf("failure %q\n%s", s.Failure, s.Verdict())
	}
	r.MallocOn(8*mib, 0)
	_, err := r.e.AcquirePlain(mib)
	r.Must(err)
	r.Must(r.l.Free(p))
	if err := r.l.Close(); err == nil || !strings.Contains(err.Error(), "the bus is on fire") {
		t.Errorf("Close: %v, want the failure", err)
	}
}

// TestWatchdog: a move that does not end gives the engine up.
func TestWatchdog(t *testing.T) {
	if process.WatchdogPatience < 10*process.MostBetween {
		t.Error("the watchdog cannot tell waiting from a stopped process")
	}
	r := newRig(t, defaults())
	r.holdBack()
	block := make(chan struct{})
	r.d.Mu.Lock()
	r.d.Block = block
	r.d.Mu.Unlock()
	p := r.MallocOn(8*mib, 0) // no block of it can come
	seq, gated := r.h.Queue(0, p)
	if !gated {
		t.Fatal("the launch is not held back")
	}
	r.Eventually("the watchdog bites", func() bool {
		r.l.Mu.Lock()
		defer r.l.Mu.Unlock()
		if r.e.runtime.Held() { // as if so much time had passed
			r.l.Vain.Duration = 2 * process.WatchdogPatience
		}
		return r.l.Failed != nil
	})
	if r.h.Gate(0) < seq {
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
			r.d.Mu.Lock()
			r.d.Block = block
			r.d.Mu.Unlock()
			p := r.MallocOn(8*mib, 0)
			long := r.h.QueueFlagged(c.stream, c.flags)
			r.h.Queue(0, p)
			wait := func() (looks int, failed error) {
				r.l.Mu.Lock()
				defer r.l.Mu.Unlock()
				if r.e.runtime.Held() && r.l.Vain.Duration < process.WatchdogPatience { // as if so much time had passed
					r.l.Idle.Duration, r.l.Vain.Duration = 2*process.WatchdogPatience, 2*process.WatchdogPatience
					looks = 1
				}
				return looks, r.l.Failed
			}
			for looks := 0; looks < 20; time.Sleep(time.Millisecond) {
				n, failed := wait()
				if failed != nil {
					t.Fatalf("given up while work runs: %v", failed)
				}
				looks += n
			}
			r.h.Finish(c.stream, long)
			r.Eventually("the watchdog bites", func() bool { _, failed := wait(); return failed != nil })
		})
	}
}

// TestOversize: a launch that names more than the budget is let go, and named.
func TestOversize(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	a, b := r.MallocOn(48*mib, 0), r.MallocOn(48*mib, 0)
	seq, _ := r.h.Queue(0, a, b)
	r.Eventually("the launch is let go", func() bool { return r.h.Gate(0) >= seq })
	s := r.l.Stats()
	if s.LateLaunches != 1 || s.OversizeLaunches != 1 || s.OversizeName != "kernel" || s.OversizeBytes < 96*mib {
		t.Errorf("%d late, %d oversize: %q of %d bytes", s.LateLaunches, s.OversizeLaunches, s.OversizeName, s.OversizeBytes)
	}
}

// TestPausedAsksSeldom: progress is asked for closely only for a recording of faults.
func TestPausedAsksSeldom(t *testing.T) {
	c := defaults()
	c.Sink = &livetest.Sink{}
	r := newRig(t, c)
	r.l.Mu.Lock()
	r.h.SetProgressEvery(progressWhileFaulting)
	r.e.faults.lastAt = time.Now()
	r.l.Mu.Unlock()
	r.l.Record(false)
	r.l.Mu.Lock()
	every := r.h.Every
	r.l.Mu.Unlock()
	if every != process.ProgressEvery {
		t.Errorf("every %d operations while paused", every)
	}
	r.Must(r.l.Close())
}

// TestPlainGrowthWaits: plain memory that grows gets the room of tensors first, so that the device never holds more than the budget, nor is said to.
func TestPlainGrowthWaits(t *testing.T) {
	c := defaults()
	r := newRig(t, c)
	r.holdBack()
	for range 8 { // together they fill the budget
		seq, gated := r.h.Queue(0, r.MallocOn(8*mib, 0))
		if gated {
			r.Eventually("the gate opens", func() bool { return r.h.Gate(0) >= seq })
		}
		r.h.Finish(0, seq)
	}
	for range 12 {
		_, err := r.e.AcquirePlain(2 * mib)
		r.Must(err)
	}
	if r.d.PlainUsed() == 0 || r.d.PeakBytes() < c.BudgetBytes*3/4 {
		t.Fatalf("%d bytes of plain memory, %d in all at most: nothing is tested", r.d.PlainUsed(), r.d.PeakBytes())
	}
	if most, s := r.d.PeakBytes(), r.l.Stats(); most > c.BudgetBytes || s.ResidentPeakBytes > c.BudgetBytes {
		t.Errorf("%d bytes were on the device at a time, and said to be %d, of a budget of %d", most, s.ResidentPeakBytes, c.BudgetBytes)
	}
	r.Must(r.l.Close())
}
