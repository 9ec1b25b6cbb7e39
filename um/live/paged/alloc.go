package paged

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/stitch"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// Malloc allocates from the arena.
func (e *Engine) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	proc := e.proc
	proc.Lock()
	defer proc.Mu.Unlock()
	proc.Drain()
	p, err := e.runtime.Malloc(bytes, proc.Streams.Number(stream))
	if err != nil && e.reuseMayHelp(bytes) {
		proc.Counts.Retries.Add(1)
		p, err = e.mallocWhenReusable(bytes, stream, err)
	}
	if err == nil {
		e.deaths.born(p, bytes)
		proc.TensorLive.Add(bytes)
		proc.NoteReserved()
	}
	return p, err
}

// OnlyFragmented says whether an allocation that the arena refused is within the
// budgets: then it is address space that is missing, in one piece.
func (e *Engine) OnlyFragmented(bytes int64) bool {
	proc := e.proc
	return proc.LiveBytes()+bytes <= proc.Budget+proc.HostBudget() && proc.TensorLive.Load()+bytes <= e.arenaBytes
}

// reuseMayHelp says whether an allocation failed only because dead memory is
// still in the hands of queued work or of a worker. The caller holds the lock.
func (e *Engine) reuseMayHelp(bytes int64) bool {
	proc := e.proc
	return proc.Hook != nil && proc.Failed == nil && (e.runtime.Queued() > 0 || e.runtime.FreeMoves()) && e.runtime.LiveBytes()+bytes <= min(proc.Budget+proc.HostBudget(), e.arenaBytes)
}

// mallocWhenReusable tries again while work finishes that was queued before, however long that takes, as a caching
// allocator waits for its events before it says that it is out of memory. The
// caller holds the lock, which is released between attempts.
func (e *Engine) mallocWhenReusable(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	proc := e.proc
	last, finished := proc.Hook.Read(), time.Now()
	var waited process.Idle
	var nagger process.Nagger
	checked := finished
	// Also while a worker has dead memory in its hands, which may have been idle for just a moment.
	for !proc.Closing && proc.Failed == nil && time.Since(finished) < process.IdleWait {
		proc.Mu.Unlock()
		proc.Hook.ReportAll() // or the last thing that streams have done would not be known to be over
		var ended error
		if time.Since(checked) > process.CheckPatience { // nothing finishes any more when the context has ended
			_, _, ended = proc.Driver.MemInfo()
			checked = time.Now()
		}
		proc.Mu.Lock()
		if ended != nil {
			return 0, ended
		}
		proc.Yield(0)
		if e.runtime.Queued() == 0 && proc.Hook.Head() == proc.Hook.Read() {
			e.runtime.Quiet()
		}
		var p cuda.Ptr
		if p, err = e.runtime.Malloc(bytes, proc.Streams.Number(stream)); err == nil {
			return p, nil
		}
		now := time.Now()
		if !e.runtime.AllFinished(last) || e.runtime.FreeMoves() {
			finished = now
		}
		if nagger.Due(waited.Look(now)) {
			proc.Log.Warn("an allocation waits for memory that is in use", zap.Duration("for", waited.Round(time.Second)), zap.Int64("bytes", bytes))
		}
	}
	return 0, err
}

// makeRoom lets tensors leave for plain memory that has been counted and is about to be
// taken, until it fits beside what is on the device, or until waiting longer makes no
// sense: then the device holds so much more than the budget for a while. The caller
// holds the lock, which is released meanwhile.
func (e *Engine) makeRoom(bytes int64) {
	proc := e.proc
	e.plainDue += bytes
	e.tellPlain()
	var waited process.Idle
	for proc.Hook != nil && e.runtime.RoomBytes() < 0 && proc.Failed == nil && !proc.Closing && waited.Look(time.Now()) < roomPatience {
		e.work[um.Out].Signal()
		proc.Mu.Unlock()
		time.Sleep(process.BusyWait)
		proc.Mu.Lock()
	}
	e.plainDue -= bytes
	e.tellPlain()
}

// tellPlain tells the managed engine's runtime of plain memory. The caller holds the lock.
func (e *Engine) tellPlain() {
	e.runtime.SetPlainBytes(e.proc.PlainBytes.Load()-e.plainDue, e.plainDue)
}

func (e *Engine) TakePlain(bytes int64) error {
	proc := e.proc
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	budget := proc.PlainBudget.Load()
	if n := proc.PlainBytes.Load(); n+bytes > budget {
		return fmt.Errorf("%w: %d bytes of plain device memory asked for with %d of the budget of %d in use", um.ErrOutOfMemory, bytes, n, budget)
	}
	proc.PlainBytes.Add(bytes)
	if e.runtime != nil {
		e.makeRoom(bytes)
	}
	return nil
}

func (e *Engine) PlainChanged() {
	if e.runtime != nil {
		e.tellPlain()
	}
}

func (e *Engine) AcquirePlain(bytes int64) (cuda.Ptr, error) {
	proc := e.proc
	if err := e.TakePlain(bytes); err != nil {
		return 0, err
	}
	err := proc.Driver.BindThread()
	if err == nil {
		var p cuda.Ptr
		if p, err = proc.Driver.MemAlloc(bytes); err == nil {
			return p, nil
		}
		err = fmt.Errorf("%w: %w", um.ErrOutOfMemory, err)
	}
	proc.AddPlain(-bytes)
	return 0, err
}

func (e *Engine) ReleasePlain(p cuda.Ptr, bytes int64) error {
	proc := e.proc
	if err := proc.Driver.BindThread(); err != nil {
		return err
	}
	if err := proc.SynchronizeOthers(); err != nil { // cuMemFree waits for work of its own context
		return err
	}
	if err := proc.Driver.MemFree(p); err != nil {
		return err
	}
	proc.AddPlain(-bytes)
	return nil
}

func (e *Engine) Shrink(error) bool { return false } // what has no room on the card goes to the arena

// Empty brings the count up to date alone: managed memory that is free is the driver's to give to whoever asks for some.
func (e *Engine) Empty() {
	proc := e.proc
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	if e.runtime != nil {
		proc.Drain()
		proc.NoteReserved()
	}
}

func (e *Engine) PlainDriver(d stitch.Driver) stitch.Driver { return d }

// ServeFront: the lock of the pool's front comes before Mu, under which the arena is asked for room.
func (e *Engine) ServeFront(may bool) bool { return may && !e.opened.Load() }
