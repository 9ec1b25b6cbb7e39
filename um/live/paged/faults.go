package paged

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// faultFeed counts what the driver reports of faults and migrations.
type faultFeed struct {
	source   *faults.Queue    // nil where the driver's event queue cannot be had
	counters *faults.Counters // while recording; nil where they cannot be had
	events   []faults.Event
	lastAt   time.Time // of a fault, while recording
	stop     chan struct{}

	faults, batches    int64
	lastBatch          uint32
	h2dBytes, d2hBytes int64 // by every cause
	faultedBytes       int64 // brought in by demand faults and the driver's own prefetch
	evictedBytes       int64 // taken out by the driver's own eviction
}

// openFaults subscribes to the driver's events, or says why it cannot.
func (e *Engine) openFaults() {
	proc := e.proc
	var o faults.Options
	if e.space != nil {
		o.SpaceFD = e.space.FD()
	}
	if proc.Sink != nil {
		o.Kinds = faults.Everything
	}
	s, err := faults.Open(o)
	if proc.Sink != nil {
		why := ""
		if err != nil {
			why = err.Error()
		}
		proc.Sink.FaultSource(why)
	}
	if err != nil {
		var no *faults.Unavailable
		if errors.As(err, &no) {
			proc.Log.Info("page faults cannot be seen here", zap.String("why", no.Why), zap.String("what_to_do", no.WhatToDo))
		} else {
			proc.Log.Warn("page faults cannot be seen here", zap.Error(err))
		}
		return
	}
	e.faults.source = s
	if proc.Sink == nil {
		return
	}
	if e.faults.counters, err = s.Counters(); err != nil {
		proc.Log.Info("the driver's own sums are not recorded", zap.Error(err))
	}
	e.faults.stop = make(chan struct{})
	proc.Threads.Add(1)
	go e.flushFaults()
}

// While recording, progress is asked for more closely as long as kernels fault,
// so that faults find their kernels; and the driver is made to tell of
// migrations that are over, so that they are recorded near their time.
const (
	progressWhileFaulting = 1
	faultingLasts         = 100 * time.Millisecond
	flushEvery            = 50 * time.Millisecond
)

func (e *Engine) flushFaults() {
	proc := e.proc
	defer proc.Threads.Done()
	for tick := time.NewTicker(flushEvery); ; {
		select {
		case <-e.faults.stop:
			tick.Stop()
			return
		case <-tick.C:
			proc.Mu.Lock()
			paused := proc.Paused
			proc.Mu.Unlock()
			if paused {
				continue
			}
			if err := e.faults.source.Flush(); err != nil {
				proc.Log.Debug("flushing the driver's events", zap.Error(err))
			}
		}
	}
}

// recordFaults hands what was drained to the sink. The caller holds the lock.
func (e *Engine) recordFaults() {
	proc := e.proc
	f := &e.faults
	if len(f.events) > 0 {
		proc.Progress() // what had finished when these were read
		proc.Sink.Faults(f.events, f.source.Lost())
	}
	if proc.Hook == nil || proc.ProgressWords == 0 {
		return
	}
	faulting := slices.ContainsFunc(f.events, func(e faults.Event) bool { return e.Kind == trace.KindFault })
	switch now := time.Now(); {
	case faulting && f.lastAt.IsZero():
		proc.Hook.SetProgressEvery(progressWhileFaulting)
		f.lastAt = now
	case faulting:
		f.lastAt = now
	case !f.lastAt.IsZero() && now.Sub(f.lastAt) > faultingLasts:
		e.askSeldom()
	}
}

// askSeldom ends asking for progress more closely. The caller holds the lock.
func (e *Engine) askSeldom() {
	if e.faults.lastAt.IsZero() {
		return
	}
	e.proc.Hook.SetProgressEvery(process.ProgressEvery)
	e.faults.lastAt = time.Time{}
}

func (e *Engine) closeFaults() {
	proc := e.proc
	if s := e.faults.source; s != nil {
		if err := s.Flush(); err == nil {
			proc.Mu.Lock()
			e.feedFaults()
			proc.Mu.Unlock()
		}
		if c := e.faults.counters; c != nil {
			proc.Mu.Lock()
			proc.Sink.DriverSums(c.Read())
			proc.Mu.Unlock()
			if err := c.Close(); err != nil {
				proc.Log.Debug("closing the driver's counters", zap.Error(err))
			}
		}
		if err := s.Close(); err != nil {
			proc.Log.Debug("closing the fault source", zap.Error(err))
		}
	}
}

// feedFaults reads the driver's events. The caller holds the lock.
func (e *Engine) feedFaults() {
	f := &e.faults
	if f.source == nil {
		return
	}
	f.events = f.source.Drain(f.events[:0])
	if e.proc.Sink != nil && !e.proc.Paused {
		e.recordFaults()
	}
	e.count(f.events)
}

// count sums up what the driver did by itself, and has the ledger follow. The caller holds the lock.
func (e *Engine) count(events []faults.Event) {
	f := &e.faults
	for i := range events {
		x := &events[i]
		switch x.Kind {
		case trace.KindFault:
			f.faults++
			if f.batches == 0 || x.Batch != f.lastBatch {
				f.batches++
				f.lastBatch = x.Batch
			}
		case trace.KindMigration:
			toDevice := x.To != 0 // processor 0 is the CPU
			if toDevice {
				f.h2dBytes += x.Bytes
			} else {
				f.d2hBytes += x.Bytes
			}
			switch x.Cause {
			case trace.CauseCoherence, trace.CausePrefetch:
				if toDevice {
					f.faultedBytes += x.Bytes
				}
				// Demand faults bring in pages; the ledger follows in whole blocks.
				e.runtime.Migrated(cuda.Range{Base: cuda.Ptr(x.Address), Bytes: x.Bytes}, toDevice)
			case trace.CauseEviction:
				f.evictedBytes += x.Bytes
				e.runtime.Migrated(cuda.Range{Base: cuda.Ptr(x.Address), Bytes: x.Bytes}, false)
			}
		}
	}
}
