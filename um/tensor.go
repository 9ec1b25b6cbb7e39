package um

import (
	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
)

// tensor is one live allocation of 1 MiB and more.
type tensor struct {
	slot     uint32
	first, n int32 // its blocks
	bytes    int64 // as asked for
	stream   int   // that it was allocated for
	instance correlate.InstanceID

	present  int32 // blocks on the device
	arriving int32 // blocks in a worker's hands, on their way in
	leaving  int32 // the same, on their way out
	named    bool  // an operation has named it
	ran      bool  // such an operation was let go: it may have contents
	offered  bool  // it was brought in once before anything named it
	freed    bool  // it is dead; operations queued before may still need its blocks

	queued  []int64 // positions of queued operations that name it, in order
	open    int     // of these, how many may run already: it must stay
	lastUse int64
	others  []int // streams other than its own that use it (record_stream)

	predicted        int64 // cached prediction of the next use
	predictedVersion uint64

	// for the free that comes after the last move
	freeSeq    uint64
	freeOthers []streamSeq
}

func (t *tensor) missing() int32 { return t.n - t.present }

// away counts the blocks that a tensor's operations have to wait for, and those
// of them that nobody is bringing in. A dead tensor has no counts of its own any
// more, and its blocks may have another owner already.
func (r *Runtime) away(t *tensor) (missing, idle int32) {
	if !t.freed {
		missing = t.missing() + t.leaving
		return missing, t.missing() - t.arriving
	}
	a := r.arena
	for b := t.first; b < t.first+t.n; b++ {
		switch {
		case !a.onDevice[b] && !a.moving[b]:
			idle++
			missing++
		case a.moving[b]:
			missing++
		}
	}
	return missing, idle
}

// nextUse is the position of the next operation that needs the tensor, queued or predicted.
func (r *Runtime) nextUse(t *tensor) int64 {
	if len(t.queued) > 0 {
		return t.queued[0]
	}
	if v := r.history.Version() + 1; t.predictedVersion != v {
		t.predicted = r.history.NextUse(t.instance)
		t.predictedVersion = v
	}
	if t.predicted == correlate.Unknown && !t.named {
		return r.history.Now() // fresh memory is used soon
	}
	return max(t.predicted, r.history.Now()) // what is queued is known: an overdue use is still to come
}

// candidate describes a tensor to the eviction policy.
func (r *Runtime) candidate(t *tensor) evict.Candidate {
	return evict.Candidate{
		NextUse:   r.nextUse(t),
		LastUse:   t.lastUse,
		Migrated:  r.arena.arrived[t.first],
		Bytes:     int64(t.n) * BlockBytes,
		Predicted: r.foretold[t.slot],
	}
}

// pieces are up to limit blocks of the tensor that are, or are not, on the
// device and not moving, as runs.
func (r *Runtime) pieces(t *tensor, onDevice bool, limit int32) (runs []run, blocks int32) {
	a := r.arena
	for b := t.first; b < t.first+t.n && blocks < limit; b++ {
		if a.onDevice[b] != onDevice || a.moving[b] {
			continue
		}
		if k := len(runs) - 1; k >= 0 && runs[k].end() == b {
			runs[k].n++
		} else {
			runs = append(runs, run{b, 1})
		}
		blocks++
	}
	return runs, blocks
}

// run is a run of blocks.
type run struct{ first, n int32 }

func (x run) end() int32 { return x.first + x.n }

// ranges turns runs of a tensor's blocks into addresses, without the unused
// tail of its last block.
func (r *Runtime) ranges(t *tensor, runs []run) []cuda.Range {
	const page = 4096
	end := r.arena.ptr(t.first) + cuda.Ptr((t.bytes+page-1)/page*page)
	out := make([]cuda.Range, 0, len(runs))
	for _, x := range runs {
		lo, hi := r.arena.ptr(x.first), min(r.arena.ptr(x.end()), end)
		out = append(out, cuda.Range{Base: lo, Bytes: int64(hi - lo)})
	}
	return out
}

func (r *Runtime) blockRanges(runs []run) []cuda.Range {
	out := make([]cuda.Range, len(runs))
	for i, x := range runs {
		out[i] = cuda.Range{Base: r.arena.ptr(x.first), Bytes: int64(x.n) * BlockBytes}
	}
	return out
}
