package export

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/penstock-gpu/penstock/trace"
)

// Line is one event as JSON lines and CSV have it.
type Line struct {
	Kind       string   `json:"kind"`
	Nanos      int64    `json:"time_ns"` // since the recording began
	Duration   int64    `json:"duration_ns,omitempty"`
	Address    string   `json:"virtual_address,omitempty"`
	Bytes      int64    `json:"bytes,omitempty"`
	Access     string   `json:"access,omitempty"`
	Direction  string   `json:"direction,omitempty"` // HtoD or DtoH
	Cause      string   `json:"cause,omitempty"`
	GPU        uint8    `json:"gpu,omitempty"`
	Batch      uint32   `json:"batch,omitempty"`
	CopyEngine bool     `json:"copy_engine,omitempty"`
	Process    uint32   `json:"process,omitempty"`
	Stream     uint64   `json:"stream,omitempty"`
	Alloc      uint64   `json:"allocation,omitempty"` // of progress: the operation's number
	Function   *uint32  `json:"function,omitempty"`
	Name       string   `json:"name,omitempty"`
	Allocs     []uint64 `json:"allocations,omitempty"` // that a launch names
}

var causeNames = [...]string{"", "user", "coherence", "prefetch", "eviction", "access counters"}

func lineOf(e *trace.Event) Line {
	l := Line{Kind: e.Kind.String(), Nanos: int64(e.Time), Bytes: e.Bytes, GPU: e.GPU, Batch: e.Batch, CopyEngine: e.CopyEngine,
		Process: e.Process, Stream: e.Stream, Alloc: e.Alloc, Name: e.Name}
	if e.Duration > 0 {
		l.Duration = int64(e.Duration)
	}
	if e.Address != 0 {
		l.Address = "0x" + strconv.FormatUint(e.Address, 16)
	}
	switch e.Kind {
	case trace.KindFault, trace.KindCPUFault:
		l.Access = e.Mode.String()
	case trace.KindMigration:
		l.Direction = "DtoH"
		if e.To == trace.SideDevice {
			l.Direction = "HtoD"
		}
		if int(e.Cause) < len(causeNames) {
			l.Cause = causeNames[e.Cause]
		}
	case trace.KindLaunch, trace.KindFunction:
		l.Function = &e.Function
	}
	for _, a := range e.Accesses {
		l.Allocs = append(l.Allocs, a.Alloc)
	}
	return l
}

// JSONLines writes every event as one line of JSON.
func JSONLines(w io.Writer, in io.Reader) error {
	out := bufio.NewWriterSize(w, 1<<18)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return each(in, func(e *trace.Event) error { return enc.Encode(lineOf(e)) }, out.Flush)
}

// CSV writes the faults, migrations and lost events.
func CSV(w io.Writer, in io.Reader) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"kind", "time_ns", "duration_ns", "virtual_address", "bytes", "access", "direction", "cause", "gpu", "batch", "copy_engine", "process"}); err != nil {
		return err
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return each(in, func(e *trace.Event) error {
		switch e.Kind {
		case trace.KindFault, trace.KindMigration, trace.KindCPUFault, trace.KindThrash, trace.KindRemote, trace.KindLost:
			l := lineOf(e)
			return out.Write([]string{l.Kind, n(l.Nanos), n(l.Duration), l.Address, n(l.Bytes), l.Access, l.Direction, l.Cause, n(int64(l.GPU)), n(int64(l.Batch)), strconv.FormatBool(l.CopyEngine), n(int64(l.Process))})
		}
		return nil
	}, func() error { out.Flush(); return out.Error() })
}

// Damaged says that what was written is the part of a recording before damage.
type Damaged struct{ Err error }

func (d *Damaged) Error() string { return "only the intact part is exported: " + d.Err.Error() }
func (d *Damaged) Unwrap() error { return d.Err }

// each visits all events and then finishes; damage in the recording comes out as *Damaged after that.
func each(in io.Reader, visit func(*trace.Event) error, finish func() error) error {
	r, err := trace.NewReader(in)
	if err != nil {
		return err
	}
	return events(r, visit, finish)
}

func events(r *trace.Reader, visit func(*trace.Event) error, finish func() error) error {
	for {
		e, err := r.Next()
		if err != nil {
			if finishErr := finish(); finishErr != nil {
				return finishErr
			}
			if err != io.EOF {
				return &Damaged{err}
			}
			return nil
		}
		if err := visit(&e); err != nil {
			return fmt.Errorf("cannot write the export: %w", err)
		}
	}
}
