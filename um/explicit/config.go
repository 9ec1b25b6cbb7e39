package explicit

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/um"
)

// PageBytes is the granularity of physical memory.
const PageBytes = 2 << 20

// Config says how a Runtime behaves.
type Config struct {
	BudgetBytes     int64      // device memory for tensors and plain memory together
	HostBudgetBytes int64      // pinned host memory for what does not fit
	Addresses       cuda.Range // reserved address space for tensors
	Victims         evict.Policy
	Ahead           bool  // fetch what predicted operations name, not only queued ones
	ChunkBytes      int64 // unit of moving, of which twice as much is never reached; 0 = a 16th of the budget, 8 to 64 MiB
	Depth           int   // moves out at a time, and half of those in; one fewer are fetched ahead of need; 0 = 4
	// LookaheadBytes is the most that is fetched ahead of need at a time; 0 = as much as fits.
	LookaheadBytes int64
	Packs          bool      // allocations that come and go together share ranges: see pack.go
	Replay         um.Replay // what is made again instead of moved, which takes Checksums: see again.go
	Level          Level     // how much is: see level.go
	// ScratchBytes is how much plain memory there is to verify in what is to be made again: what contains more is moved. There is
	// [TempsBytes] of it besides, to make it.
	ScratchBytes int64
	// TrustAfter is how often what a function makes must have been the same for it to be relied on without a copy; 0 = 64.
	TrustAfter int
	// MostWrong is how many verifications of a function may fail beside an eighth of them before it is banned; 0 = 1.
	MostWrong int
	// ProveAfter is how often recipes that are alike must have been verified for others like them not to be; 0 = 16.
	ProveAfter int
	// Checksums says that who carries out moves can take checksums (Move.Checksum).
	// Without them everything that leaves is copied.
	Checksums bool
}

const (
	leastChunkBytes = 8 << 20
	mostChunkBytes  = 64 << 20
	budgetChunks    = 16
	defaultDepth    = 4
)

func (c Config) withDefaults() Config {
	c.ChunkBytes = c.chunkBytes()
	if c.Depth == 0 {
		c.Depth = defaultDepth
	}
	if c.MostWrong == 0 {
		c.MostWrong = mostWrong
	}
	if c.TrustAfter == 0 {
		c.TrustAfter = trustAfter
	}
	if c.ProveAfter == 0 {
		c.ProveAfter = proveAfter
	}
	if c.Victims == nil {
		c.Victims = evict.NextUse
	}
	return c
}

func (c *Config) chunkBytes() int64 {
	n := c.ChunkBytes
	if n == 0 {
		for n = leastChunkBytes; n < mostChunkBytes && 2*budgetChunks*n <= c.BudgetBytes; {
			n *= 2
		}
	}
	return n
}

// State is where a tensor is, as the launch hook sees it.
type State int

// States of a tensor.
const (
	Absent   State = iota // a launch must wait for it
	Arriving              // mapped, and the copy in is submitted: the stream waits for the ticket
	Resident              // all of it can be used
	Guarded               // all of it can be read, and a launch that may write must wait: see guard.go
)

// Process is what a Runtime needs from the process around it: the launch hook of
// a real one, or the replayer of a simulated one.
type Process interface {
	// Publish says which slot owns a range of addresses; it is absent until SetState.
	Publish(slot uint32, r cuda.Range)
	// Withdraw ends a slot's ownership.
	Withdraw(slot uint32, r cuda.Range)
	// SetState publishes where a slot's tensor is. The ticket counts for Arriving.
	SetState(slot uint32, s State, ticket uint32)
	// LastSeq is the newest operation that named a slot, reported or not.
	LastSeq(slot uint32) uint64
	// Recall takes a dead range back that [Runtime.Hold] was told of, so that the job does
	// not take it again; false when it has, or may have.
	Recall(p cuda.Ptr) bool
	// Offer lets the job take a dead range without asking, for work on a stream, as after
	// [Runtime.Hold]; false when it takes none.
	Offer(r cuda.Range, stream int) bool
	// SetApart says that an allocation is about to be given out that the job must not take again
	// when it has freed it; the free is told by [Runtime.Hold] or [Runtime.Free]. False when that cannot be
	// made sure of.
	SetApart(p cuda.Ptr, bytes int64, stream int) bool
	// Reserve has the job take a range without asking, as after SetApart, for the allocation of a size, in
	// whole pages, and stream that comes after so many others of that kind, if it has no more bytes than the range:
	// then [Runtime.Retake] tells so. Until then Recall takes it back. False when nothing is kept.
	Reserve(r cuda.Range, size int64, stream, after int) bool
	// TakeHost takes pinned host memory for a chunk; ok is false when there is none.
	TakeHost(bytes int64) (extents []cuda.Range, ok bool)
	// GiveHost gives it back.
	GiveHost(extents []cuda.Range)
	// GiveClones gives back the device memory of [Move.Clones], which no launch reads any more.
	GiveClones(clones []cuda.Range)
	// EndReplay says that nothing is made again any more: the memory for that, ScratchBytes and what goes with it, is not needed.
	EndReplay()
	// Now is the time, for accounting.
	Now() time.Duration
}
