package correlate

import "slices"

// Where shapes change, allocations share ranges of memory, and other ones share them each time: what repeats are the allocations, and not
// what they share. Such a range is a group: an operation that touches it is taken to touch all that lives in it, for more is not
// known; it is next used when the first of these is.

// group is what shares a range now.
type group struct {
	id      InstanceID
	members []InstanceID
}

// Group returns the name of a group that nothing is in.
func (h *History) Group() InstanceID {
	id := h.newInstance()
	in := h.instance(id)
	*in = instance{born: Never, died: noPosition, uses: in.uses[:0], gen: in.gen, live: true, used: true, group: &group{id: id}}
	return id
}

// AllocIn records an allocation in a group, and returns the name of its life.
func (h *History) AllocIn(of InstanceID, bytes int64) InstanceID {
	id := h.Alloc(bytes)
	g := h.instance(of).group
	h.instance(id).group = g
	g.members = append(g.members, id)
	return id
}

func (g *group) leave(id InstanceID) {
	if i := slices.Index(g.members, id); i >= 0 {
		g.members = slices.Delete(g.members, i, i+1)
	}
}

// groupOf is the group of that name; nil where it names an allocation.
func (h *History) groupOf(id InstanceID) *group {
	if g := h.instance(id).group; g != nil && g.id == id {
		return g
	}
	return nil
}

// was says whether an allocation, or any of a group, is known from the past, whether the operation at a position touched it then, and
// whether it is itself what was touched, and not its counterpart.
func (h *History) was(id InstanceID, position int64) (known, touched, stays bool) {
	alone := [1]InstanceID{id}
	members := alone[:]
	if g := h.groupOf(id); g != nil {
		members = g.members
	}
	for _, m := range members {
		in := h.counterpart(m)
		if in == nil {
			continue
		}
		known = true
		if _, ok := slices.BinarySearch(in.uses, position); ok {
			return true, true, in == h.instance(m)
		}
	}
	return known, false, false
}

// nextUseOf is when the first of a group is next used.
func (h *History) nextUseOf(g *group) int64 {
	next := Never
	for _, m := range g.members {
		next = min(next, h.NextUse(m))
	}
	return next
}

// deathOf is when the last of a group is freed.
func (h *History) deathOf(g *group) int64 {
	last := h.now
	unknown := false
	for _, m := range g.members {
		switch d := h.Death(m); d {
		case Unknown:
			unknown = true
		default:
			last = max(last, d)
		}
	}
	if unknown {
		return Unknown
	}
	return last
}

// restOf is what Rest says of a group.
func (h *History) restOf(g *group, operations int64) (from, next int64, ok bool) {
	h.merged = h.merged[:0]
	for _, m := range g.members {
		if in := h.counterpart(m); in != nil {
			h.merged = append(h.merged, in.uses[indexAfter(in.uses, h.cursor):]...)
		}
	}
	slices.Sort(h.merged)
	for i := 0; i+1 < len(h.merged); i++ {
		if h.merged[i+1]-h.merged[i] > operations {
			ahead := h.now - 1 - h.cursor
			return h.merged[i] + ahead + 1, h.merged[i+1] + ahead, true
		}
	}
	return 0, 0, false
}
