package paged

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/um"
)

// TestPlainMemory: a segment is counted from before the driver is asked for it until it has it again, and what is refused is not counted.
func TestPlainMemory(t *testing.T) {
	r := newRig(t, defaults())
	counted := func(want int64) {
		t.Helper()
		r.l.Mu.Lock()
		defer r.l.Mu.Unlock()
		if plain, engine := r.l.PlainBytes.Load(), r.e.runtime.Stats().PlainBytes; plain != want || engine != want || r.d.PlainUsed() != want {
			t.Errorf("%d bytes are counted, %d by the engine, the driver has given %d; want %d", plain, engine, r.d.PlainUsed(), want)
		}
	}
	p, err := r.e.AcquirePlain(16 * mib)
	r.Must(err)
	counted(16 * mib)
	if _, err := r.e.AcquirePlain(64 * mib); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("more than the budget: %v", err)
	}
	counted(16 * mib)
	used := func(bytes int64) {
		r.d.Mu.Lock()
		defer r.d.Mu.Unlock()
		r.d.Used += bytes
	}
	others := r.d.Total - r.d.PlainUsed()
	used(others)
	if _, err := r.e.AcquirePlain(16 * mib); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("more than the card has: %v", err)
	}
	used(-others)
	counted(16 * mib)
	r.Must(r.e.ReleasePlain(p, 16*mib))
	counted(0)
	if err := r.e.ReleasePlain(p, 16*mib); err == nil {
		t.Error("a segment is released twice")
	}
	counted(0)
	r.Must(r.l.Close())
}

// TestOpensWhenTheCardIsFull: without a budget there is no arena until it is asked for.
func TestOpensWhenTheCardIsFull(t *testing.T) {
	c := defaults()
	c.BudgetBytes = 0
	r := newRig(t, c)
	if p, err := r.e.AcquirePlain(mib); r.e.Serving() || r.e.Owns(p) || !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("%#x, %v: there is no budget yet", uint64(p), err)
	}
	if !r.e.StartsWhenFull() || r.e.Shrink(um.ErrOutOfMemory) || r.e.Serving() {
		t.Error("what has no room is to open the arena, in which private pools have no part before")
	}
	r.e.Empty()
	if m, settled, replays := r.e.Progressed(); m.Ops != 0 || !settled || replays {
		t.Errorf("%+v, %t, %t before anything is known", m, settled, replays)
	}
	r.l.Budget = 64 * mib
	r.Must(r.e.Open())
	p := r.MallocOn(8*mib, 0)
	if !r.e.Serving() || !r.e.Owns(p) || r.e.ServeFront(true) {
		t.Error("it was opened, and does not serve, or the pool's front does, whose lock comes first")
	}
	r.e.Empty()
	r.h.Queue(0, p)
	r.Eventually("the operation is known", func() bool {
		r.l.Mu.Lock()
		defer r.l.Mu.Unlock()
		m, _, _ := r.e.Progressed()
		return m.Ops == 1
	})
	if !r.e.OnlyFragmented(8*mib) || r.e.OnlyFragmented(1<<40) {
		t.Error("what is within the budgets is missed for want of addresses alone")
	}
	r.Must(r.l.Close())
}

// TestHeadIsLetGo: a launch that has to wait for another stream's work, which nobody knows the end of, goes after a while, and faults.
func TestHeadIsLetGo(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	a, b := r.MallocOn(48*mib, 0), r.MallocOn(32*mib, 0x5000)
	first, _ := r.h.Queue(0, a)
	r.Eventually("the first launch runs", func() bool { return r.h.Gate(0) >= first })
	began := time.Now()
	seq, gated := r.h.Queue(1, b)
	if !gated {
		t.Fatal("the launch is not held back")
	}
	r.Eventually("it is let go", func() bool { return r.h.Gate(1) >= seq })
	if took := time.Since(began); took < headPatience {
		t.Errorf("after %v", took)
	}
	if s := r.l.Stats(); s.LateLaunches != 1 || s.Failure != "" {
		t.Errorf("%d launches are counted as late, failure %q", s.LateLaunches, s.Failure)
	}
	r.h.Finish(0, first)
	r.Must(r.l.Close())
}
