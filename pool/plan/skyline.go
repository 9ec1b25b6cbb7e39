package plan

// quickBuffers is from how many buffers on a quick placement comes first, so that
// there is one whatever the time limit.
const quickBuffers = 20000

// skyline places every buffer above all that lies at any of its times, and never in
// a gap below: O(log n) a buffer, at the price of height. The problem has no pins.
func (p *problem) skyline(order []int32, offsets []int64) (height int64) {
	t := tops{tree: make([]int64, 4*max(1, p.times)), raise: make([]int64, 4*max(1, p.times)), times: p.times}
	for _, i := range order {
		b := &p.buffers[i]
		at := t.over(b.lower, b.upper)
		if b.againLower < b.againUpper {
			at = max(at, t.over(b.againLower, b.againUpper))
		}
		at = alignUp(at, b.align)
		offsets[i] = at
		top := at + b.bytes
		t.put(b.lower, b.upper, top)
		if b.againLower < b.againUpper {
			t.put(b.againLower, b.againUpper, top)
		}
		height = max(height, top)
	}
	return height
}

// tops is the highest top at each time: a segment tree whose nodes hold the maximum
// below them, and what all below them was raised to.
type tops struct {
	tree, raise []int64
	times       int32
}

func (t *tops) over(lower, upper int32) int64 { return t.query(1, 0, t.times, lower, upper) }

func (t *tops) query(node, begin, end, lower, upper int32) int64 {
	if upper <= begin || end <= lower {
		return 0
	}
	if lower <= begin && end <= upper {
		return t.tree[node]
	}
	middle := (begin + end) / 2
	return max(t.raise[node], t.query(2*node, begin, middle, lower, upper), t.query(2*node+1, middle, end, lower, upper))
}

func (t *tops) put(lower, upper int32, top int64) { t.update(1, 0, t.times, lower, upper, top) }

func (t *tops) update(node, begin, end, lower, upper int32, top int64) {
	if upper <= begin || end <= lower {
		return
	}
	t.tree[node] = max(t.tree[node], top)
	if lower <= begin && end <= upper {
		t.raise[node] = max(t.raise[node], top)
		return
	}
	middle := (begin + end) / 2
	t.update(2*node, begin, middle, lower, upper, top)
	t.update(2*node+1, middle, end, lower, upper, top)
}
