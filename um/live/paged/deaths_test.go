package paged

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/um"
)

// TestFreeDoesNotWait: a free is done, and counted, while the engine's lock is taken;
// its address is given out again once the engine has heard of it.
func TestFreeDoesNotWait(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(8*mib, 0)
	r.l.Mu.Lock()
	freed := make(chan error)
	go func() { freed <- r.l.Free(p) }()
	select {
	case err := <-freed:
		r.Must(err)
	case <-time.After(10 * time.Second):
		t.Fatal("a free waits for the engine's lock")
	}
	if n := r.l.LiveBytes(); n != 0 {
		t.Errorf("%d bytes are live after the free", n)
	}
	if err := r.l.Free(p); !errors.Is(err, um.ErrNotOurs) {
		t.Errorf("a second free of the same tensor: %v", err)
	}
	r.l.Mu.Unlock()
	if q := r.MallocOn(8*mib, 0); q != p {
		t.Errorf("the address %#x is not given out again, but %#x", uint64(p), uint64(q))
	}
	r.Must(r.l.Close()) // which recounts
}

// TestFreeIsHeardInOrder: the engine hears of a free after what was queued before it, and
// before what came after.
func TestFreeIsHeardInOrder(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(8*mib, 0)
	r.l.Mu.Lock()
	first, _ := r.h.Queue(0, p)
	r.Must(r.l.Free(p))
	r.h.Queue(0)
	var live []int64
	r.e.deaths.hear()
	for _, reported := range []uint64{first - 1, first} {
		r.e.tellFrees(reported)
		live = append(live, r.e.runtime.LiveBytes())
	}
	r.l.Mu.Unlock()
	if live[0] != 8*mib || live[1] != 0 {
		t.Errorf("%d bytes are live before the operation is reported, %d after", live[0], live[1])
	}
	r.Must(r.l.Close())
}
