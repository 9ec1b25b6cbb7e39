package managed

import (
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/um"
)

// tensor is one allocation of 1 MiB and more. It outlives a free that is deferred:
// the job's threads run far ahead of the GPU, so most memory that is freed is
// still to be used by operations that wait in the queue.
type tensor struct {
	um.Tensor
	first, n int32 // its blocks
	bytes    int64 // as asked for

	present  int32 // blocks on the device
	arriving int32 // blocks in a worker's hands, on their way in
	leaving  int32 // the same, on their way out
	ran      bool  // an operation that names it was let go: it may have contents
	offered  bool  // it was brought in once before anything named it
	released bool  // its blocks are free: the counts above mean nothing any more

	open int // unfinished operations that name it and may run already: it must stay

	// prior are the tensors with deferred frees whose blocks it was given while operations still needed them.
	prior []*tensor

	predicted        int64 // cached prediction of the next use
	predictedVersion uint64
	leaves           uint64 // the plan by which it is to leave
	leavesAhead      bool   // for what is only predicted
	counted          uint64 // the plan that counts on its leaving, now or later

	// for the free that comes after the last move
	freeSeq    uint64
	freeOthers []um.Mark
}

func (t *tensor) missing() int32 { return t.n - t.present }

// pinned says whether an operation that may run already uses its blocks.
func (t *tensor) pinned() bool {
	if t.open > 0 {
		return true
	}
	for _, g := range t.prior {
		if g.open > 0 {
			return true
		}
	}
	return false
}

// inherit notes a tensor with a deferred free, of whose blocks t was given some.
func (t *tensor) inherit(g *tensor) {
	for _, x := range append([]*tensor{g}, g.prior...) {
		if x.Busy() && !slices.Contains(t.prior, x) {
			t.prior = append(t.prior, x)
		}
	}
}

// forgetFinished drops prior tensors that nothing uses any more.
func (t *tensor) forgetFinished() {
	if len(t.prior) > 0 {
		t.prior = slices.DeleteFunc(t.prior, func(g *tensor) bool { return !g.Busy() })
	}
}

// away counts the blocks that a tensor's operations have to wait for, and those
// of them that nobody is bringing in.
func (r *blocks) away(t *tensor) (missing, idle int32) {
	if !t.released {
		return t.missing() + t.leaving, t.missing() - t.arriving
	}
	a := r.arena
	for b := t.first; b < t.first+t.n; b++ {
		switch {
		case a.moving[b]:
			missing++
		case !a.onDevice[b]:
			idle++
			missing++
		}
	}
	return missing, idle
}

// holder is whose contents a block has: its owner, or a freed tensor that operations
// still need, or nil when it is dead.
func (r *blocks) holder(b int32) *tensor {
	if t := r.arena.owner[b]; t != nil {
		return t
	}
	if g := r.arena.deferred[b]; g != nil && g.Busy() {
		return g
	}
	return nil
}

// ownNextUse is the position of the next operation that names the tensor, queued or predicted.
func (r *blocks) ownNextUse(t *tensor) int64 {
	if t.Busy() {
		return t.Queued.First()
	}
	return r.predictedUse(t)
}

// predictedUse is the position of the next operation that names the tensor and is
// not queued yet.
func (r *blocks) predictedUse(t *tensor) int64 {
	if v := r.History.Version() + 1; t.predictedVersion != v || t.predicted < r.History.Now() {
		t.predicted = r.History.NextUse(t.Instance)
		t.predictedVersion = v
	}
	if t.predicted == correlate.Unknown && !t.Named {
		return r.History.Now() // fresh memory is used soon
	}
	return max(t.predicted, r.History.Now()) // what is queued is known: an overdue use is still to come
}

// nextUse is the position of the next operation that needs the tensor's blocks,
// operations of freed tensors included.
func (r *blocks) nextUse(t *tensor) int64 {
	next := r.ownNextUse(t)
	for _, g := range t.prior {
		if g.Busy() {
			next = min(next, g.Queued.First())
		}
	}
	return next
}

// soonestQueued is the position of the first unfinished operation that needs the
// tensor's blocks; ok is false when there is none.
func (t *tensor) soonestQueued() (position int64, ok bool) {
	if t.Busy() {
		position, ok = t.Queued.First(), true
	}
	for _, g := range t.prior {
		if g.Busy() && (!ok || g.Queued.First() < position) {
			position, ok = g.Queued.First(), true
		}
	}
	return position, ok
}

// lastQueued is the position of the last unfinished operation that needs the
// tensor's blocks; ok is false when there is none.
func (t *tensor) lastQueued() (position int64, ok bool) {
	if t.Busy() {
		position, ok = t.Queued.Last(), true
	}
	for _, g := range t.prior {
		if g.Busy() && (!ok || g.Queued.Last() > position) {
			position, ok = g.Queued.Last(), true
		}
	}
	return position, ok
}

// candidate describes a tensor to the eviction policy.
func (r *blocks) candidate(t *tensor, blocks int32) evict.Candidate {
	c := evict.Candidate{
		NextUse:  r.nextUse(t),
		LastUse:  t.LastUse,
		Migrated: r.arena.arrived[t.first],
		Bytes:    int64(blocks) * BlockBytes,
	}
	if !t.Freed {
		c.Predicted = r.foretold[t.Slot]
	}
	return c
}

// holds says whether a block's contents are t's.
func (r *blocks) holds(t *tensor, b int32) bool {
	if t.released {
		return r.arena.owner[b] == nil && r.arena.deferred[b] == t
	}
	return true
}

// absentPieces are up to limit blocks of the tensor that are off the device and
// not moving, as runs.
func (r *blocks) absentPieces(t *tensor, limit int32) (runs []run, blocks int32) {
	a := r.arena
	for b := t.first; b < t.first+t.n && blocks < limit; b++ {
		if !a.onDevice[b] && !a.moving[b] {
			runs = extend(runs, b)
			blocks++
		}
	}
	return runs, blocks
}

// presentPieces are up to limit blocks of the tensor's own that are on the
// device and not moving, as runs.
func (r *blocks) presentPieces(t *tensor, limit int32) (runs []run, blocks int32) {
	a := r.arena
	for b := t.first; b < t.first+t.n && blocks < limit; b++ {
		if a.onDevice[b] && !a.moving[b] && r.holds(t, b) {
			runs = extend(runs, b)
			blocks++
		}
	}
	return runs, blocks
}

// run is a run of blocks.
type run struct{ first, n int32 }

func (x run) end() int32 { return x.first + x.n }

func extend(runs []run, b int32) []run {
	if k := len(runs) - 1; k >= 0 && runs[k].end() == b {
		runs[k].n++
		return runs
	}
	return append(runs, run{b, 1})
}

// ranges turns runs of blocks into addresses. Always whole blocks: a block that
// is only partly on the device would fault under the next, larger tensor in it.
func (r *blocks) ranges(runs []run) []cuda.Range {
	out := make([]cuda.Range, len(runs))
	for i, x := range runs {
		out[i] = cuda.Range{Base: r.arena.ptr(x.first), Bytes: int64(x.n) * BlockBytes}
	}
	return out
}

// runsOf turns blocks into runs by address.
func runsOf(blocks []int32) (runs []run) {
	slices.Sort(blocks)
	for _, b := range blocks {
		runs = extend(runs, b)
	}
	return runs
}
