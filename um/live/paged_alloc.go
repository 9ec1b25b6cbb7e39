package live

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/stitch"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// malloc allocates from the arena.
func (e *paged) malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	proc := e.proc
	proc.lock()
	defer proc.mu.Unlock()
	proc.drain()
	p, err := e.runtime.Malloc(bytes, proc.streams.Number(stream))
	if err != nil && e.reuseMayHelp(bytes) {
		proc.counts.retries.Add(1)
		p, err = e.mallocWhenReusable(bytes, stream, err)
	}
	if err == nil {
		e.deaths.born(p, bytes)
		proc.tensorLive.Add(bytes)
		proc.noteReserved()
	}
	return p, err
}

// onlyFragmented says whether an allocation that the arena refused is within the
// budgets: then it is address space that is missing, in one piece.
func (e *paged) onlyFragmented(bytes int64) bool {
	proc := e.proc
	return proc.liveBytes()+bytes <= proc.budget+proc.hostBudget() && proc.tensorLive.Load()+bytes <= e.arenaBytes
}

// reuseMayHelp says whether an allocation failed only because dead memory is
// still in the hands of queued work or of a worker. The caller holds the lock.
func (e *paged) reuseMayHelp(bytes int64) bool {
	proc := e.proc
	return proc.hook != nil && proc.failed == nil && (e.runtime.Queued() > 0 || e.runtime.FreeMoves()) && e.runtime.LiveBytes()+bytes <= min(proc.budget+proc.hostBudget(), e.arenaBytes)
}

// mallocWhenReusable tries again while work finishes that was queued before, however long that takes, as a caching
// allocator waits for its events before it says that it is out of memory. The
// caller holds the lock, which is released between attempts.
func (e *paged) mallocWhenReusable(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	proc := e.proc
	last, finished := proc.hook.Read(), time.Now()
	var waited process.Idle
	var nagger process.Nagger
	checked := finished
	// Also while a worker has dead memory in its hands, which may have been idle for just a moment.
	for !proc.closing && proc.failed == nil && time.Since(finished) < idleWait {
		proc.mu.Unlock()
		proc.hook.ReportAll() // or the last thing that streams have done would not be known to be over
		var ended error
		if time.Since(checked) > checkPatience { // nothing finishes any more when the context has ended
			_, _, ended = proc.driver.MemInfo()
			checked = time.Now()
		}
		proc.mu.Lock()
		if ended != nil {
			return 0, ended
		}
		proc.yield()
		if e.runtime.Queued() == 0 && proc.hook.Head() == proc.hook.Read() {
			e.runtime.Quiet()
		}
		var p cuda.Ptr
		if p, err = e.runtime.Malloc(bytes, proc.streams.Number(stream)); err == nil {
			return p, nil
		}
		now := time.Now()
		if !e.runtime.AllFinished(last) || e.runtime.FreeMoves() {
			finished = now
		}
		if nagger.Due(waited.Look(now)) {
			proc.log.Warn("an allocation waits for memory that is in use", zap.Duration("for", waited.Round(time.Second)), zap.Int64("bytes", bytes))
		}
	}
	return 0, err
}

// makeRoom lets tensors leave for plain memory that has been counted and is about to be
// taken, until it fits beside what is on the device, or until waiting longer makes no
// sense: then the device holds so much more than the budget for a while. The caller
// holds the lock, which is released meanwhile.
func (e *paged) makeRoom(bytes int64) {
	proc := e.proc
	e.plainDue += bytes
	e.tellPlain()
	var waited process.Idle
	for proc.hook != nil && e.runtime.RoomBytes() < 0 && proc.failed == nil && !proc.closing && waited.Look(time.Now()) < roomPatience {
		e.work[um.Out].Signal()
		proc.mu.Unlock()
		time.Sleep(busyWait)
		proc.mu.Lock()
	}
	e.plainDue -= bytes
	e.tellPlain()
}

// tellPlain tells the managed engine's runtime of plain memory. The caller holds the lock.
func (e *paged) tellPlain() { e.runtime.SetPlainBytes(e.proc.plainBytes.Load()-e.plainDue, e.plainDue) }

func (e *paged) takePlain(bytes int64) error {
	proc := e.proc
	proc.mu.Lock()
	defer proc.mu.Unlock()
	budget := proc.plainBudget.Load()
	if n := proc.plainBytes.Load(); n+bytes > budget {
		return fmt.Errorf("%w: %d bytes of plain device memory asked for with %d of the budget of %d in use", ErrOutOfMemory, bytes, n, budget)
	}
	proc.plainBytes.Add(bytes)
	if e.runtime != nil {
		e.makeRoom(bytes)
	}
	return nil
}

func (e *paged) plainChanged() {
	if e.runtime != nil {
		e.tellPlain()
	}
}

func (e *paged) acquirePlain(bytes int64) (cuda.Ptr, error) {
	proc := e.proc
	if err := e.takePlain(bytes); err != nil {
		return 0, err
	}
	err := proc.driver.BindThread()
	if err == nil {
		var p cuda.Ptr
		if p, err = proc.driver.MemAlloc(bytes); err == nil {
			return p, nil
		}
		err = fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	}
	proc.addPlain(-bytes)
	return 0, err
}

func (e *paged) releasePlain(p cuda.Ptr, bytes int64) error {
	proc := e.proc
	if err := proc.driver.BindThread(); err != nil {
		return err
	}
	if err := proc.synchronizeOthers(); err != nil { // cuMemFree waits for work of its own context
		return err
	}
	if err := proc.driver.MemFree(p); err != nil {
		return err
	}
	proc.addPlain(-bytes)
	return nil
}

func (e *paged) shrink(error) bool { return false } // what has no room on the card goes to the arena

// empty brings the count up to date alone: managed memory that is free is the driver's to give to whoever asks for some.
func (e *paged) empty() {
	proc := e.proc
	proc.mu.Lock()
	defer proc.mu.Unlock()
	if e.runtime != nil {
		proc.drain()
		proc.noteReserved()
	}
}

func (e *paged) segments() bool { return false }

func (e *paged) plainDriver(d stitch.Driver) stitch.Driver { return d }

// serveFront: the lock of the pool's front comes before mu, under which the arena is asked for room.
func (e *paged) serveFront(may bool) bool { return may && !e.opened.Load() }
