package paged

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// TestLedgerFollowsTheDriver: what the driver moves by itself is counted by its cause, and the ledger has it where it is.
func TestLedgerFollowsTheDriver(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(8*mib, 0)
	migration := func(bytes int64, to faults.Processor, cause trace.Cause) faults.Event {
		return faults.Event{Kind: trace.KindMigration, Address: uint64(p), Bytes: bytes, To: to, Cause: cause}
	}
	r.Eventually("no worker moves it", func() bool { // one may have populated it already
		r.l.Mu.Lock()
		if !r.e.runtime.Moving() {
			return true // with the lock
		}
		r.l.Mu.Unlock()
		return false
	})
	r.e.count([]faults.Event{migration(8*mib, 0, trace.CauseEviction)})
	r.e.faults = faultFeed{}
	before := r.e.runtime.RoomBytes()
	r.e.count([]faults.Event{
		{Kind: trace.KindFault, Batch: 7}, {Kind: trace.KindFault, Batch: 7}, {Kind: trace.KindFault, Batch: 8},
		migration(8*mib, 1, trace.CauseCoherence),
	})
	there := r.e.runtime.RoomBytes()
	r.e.count([]faults.Event{migration(4*mib, 0, trace.CauseEviction), migration(2*mib, 0, trace.CauseCoherence)})
	left := r.e.runtime.RoomBytes()
	f := r.e.faults
	r.l.Mu.Unlock()
	if before-there != 8*mib || left-there != 4*mib { // the last two lie in the same place
		t.Errorf("%d bytes of room, %d when 8 MiB had come, %d when 4 had left", before, there, left)
	}
	if f.faults != 3 || f.batches != 2 || f.h2dBytes != 8*mib || f.d2hBytes != 6*mib || f.faultedBytes != 8*mib || f.evictedBytes != 4*mib {
		t.Errorf("%+v", f)
	}
	r.Must(r.l.Close())
}

// TestFaultsAreFollowedClosely: while a recording sees faults progress is asked for closely, and for a while after the last.
func TestFaultsAreFollowedClosely(t *testing.T) {
	c := defaults()
	c.Sink = &livetest.Sink{}
	r := newRig(t, c)
	r.l.Mu.Lock()
	defer r.l.Mu.Unlock()
	r.h.SetProgressEvery(progressWhileFaulting)
	r.e.faults.lastAt = time.Now()
	if r.e.recordFaults(); r.h.Every != progressWhileFaulting {
		t.Errorf("every %d operations while kernels fault", r.h.Every)
	}
	r.e.faults.lastAt = time.Now().Add(-2 * faultingLasts)
	if r.e.recordFaults(); r.h.Every != process.ProgressEvery {
		t.Errorf("every %d operations when none has faulted for long", r.h.Every)
	}
}
