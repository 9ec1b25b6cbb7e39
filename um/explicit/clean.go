package explicit

import "container/list"

// This file is for chunks that leave without a copy, because the host still has
// their contents. Where the checksum is known of what a chunk was fetched from, that
// copy is kept, and when the chunk leaves again its checksum is taken: if it is the
// same, the chunk is only unmapped. So nothing has to be known of what is written by
// whom, and a copy that is kept for nothing is no risk.
//
// Kept copies are given back as soon as host memory is wanted for anything else: a
// job never lacks it for their sake.
//
// A checksum is taken in some hundredth of the time of the copy, but on the device
// that the job's kernels run on, so it is taken where it may be worth it: while copies
// hold the job up (trial.go), and of what may be unchanged. Most of what leaves dies
// once it has come back, as activations do: the first time that a chunk leaves, no
// checksum is taken. What was found changed several times in a row is let alone for a
// while, for twice as long each time.

const (
	// mostChanged is how often in a row a chunk may be found changed before it is
	// let alone: weights change once an iteration, and leave several times in it.
	mostChanged = 2
	// longestSkip is the power of two that skips end at.
	longestSkip = 6
	// skipsUnkept is for how long a chunk is let alone for whose copy there was no room.
	skipsUnkept = 4
)

// learned is what was learned of a chunk.
type learned struct {
	left    bool  // it has left before
	changed uint8 // times in a row that it was found changed
	skips   uint8 // times that it leaves before its checksum is taken again
}

// worth says whether its checksum is taken when it leaves.
func (h *learned) worth() bool { return h.left && h.skips == 0 }

// note notes how the chunk has left: compared with its host copy or not, and found
// to be the same or not.
func (h *learned) note(compared, clean bool) {
	h.left = true
	switch {
	case !compared:
		h.skips -= min(h.skips, 1)
	case clean:
		h.changed = 0
	default:
		h.changed = min(h.changed+1, longestSkip)
		if h.changed >= mostChanged {
			h.skips = 1 << h.changed
		}
	}
}

// kept are the chunks on the device whose host copy is kept, the oldest first.
type kept struct {
	chunks list.List
	bytes  int64
}

// keep keeps the host copy of a chunk that has come, or gives it back.
func (r *tensors) keep(t *tensor, c *chunk) {
	if t.Freed || c.host == nil || !r.trial.on || !c.summed || !c.learned.worth() {
		r.giveHost(c)
		return
	}
	c.kept = r.kept.chunks.PushBack(c)
	r.kept.bytes += c.bytes
}

// unkeep takes a chunk off the list, and says whether it was there: its host memory
// cannot be given to others any more.
func (r *tensors) unkeep(c *chunk) bool {
	if c.kept == nil {
		return false
	}
	r.kept.chunks.Remove(c.kept)
	r.kept.bytes -= c.bytes
	c.kept = nil
	return true
}

// takeHost takes host memory for a chunk, for which kept copies go.
func (r *tensors) takeHost(c *chunk) bool {
	host, ok := r.process.TakeHost(c.bytes)
	for !ok && r.kept.bytes > 0 {
		for given := int64(0); given < c.bytes && r.kept.bytes > 0; {
			x := r.kept.chunks.Front().Value.(*chunk)
			given += x.bytes
			x.learned.skips = skipsUnkept
			r.giveHost(x)
		}
		host, ok = r.process.TakeHost(c.bytes)
	}
	if !ok {
		return false
	}
	c.host = host
	r.stats.HostBytes += c.bytes
	return true
}

// giveHost gives a chunk's host memory back, if it has any.
func (r *tensors) giveHost(c *chunk) {
	c.summed = false
	if c.host == nil {
		return
	}
	r.unkeep(c)
	r.process.GiveHost(c.host)
	r.stats.HostBytes -= c.bytes
	c.host = nil
}
