package live

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// recording is a Sink.
type recording struct {
	log      []string
	unseen   string
	progress uint64
	timed    []timing
}

func (s *recording) Alloc(p cuda.Ptr, bytes int64, stream uint64) {
	s.log = append(s.log, "alloc")
}
func (s *recording) Free(cuda.Ptr) { s.log = append(s.log, "free") }
func (s *recording) Record(rec *hook.Record, stream uint64, name func(uint32) string, address func(uint32) (cuda.Ptr, bool)) {
	s.log = append(s.log, name(rec.ID))
	for _, slot := range rec.Slots {
		if _, ok := address(slot); ok {
			s.log = append(s.log, "names a tensor")
		}
	}
}
func (s *recording) Move([]cuda.Range, um.Direction, time.Duration, time.Duration) {}
func (s *recording) Progress(stream, seq uint64)                                   { s.progress = seq }
func (s *recording) Faults([]faults.Event, faults.Lost)                            {}
func (s *recording) Timing(seq uint64, took time.Duration) {
	s.timed = append(s.timed, timing{seq: seq, took: took})
}
func (s *recording) FaultSource(why string) { s.unseen = why }
func (s *recording) DriverSums(faults.Sums) {}
