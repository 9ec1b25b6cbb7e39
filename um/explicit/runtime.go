package explicit

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// Runtime is the engine: the floors below and, on top of them, what is asked of it. See the package comment.
type Runtime struct{ scheduler }

// Stats counts what a Runtime did.
type Stats struct {
	um.Stats
	Maps, Reclaims               int64
	Created, Released            int64                     // physical handles
	CleanBytes                   int64                     // that left without a copy
	Dropped, DroppedBytes, Wrong int64                     // chunks that can be made again, with or without a copy, and those that were found wrong when they were to leave
	CopiedBytes                  [Causes]int64             // what was copied out instead of being dropped, by cause
	Verified                     int64                     // recipes that were tried
	Level                        Level                     // how much is made again
	Took                         [levelCount]time.Duration // an iteration at each level, when it was last tried
	Trying                       bool                      // at the levels in turn
	BannedKernels                []string                  // of the functions of recipes that are not used any more
	Recorded, Trusted, Banned    int                       // functions of recipes that were tried, those that have been right often enough, and those that are not used any more
	GuardWaits                   int64                     // operations that waited for what is made of what they may write to
	Made, MadeBytes, Unmade      int64                     // moves in that made what left again, and those that did not succeed
	InPlaceBytes                 int64                     // that launches used in host memory
	HostBytes, KeptBytes         int64                     // host memory in use, and what of it is given back when it is wanted
	HostPeakBytes                int64                     // host memory in use but for that, at most
	WaitedOps                    int64
	WaitedForMap, WaitedForFetch int64 // of these: for fresh memory, for contents that nobody was bringing
	WaitedForLeaving             int64 // for contents on their way out
	WaitedForeach                int64 // of all that waited: of PyTorch's operations on many tensors at once
	ReusedRanges, FreshRanges    int64 // allocations that found mapped memory, and those that did not
	LooksAgain                   int64 // nothing had moved for a launch that waited: see LookAgain
	Bursts                       int64 // dead ranges that allocations shared: see burst.go
	BorrowedRanges               int64 // allocations that found some of a larger size: see borrow.go
	AliasedRanges                int64 // dead ranges again, at an alias of memory that had become free: see alias.go
	Packs, PackedAllocs          int64 // ranges that allocations shared, and these: see pack.go
	TakenBack                    int64 // evictions that a launch came before
}

var _ um.Engine = (*Runtime)(nil)

// New returns a Runtime over reserved addresses.
func New(c Config, p Process) *Runtime {
	c = c.withDefaults()
	r := &Runtime{}
	r.config, r.process = c, p
	r.addresses, r.physical, r.dead = newAddresses(c.Addresses), physical{spare: map[int64][]cuda.Handle{}, aliases: map[cuda.Handle][]*tensor{}}, newDeadRanges()
	r.held, r.whole = map[cuda.Ptr]*tensor{}, map[int64]bool{}
	r.picked = map[int64]int{}
	r.again, r.levels = newAgain(c.MostWrong), newLevels(c.Level)
	r.open = map[int][]open{}
	r.reserved, r.loose, r.borrowers, r.fitting, r.bursting = map[cuda.Ptr]*tensor{}, map[int]*tensor{}, map[kind]int64{}, map[int64]int64{}, map[int64]int{}
	r.born, r.covered, r.leavingOf = map[int64]int{}, map[int64]int{}, map[int64]int{}
	r.Init(p)
	return r
}

// Malloc allocates for work on a stream.
func (r *Runtime) Malloc(bytes int64, stream int) (cuda.Ptr, error) {
	if bytes <= 0 || bytes > r.addresses.Bytes {
		return 0, r.outOfMemory(bytes)
	}
	if !r.mayGrow(WholePages(bytes)) {
		return 0, r.outOfMemory(bytes)
	}
	before := r.repeats(bytes, stream)
	p := r.mallocPacked(before, stream)
	if p == 0 {
		p = r.mallocLoose(before, bytes, stream)
	}
	if p == 0 {
		p = r.mallocShared(bytes, stream)
	}
	if p == 0 {
		t, ok := r.newTensor(before, bytes, stream)
		if !ok {
			return 0, r.outOfMemory(bytes)
		}
		p = t.base
		t.life = r.enter(t, t.Instance, p, bytes, before)
	}
	r.prepare(before)
	return p, nil
}

// Free takes an allocation back. Operations reported before may still use it.
func (r *Runtime) Free(p cuda.Ptr) error {
	t, err := r.Find(p)
	if err != nil {
		return err
	}
	if t.parts != nil {
		r.freePart(t, p)
		return nil
	}
	r.leave(t, p, t.bytes, t.life, t.Named)
	r.end(t)
	return nil
}

// Unwritten says whether no other operation has come since the live allocation that an address lies in was born
// than the one with that seq, which has not been launched: it can find nothing there, whatever was left behind.
// That is known of a part of a pack as long as its life is remembered.
func (r *Runtime) Unwritten(p cuda.Ptr, seq uint64) bool {
	t, x := r.at(p), r.find(seq)
	if t == nil || x == nil {
		return false
	}
	if t.parts == nil {
		return t.born == x.Position
	}
	part := t.partAt(p)
	if part == nil {
		return false
	}
	l := r.lives.of(part.life)
	return l != nil && l.born == x.Position
}

// Stats reports counters.
func (r *Runtime) Stats() Stats {
	s := r.stats
	r.Account(&s.Stats, r.deviceBytes())
	s.KeptBytes = r.kept.bytes
	s.Level, s.Took, s.Trying = r.levels.at, r.levels.took, r.levels.trying
	s.Recorded, s.Trusted, s.BannedKernels = r.again.functions(r.config.TrustAfter)
	s.Banned = len(s.BannedKernels)
	return s
}
