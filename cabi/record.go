package main

import (
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
)

// recorder writes what happens to a trace. Its methods are called under the
// engine's lock, in order.
type recorder struct {
	writer *trace.Writer
	log    *zap.Logger
	began  time.Time
	ids    map[cuda.Ptr]uint64
	named  map[uint32]bool
	failed bool
}

// startRecording creates the trace.
func startRecording(path, gpu string, log *zap.Logger) (*recorder, error) {
	w, err := trace.Create(path, trace.Header{
		Source: "penstock", Command: strings.Join(os.Args, " "), GPU: gpu, Started: time.Now(),
	}, trace.WriterOptions{})
	if err != nil {
		return nil, err
	}
	return &recorder{writer: w, log: log, began: time.Now(), ids: map[cuda.Ptr]uint64{}, named: map[uint32]bool{}}, nil
}

func (r *recorder) append(e *trace.Event) {
	e.Time = time.Since(r.began)
	if err := r.writer.Append(e); err != nil && !r.failed {
		r.failed = true
		r.log.Error("the trace is not recorded any further", zap.Error(err))
	}
}

// Alloc implements live.Sink.
func (r *recorder) Alloc(id uint64, p cuda.Ptr, bytes int64, stream uint64) {
	r.ids[p] = id
	r.append(&trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: bytes, Address: uint64(p), Stream: stream})
}

// Free implements live.Sink.
func (r *recorder) Free(p cuda.Ptr) {
	id, ok := r.ids[p]
	if !ok {
		return
	}
	delete(r.ids, p)
	r.append(&trace.Event{Kind: trace.KindFree, Alloc: id})
}

// Record implements live.Sink.
func (r *recorder) Record(rec *hook.Record, stream uint64, function string, address func(slot uint32) (cuda.Ptr, bool)) {
	e := trace.Event{Stream: stream, Duration: -1, Kind: trace.KindLaunch}
	switch rec.Kind {
	case hook.Copy:
		e.Kind = trace.KindCopy
		e.Copy = map[uint32]trace.CopyKind{
			hook.CopyH2D: trace.CopyHostToDevice, hook.CopyD2H: trace.CopyDeviceToHost,
			hook.CopyD2D: trace.CopyDeviceToDevice, hook.CopyFill: trace.CopyFill,
		}[rec.ID]
	default:
		if !r.named[rec.ID] {
			r.named[rec.ID] = true
			r.append(&trace.Event{Kind: trace.KindFunction, Function: rec.ID, Name: function})
		}
		e.Function = rec.ID
	}
	for _, s := range rec.Slots {
		if p, ok := address(s); ok {
			if id, ok := r.ids[p]; ok {
				e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
			}
		}
	}
	r.append(&e)
}

// Move implements live.Sink.
func (r *recorder) Move(m *um.Move, began, ended time.Duration) {
	if m.Kind != um.MoveFetch && m.Kind != um.MoveEvict {
		return
	}
	to := trace.SideDevice
	if m.Kind == um.MoveEvict {
		to = trace.SideHost
	}
	for _, x := range m.Ranges {
		r.append(&trace.Event{Kind: trace.KindMigration, Address: uint64(x.Base), Bytes: x.Bytes, To: to, Cause: trace.CauseUser, Duration: ended - began})
	}
}

func (r *recorder) close() {
	if err := r.writer.Close(); err != nil && !r.failed {
		r.log.Error("closing the trace", zap.Error(err))
	}
}
