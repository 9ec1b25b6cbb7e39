package faults

import (
	"errors"
	"io"
	"sync"

	"github.com/penstock-gpu/penstock/trace"
)

// Recording is a Source that plays back the events of a recorded trace, a
// bounded number at each Drain. Times are relative to OriginNanos, which is the
// clock that the trace was recorded under, or 0.
type Recording struct {
	mu     sync.Mutex
	reader *trace.Reader
	origin int64
	kinds  Kinds
	lost   uint64
	err    error
}

// drainAtOnce bounds what one Drain of a recording returns.
const drainAtOnce = 1 << 14

// OpenRecording plays back a recording. in is read until the end or damage; Err tells which.
func OpenRecording(in io.Reader) (*Recording, error) {
	r, err := trace.NewReader(in)
	if err != nil {
		return nil, err
	}
	return &Recording{reader: r, origin: r.Header().ClockNanos, kinds: Everything}, nil
}

// Header says where the recording comes from.
func (r *Recording) Header() trace.Header { return r.reader.Header() }

// Drain implements Source. It returns nothing only at the end.
func (r *Recording) Drain(dst []Event) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := 0; n < drainAtOnce && r.err == nil; {
		e, err := r.reader.Next()
		if err != nil {
			r.err = err
			break
		}
		if e.Kind == trace.KindLost && e.Bytes > 0 {
			r.lost += uint64(e.Bytes)
		}
		if out, ok := fromTrace(&e, r.origin); ok {
			dst = append(dst, out)
			n++
		}
	}
	return dst
}

// fromTrace undoes Event.Trace; false for what is no event of a source.
func fromTrace(e *trace.Event, origin int64) (Event, bool) {
	out := Event{Kind: e.Kind, Address: e.Address, BeginNanos: origin + int64(e.Time), Process: e.Process}
	out.EndNanos = out.BeginNanos
	gpu := Processor(max(1, e.GPU))
	switch e.Kind {
	case trace.KindFault:
		out.Access, out.GPU, out.Batch, out.CopyEngine = accessOf(e.Mode), gpu, e.Batch, e.CopyEngine
	case trace.KindCPUFault:
		out.Access = accessOf(e.Mode)
	case trace.KindMigration:
		out.Bytes, out.Cause = e.Bytes, e.Cause
		out.EndNanos += max(0, int64(e.Duration))
		if e.To == trace.SideDevice {
			out.To = gpu
		} else {
			out.From = gpu
		}
	case trace.KindThrash:
		out.Bytes = e.Bytes
	case trace.KindRemote:
		out.Bytes = e.Bytes
		if e.To == trace.SideDevice {
			out.From = gpu
		} else {
			out.To = gpu
		}
	default:
		return Event{}, false
	}
	return out, true
}

func accessOf(m trace.AccessMode) Access {
	switch m {
	case trace.AccessRead:
		return AccessRead
	case trace.AccessWrite:
		return AccessWrite
	case trace.AccessReadWrite:
		return AccessAtomic
	}
	return AccessInvalid
}

// Flush implements Source; there is nothing to do.
func (r *Recording) Flush() error { return nil }

// Lost implements Source: what the recorder lost.
func (r *Recording) Lost() Lost {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Lost{Driver: r.lost}
}

// Coverage implements Source.
func (r *Recording) Coverage() Coverage {
	c := Coverage{Source: "recording", Kinds: r.kinds}
	if lacks := r.reader.Header().Lacks; lacks != "" {
		c.Lacks = []string{lacks}
	}
	return c
}

// Err is what ended the recording: nil at its end or before it, a *trace.DamageError at damage.
func (r *Recording) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// Close implements Source.
func (r *Recording) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = io.EOF
	}
	return nil
}
