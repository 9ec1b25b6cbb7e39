package explicit

// This file is for allocations that come many at a time and are dead a few operations later, as those of an optimizer that does each
// step of its arithmetic for all parameters at once (PyTorch's "foreach", its default). No dead range is of their size, and to map
// memory for each would take that of dead ranges of other sizes, which is wanted again right after. They share dead ranges instead, as parts
// of packs that last no longer than they do (pack.go).

const (
	// burstOps is within how many operations what shares a dead range is born, and dies.
	burstOps = 32
	// leastBurst is how many share one at least.
	leastBurst = 3
	// manyBurst is for how many there is no dead range of their size at least.
	manyBurst = 8
)

// brief says whether the repetition of a life may share a dead range.
func (r *packer) brief(x *life) bool { return r.packable(x) && x.died-x.born < leastLife }

// newBurst makes a pack, in a dead range, of which the repetition of a life is the first part, unless there are too few, or
// dead ranges of their own sizes. The newest allocation repeats the life before.
func (r *packer) newBurst(life, before int64) {
	first := r.lives.of(life)
	if !r.mapsMuch() || !r.brief(first) || !r.roomForPacks() {
		return
	}
	var together []int64
	var total int64
	clear(r.bursting)
	died, lacking := first.died, 0
	for number := life; number < r.lives.end(); number++ {
		x := r.lives.of(number)
		if x.born > min(first.born+burstOps, died) {
			break
		}
		if x.repeated || x.stream != first.stream || !r.brief(x) || max(x.died-first.died, first.died-x.died) > burstOps {
			continue
		}
		together = append(together, number)
		total += wholeUnits(x.bytes)
		died = min(died, x.died)
		size := WholePages(x.bytes)
		if r.bursting[size]++; r.bursting[size] > len(r.dead.bySize[size]) {
			lacking++
		}
	}
	if lacking < manyBurst {
		return
	}
	last := r.History.Now() + first.died - r.lives.of(before).born + burstOps
	g := r.spacious(total, last, first.stream)
	if g == nil {
		return
	}
	var parts []part
	filled := int64(0)
	for _, number := range together {
		if x := r.lives.of(number); filled+wholeUnits(x.bytes) <= g.size {
			parts = append(parts, part{offset: filled, bytes: x.bytes, life: number})
			filled += wholeUnits(x.bytes)
		}
	}
	if len(parts) < leastBurst || !r.recall(g) {
		return
	}
	r.dead.remove(g)
	t := &tensor{base: g.base, chunks: g.chunks, size: g.size, bytes: filled, borrowed: true}
	t.Stream = first.stream
	r.takeSlot(t)
	r.live(t)
	r.stats.Bursts++
	r.expect(t, parts, life, before)
}

// spacious is the largest dead range that so many bytes fill, or the smallest that is larger, of those that no coming allocation wants
// before a position.
func (r *packer) spacious(bytes, until int64, stream int) (best *tensor) {
	for _, g := range r.dead.order {
		if !g.whole() || !r.follows(g, stream) || r.wantedAt(g) < until {
			continue
		}
		if best == nil || g.size <= bytes && (g.size > best.size || best.size > bytes) || g.size > bytes && g.size < best.size {
			best = g
		}
	}
	return best
}
