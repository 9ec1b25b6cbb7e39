package live

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// engine is one of those that move memory, in this process: with its threads, and what it tells the launch hook.
// Where nothing else is said, the caller does not hold the lock.
type engine interface {
	String() string
	// start starts it, if it is to serve from the first allocation on; open does when the card is full.
	start() error
	open() error
	// serving says whether large allocations are its tensors, which can leave the device; startsWhenFull whether they are
	// once the card is full.
	serving() bool
	startsWhenFull() bool

	malloc(bytes int64, stream uint64) (cuda.Ptr, error)
	// onlyFragmented says whether a request that was refused is within the budgets: it is addresses that are missing.
	onlyFragmented(bytes int64) bool
	free(p cuda.Ptr) error
	owns(p cuda.Ptr) bool
	// empty gives back what dead tensors have left on the device.
	empty()
	// segments says whether the larger segments of private pools are tensors.
	segments() bool

	// takePlain counts plain memory against the budget before the driver is asked for it, and has tensors leave for it.
	takePlain(bytes int64) error
	// plainChanged says that there is more of it, or less. The caller holds the lock.
	plainChanged()
	// acquirePlain makes a segment of it within the budget, releasePlain gives one back.
	acquirePlain(bytes int64) (cuda.Ptr, error)
	releasePlain(p cuda.Ptr, bytes int64) error
	// plainDriver is what the pool of plain memory asks for the driver.
	plainDriver(d stitch.Driver) stitch.Driver
	// shrink is told that the driver has less memory than the budget; true when tensors now make room.
	shrink(err error) bool
	// serveFront has the engine's front serve where it may, and says whether the pool's may.
	serveFront(may bool) bool

	// The caller of all that follow holds the lock.

	// listen takes in what the job has said of frees; op is told of a record of the ring, after what came before it; hearAll is
	// told that no more are there.
	listen()
	op(rec *hook.Record)
	hearAll()
	// catchUp drains until as much is known as it takes to speak of an allocation.
	catchUp()
	// timed says how long an operation took.
	timed(seq uint64, took time.Duration)
	pauseRecording()
	// progressed is how far the job is for its speed to be followed, whether nothing is being tried out, and whether
	// launches are made again.
	progressed() (m speedMark, settled, replays bool)
	// report fills in its part of a snapshot.
	report(s *Stats)

	fail(err error)
	// autopsy notes what has ended the context, if anything has.
	autopsy()
	// end ends the threads.
	end()

	// refuse has launches refused that would need what is away; the lock may be anybody's.
	refuse()
	// ended follows the end of the threads. The caller does not hold the lock.
	ended()
	// inMemory estimates what an operation would take with everything in memory, on average over an iteration of so many,
	// in seconds; 0 where that is not known. It takes the lock for a while.
	inMemory(period int64) (seconds float64)
	// assess is [Live.Judge].
	assess(s *Stats, command string)
}

// speedMark is how far the job was at a time.
type speedMark struct {
	at     time.Duration
	ops    int64
	period int64         // operations of an iteration
	memory time.Duration // until then: launches waited, or something was on its way for them, and the device may have waited
}
