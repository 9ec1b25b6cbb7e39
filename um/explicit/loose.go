package explicit

import "github.com/penstock-gpu/penstock/cuda"

// This file is for packs of allocations that repeat none that is known: parameters, and what an
// optimizer keeps for them, are made before an iteration has been seen, stay, and are of sizes
// that whole pages of 2 MiB fit badly. Those that come one after the other share ranges.
// What else is in such a pack soon dies, and leaves a hole: no more packs are made while they
// take more memory than their allocations would by themselves.

const (
	// looseBytes is the size of such a pack, looseMost of an allocation in it at most.
	looseBytes = 16 << 20
	looseMost  = 4 << 20
	// looseOdd is the part of an allocation that rounding adds at least, for it to be in one.
	looseOdd = 16
)

// mallocLoose allocates a part of such a pack, for what repeats the life before; 0 when it is to be no part of one.
// Where shapes change hardly anything repeats one, and most of it soon dies.
func (r *packer) mallocLoose(before, bytes int64, stream int) cuda.Ptr {
	if !r.config.Packs || before != noLife || r.History.Varies() || bytes > looseMost || !odd(bytes, looseOdd) {
		return 0
	}
	t := r.loose[stream]
	if t == nil || t.Freed || t.retained || t.filled()+bytes > t.size {
		if t = r.newLoose(stream); t == nil {
			return 0
		}
	}
	p := r.appendPart(t, bytes, stream)
	if p == nil {
		return 0
	}
	r.fillPart(t, p)
	r.looseExcess -= WholePages(bytes)
	return t.place(p).Base
}

// newLoose makes an empty pack, nil when there is no room.
func (r *packer) newLoose(stream int) *tensor {
	size := min(looseBytes, r.config.ChunkBytes)
	if r.looseExcess > 0 || size < 2*looseMost || size > r.BeyondLiveBytes() || !r.roomForPacks() {
		return nil
	}
	t, ok := r.newTensor(noLife, size, stream)
	if !ok {
		return nil
	}
	t.parts, t.loose = []part{}, true
	r.loose[stream] = t
	r.looseExcess += size
	r.stats.Packs++
	return t
}

// filled is where the next part of a pack may lie.
func (t *tensor) filled() int64 {
	if len(t.parts) == 0 {
		return 0
	}
	last := t.parts[len(t.parts)-1]
	return last.offset + wholeUnits(last.bytes)
}
