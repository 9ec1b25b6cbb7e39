package live

import (
	"errors"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/trace"
)

// faultFeed counts what the driver reports of faults and migrations.
type faultFeed struct {
	source *faults.Queue // nil where the driver's event queue cannot be had
	events []faults.Event

	faults, batches    int64
	lastBatch          uint32
	h2dBytes, d2hBytes int64 // by every cause
	faultedBytes       int64 // brought in by demand faults and the driver's own prefetch
	evictedBytes       int64 // taken out by the driver's own eviction
}

// openFaults subscribes to the driver's events, or says why it cannot.
func (l *Live) openFaults() {
	var o faults.Options
	if l.space != nil {
		o.SpaceFD = l.space.FD()
	}
	s, err := faults.Open(o)
	if err != nil {
		var no *faults.Unavailable
		if errors.As(err, &no) {
			l.log.Info("page faults cannot be seen here", zap.String("why", no.Why), zap.String("what_to_do", no.WhatToDo))
		} else {
			l.log.Warn("page faults cannot be seen here", zap.Error(err))
		}
		return
	}
	l.faults.source = s
}

func (l *Live) closeFaults() {
	if s := l.faults.source; s != nil {
		if err := s.Flush(); err == nil {
			l.mu.Lock()
			l.feedFaults()
			l.mu.Unlock()
		}
		if err := s.Close(); err != nil {
			l.log.Debug("closing the fault source", zap.Error(err))
		}
	}
}

// feedFaults reads the driver's events. The caller holds the lock.
func (l *Live) feedFaults() {
	f := &l.faults
	if f.source == nil {
		return
	}
	f.events = f.source.Drain(f.events[:0])
	for i := range f.events {
		e := &f.events[i]
		switch e.Kind {
		case trace.KindFault:
			f.faults++
			if f.batches == 0 || e.Batch != f.lastBatch {
				f.batches++
				f.lastBatch = e.Batch
			}
		case trace.KindMigration:
			toDevice := e.To != 0 // processor 0 is the CPU
			if toDevice {
				f.h2dBytes += e.Bytes
			} else {
				f.d2hBytes += e.Bytes
			}
			switch e.Cause {
			case trace.CauseCoherence, trace.CausePrefetch:
				if toDevice {
					f.faultedBytes += e.Bytes
				}
				// Demand faults bring in pages; the ledger follows in whole blocks.
				l.runtime.Migrated(cuda.Range{Base: cuda.Ptr(e.Address), Bytes: e.Bytes}, toDevice)
			case trace.CauseEviction:
				f.evictedBytes += e.Bytes
				l.runtime.Migrated(cuda.Range{Base: cuda.Ptr(e.Address), Bytes: e.Bytes}, false)
			}
		}
	}
}
