package explicit

import "slices"

// This file is for allocations that are dead after a few operations, such as workspaces and
// transposed copies. They come in many sizes, and where memory is full one of a size that no dead
// range has would wait until memory of another size has been released, and its own created and mapped. One that repeats a short life
// borrows the smallest dead range that is larger. When it is freed, the range is again one of its own size.
// The next one like it does not borrow again: it gets memory of its own, which serves those after it without a call
// into the engine.

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
)

// borrow finds a dead range for an allocation that repeats the life before, if that was a short one; nil when there is
// none, or where packs would not be made. The job frees it without keeping it for requests of the size that was asked for.
func (r *Runtime) borrow(before, bytes int64, stream int) *tensor {
	x := r.lives.of(before)
	if x == nil || x.died == notYet || x.died-x.born > briefOps || !r.roomForPacks() {
		return nil
	}
	now, k := r.History.Now(), x.kind()
	if at, ok := r.borrowers[k]; ok && now-at < againOps {
		return nil
	}
	size := WholePages(bytes)
	most := min(borrowFactor*size, r.config.BudgetBytes/borrowPart, r.BeyondLiveBytes())
	var best *tensor
	for s, l := range r.graves.bySize {
		if s <= size || s > most || best != nil && s >= best.size {
			continue
		}
		if i := slices.IndexFunc(l, func(g *tensor) bool { return r.follows(g, stream) }); i >= 0 {
			best = l[i]
		}
	}
	if best == nil || !r.recall(best) || !r.process.SetApart(best.base, bytes, stream) {
		return nil
	}
	r.graves.remove(best)
	if len(r.borrowers) == mostBorrowers {
		clear(r.borrowers)
	}
	r.borrowers[k] = now
	r.stats.BorrowedRanges++
	return best
}
