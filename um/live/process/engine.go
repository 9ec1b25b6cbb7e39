package process

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool/stitch"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// Engine is one of those that move memory, in this process: with its threads, and what it tells the launch hook.
// Where nothing else is said, the caller does not hold the lock.
type Engine interface {
	String() string
	// Start starts it, if it is to serve from the first allocation on; Open does when the card is full.
	Start() error
	Open() error
	// Serving says whether large allocations are its tensors, which can leave the device; StartsWhenFull whether they are
	// once the card is full.
	Serving() bool
	StartsWhenFull() bool

	Malloc(bytes int64, stream uint64) (cuda.Ptr, error)
	// OnlyFragmented says whether a request that was refused is within the budgets: it is addresses that are missing.
	OnlyFragmented(bytes int64) bool
	Free(p cuda.Ptr) error
	Owns(p cuda.Ptr) bool
	// Empty gives back what dead tensors have left on the device.
	Empty()

	// TakePlain counts plain memory against the budget before the driver is asked for it, and has tensors leave for it.
	TakePlain(bytes int64) error
	// PlainChanged says that there is more of it, or less. The caller holds the lock.
	PlainChanged()
	// AcquirePlain makes a segment of it within the budget, ReleasePlain gives one back.
	AcquirePlain(bytes int64) (cuda.Ptr, error)
	ReleasePlain(p cuda.Ptr, bytes int64) error
	// PlainDriver is what the pool of plain memory asks for the driver.
	PlainDriver(d stitch.Driver) stitch.Driver
	// Shrink is told that the driver has less memory than the budget; true when tensors now make room.
	Shrink(err error) bool
	// ServeFront has the engine's front serve where it may, and says whether the pool's may.
	ServeFront(may bool) bool

	// The caller of all that follow holds the lock.

	// Listen takes in what the job has said of frees; Op is told of a record of the ring, after what came before it; HearAll is
	// told that no more are there.
	Listen()
	Op(rec *hook.Record)
	HearAll()
	// CatchUp drains until as much is known as it takes to speak of an allocation.
	CatchUp()
	// Timed says how long an operation took.
	Timed(seq uint64, took time.Duration)
	PauseRecording()
	// Progressed is how far the job is for its speed to be followed, whether nothing is being tried out, and whether
	// launches are made again.
	Progressed() (m SpeedMark, settled, replays bool)
	// Report fills in its part of a snapshot.
	Report(s *stats.Stats)

	Fail(err error)
	// Autopsy notes what has ended the context, if anything has.
	Autopsy()
	// End ends the threads.
	End()

	// Refuse has launches refused that would need what is away; the lock may be anybody's.
	Refuse()
	// Ended follows the end of the threads. The caller does not hold the lock.
	Ended()
	// InMemory estimates what an operation would take with everything in memory, on average over an iteration of so many,
	// in seconds; 0 where that is not known. It takes the lock for a while.
	InMemory(period int64) (seconds float64)
	// Assess adds how near a job that has ended came to an oracle: it is live.Live.Judge.
	Assess(s *stats.Stats, command string)
}

// SpeedMark is how far the job was at a time.
type SpeedMark struct {
	At     time.Duration
	Ops    int64
	Period int64         // operations of an iteration
	Memory time.Duration // until then: launches waited, or something was on its way for them, and the device may have waited
}
