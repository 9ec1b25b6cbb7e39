package livetest

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// Sink is a Sink.
type Sink struct {
	Log      []string
	Unseen   string
	progress uint64
	Timed    []Timing
}

func (s *Sink) Alloc(p cuda.Ptr, bytes int64, stream uint64) {
	s.Log = append(s.Log, "alloc")
}
func (s *Sink) Free(cuda.Ptr) { s.Log = append(s.Log, "free") }
func (s *Sink) Record(rec *hook.Record, stream uint64, name func(uint32) string, address func(uint32) (cuda.Ptr, bool)) {
	s.Log = append(s.Log, name(rec.ID))
	for _, slot := range rec.Slots {
		if _, ok := address(slot); ok {
			s.Log = append(s.Log, "names a tensor")
		}
	}
}
func (s *Sink) Move([]cuda.Range, um.Direction, time.Duration, time.Duration) {}
func (s *Sink) Progress(stream, seq uint64)                                   { s.progress = seq }
func (s *Sink) Faults([]faults.Event, faults.Lost)                            {}
func (s *Sink) Timing(seq uint64, took time.Duration) {
	s.Timed = append(s.Timed, Timing{Seq: seq, Took: took})
}
func (s *Sink) FaultSource(why string) { s.Unseen = why }
func (s *Sink) DriverSums(faults.Sums) {}
