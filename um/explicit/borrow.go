package explicit

import "slices"

// This file is for allocations that are dead after a few operations, such as workspaces and
// transposed copies. They come in many sizes, and where memory is full one of a size that no dead
// range has would wait until memory of another size has been released, and its own created and mapped. One that repeats a short life
// borrows the smallest dead range that is larger. When it is freed, the range is again one of its own size.
// The next one like it does not borrow again: it gets memory of its own, which serves those after it without a call
// into the engine.
//
// Where shapes change none of that comes again, and all that is born borrows, for however long it lives, a range that is little
// larger; what is to come is expected to (fit), so that no memory is mapped for it.

const (
	// briefOps is how many operations an allocation lives for at most that borrows, borrowFactor how many times as large as
	// what is asked for the range may be. In the simulator 16 to 64 operations and 2 to 8 times do nearly as well (docs/experiments.md).
	briefOps     = 32
	borrowFactor = 4
	// borrowPart is the part of the budget that a range may be at most: an operation names all of it.
	borrowPart = 8
	// againOps is within how many operations of having borrowed a kind of allocation gets memory of its own.
	againOps = 64
	// mostBorrowers is how many kinds are remembered to have borrowed; when there are more all are forgotten.
	mostBorrowers = 1 << 12
	// fitPart is the part of a size by which a range may be larger for what lives on, where shapes change. Simulated, an eighth does as
	// well; a half makes jobs with little more than they need faster, and others slower, by up to a tenth.
	fitPart = 6
)

// borrow finds a dead range for an allocation that repeats the life before, if that was a short one, or for any where shapes
// change; nil when there is none, or where packs would not be made. The job frees it without keeping it for requests of the
// size that was asked for.
func (r *packer) borrow(before, bytes int64, stream int) *tensor {
	now, k := r.History.Now(), kind{WholePages(bytes), stream}
	most := r.mostBorrowed(before, k, now)
	if most <= k.size {
		return nil
	}
	var best *tensor
	for s, l := range r.dead.bySize {
		if s <= k.size || s > most || best != nil && s >= best.size {
			continue
		}
		if i := slices.IndexFunc(l, func(g *tensor) bool { return r.follows(g, stream) }); i >= 0 {
			best = l[i]
		}
	}
	if best == nil || !r.recall(best) || !r.process.SetApart(best.base, bytes, stream) {
		return nil
	}
	r.dead.remove(best)
	if len(r.borrowers) == mostBorrowers {
		clear(r.borrowers)
	}
	r.borrowers[k] = now
	r.stats.BorrowedRanges++
	return best
}

// mostBorrowed is how large a range an allocation may borrow.
func (r *packer) mostBorrowed(before int64, k kind, now int64) (most int64) {
	x := r.lives.of(before)
	brief := x != nil && x.died != notYet && x.died-x.born <= briefOps && r.roomForPacks()
	at, borrowed := r.borrowers[k]
	switch {
	case r.History.Varies():
		if most = k.size + k.size/fitPart; !brief && r.History.Lasts(k.size) > briefOps {
			break
		}
		fallthrough
	case brief && (!borrowed || now-at >= againOps):
		most = max(most, min(borrowFactor*k.size, r.config.BudgetBytes/borrowPart))
	}
	return min(most, r.BeyondLiveBytes())
}

// fit is the size of dead ranges that serve what is to come of a size: that, or where shapes change and there is none, that of
// a somewhat larger one.
func (r *packer) fit(size int64) int64 {
	if !r.History.Varies() || len(r.dead.bySize[size]) > 0 {
		return size
	}
	best, known := r.fitting[size]
	if known {
		return best
	}
	for s, l := range r.dead.bySize {
		if s > size && s <= size+size/fitPart && len(l) > 0 && (best == 0 || s < best) {
			best = s
		}
	}
	if best == 0 {
		best = size
	}
	r.fitting[size] = best
	return best
}
