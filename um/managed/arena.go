package managed

import (
	"slices"
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// anyStream marks free blocks whose last work has finished: safe for every stream.
const anyStream = -1

// extent is a run of free blocks that share their state.
type extent struct {
	first, n int32
	onDevice bool
	arriving bool   // being populated, and nobody's yet
	stale    bool   // the host holds dead pages: discard them before populating, or they are copied
	stream   int    // whose queued work may still use them; anyStream when none
	seq      uint64 // they are idle once stream has finished this operation
	others   []um.Mark
}

func (e *extent) end() int32 { return e.first + e.n }

// arena is address space in blocks: which are free, and which are on the device.
// Free extents are sorted by address; neighbours that share their state are one.
type arena struct {
	base         cuda.Ptr
	blocks       int32
	onDevice     []bool
	arriving     []bool    // free, and being populated
	foreseen     []uint64  // the look into the future that placed a coming allocation there
	moving       []bool    // part of a move that a worker has taken
	touched      []bool    // was on the device at some time
	steered      []bool    // being made recent
	driverVictim []bool    // moving: the driver is to evict it under a move
	owner        []*tensor // whose block it is; nil when free
	deferred     []*tensor // the last dead tensor in it that unfinished operations may use; see holder
	claimed      []uint64  // the plan that brings it in already
	stale        []bool    // free, off the device, with dead pages on the host
	arrived      []int64   // when the block last came to the device, in arrivals
	arrivals     int64

	resident     int32    // blocks on the device, free ones included
	free         []extent // sorted by address
	compactAt    int      // number of free extents at which they are merged again
	freeOnDevice int32    // free blocks on the device
	freeStale    int32    // free blocks with dead pages on the host
	largest      int32    // blocks of the largest tensor that there was; see scarce
}

func newArena(base cuda.Ptr, bytes int64) *arena {
	n := int32(bytes / BlockBytes)
	return &arena{
		base: base, blocks: n,
		onDevice: make([]bool, n), moving: make([]bool, n), arriving: make([]bool, n), foreseen: make([]uint64, n), stale: make([]bool, n), owner: make([]*tensor, n), driverVictim: make([]bool, n), steered: make([]bool, n), deferred: make([]*tensor, n), claimed: make([]uint64, n), touched: make([]bool, n), arrived: make([]int64, n),
		free: []extent{{first: 0, n: n, stream: anyStream}},
	}
}

func (a *arena) ptr(block int32) cuda.Ptr { return a.base + cuda.Ptr(int64(block)*BlockBytes) }

func (a *arena) contains(p cuda.Ptr) bool {
	return p >= a.base && p < a.ptr(a.blocks)
}

func (a *arena) block(p cuda.Ptr) int32 { return int32(int64(p-a.base) / BlockBytes) }

func (a *arena) setOnDevice(first, n int32, on bool) {
	for b := first; b < first+n; b++ {
		if a.onDevice[b] != on {
			a.onDevice[b] = on
			if on {
				a.resident++
				a.arrivals++
				a.arrived[b] = a.arrivals
				a.stale[b] = false
				a.touched[b] = true
			} else {
				a.resident--
			}
		}
	}
}

// setArriving says whether free blocks are being populated.
func (a *arena) setArriving(first, n int32, arriving bool) {
	for b := first; b < first+n; b++ {
		a.arriving[b] = arriving
	}
}

// usable says whether stream s may use the extent now. passed answers whether a
// stream has finished an operation.
func (e *extent) usable(s int, passed func(um.Mark) bool) bool {
	if e.stream != anyStream && passed(um.Mark{Stream: e.stream, Seq: e.seq}) {
		e.stream = anyStream
	}
	for len(e.others) > 0 && passed(e.others[0]) {
		e.others = e.others[1:]
	}
	return len(e.others) == 0 && (e.stream == anyStream || e.stream == s)
}

// idle says whether no queued work can touch the extent.
func (e *extent) idle(passed func(um.Mark) bool) bool { return e.usable(anyStream, passed) }

// place finds room for n blocks for stream s: on the device if possible, else
// where the fewest blocks are missing. Among equals an exact fit, then blocks
// that queued work still uses, the longest in use first: the new tensor is used
// after that work, so until then they would have to stay anyway, while idle
// blocks would lie waiting and can be let go of. When after is given, memory is
// tight, and only blocks that are in use until that operation or later are worth
// having (Runtime.spareAfter). preferDevice false ignores residency, as an
// allocator that knows nothing of it would.
//
// While few free ranges are left for tensors as large as the largest, small ones break
// none of them up if they find another place (scarce).
func (a *arena) place(n int32, s int, preferDevice bool, after uint64, passed func(um.Mark) bool) (first int32, ok bool) {
	a.largest = max(a.largest, n)
	if a.scarce(n) {
		if first, ok = a.placeWhere(n, s, preferDevice, after, passed, true); ok {
			return first, true
		}
	}
	return a.placeWhere(n, s, preferDevice, after, passed, false)
}

// fewRanges is how many ranges for the largest tensors are left when they are kept from
// small ones: about as many as a training step has of logits, their gradients and the like.
const fewRanges = 4

// scarce says whether address space for the largest tensors is running out, and n blocks
// are so few that they may do without it.
func (a *arena) scarce(n int32) bool {
	if n > a.largest/2 {
		return false
	}
	var ranges int32
	for i := 0; i < len(a.free); {
		end := a.joined(i)
		ranges += (a.free[end-1].end() - a.free[i].first) / a.largest
		i = end
	}
	return ranges <= fewRanges
}

// joined is the end of the extents that follow extent i without a gap.
func (a *arena) joined(i int) int {
	for i++; i < len(a.free) && a.free[i].first == a.free[i-1].end(); i++ {
	}
	return i
}

// placeWhere is place, sparing ranges for the largest tensors or not.
func (a *arena) placeWhere(n int32, s int, preferDevice bool, after uint64, passed func(um.Mark) bool, spare bool) (first int32, ok bool) {
	bestMissing, bestWaste, bestUntil := int32(1<<30), int32(1<<30), uint64(0)
	first = -1
	if len(a.free) > a.compactAt {
		a.compact(passed)
	}
	var from, to int32 // the addresses that are free around the extent
	for i := 0; i < len(a.free); i++ {
		e := &a.free[i]
		if spare {
			if e.first >= to {
				from, to = e.first, a.free[a.joined(i)-1].end()
			}
			if (to-from)/a.largest > (e.first-from)/a.largest+max(0, to-e.first-n)/a.largest {
				continue
			}
		}
		if !e.usable(s, passed) {
			continue
		}
		// a window of n blocks that starts with this extent, over neighbours that join on
		var run, missing int32
		for j := i; j < len(a.free) && run < n; j++ {
			f := &a.free[j]
			if j > i && (f.first != a.free[j-1].end() || !f.usable(s, passed)) {
				break
			}
			take := min(f.n, n-run)
			here := f.onDevice || f.arriving || a.deferred[f.first] != nil && a.deferred[f.first].Busy() // or to come for the work that uses it
			switch {
			case here && f.stream != anyStream && f.seq >= after:
			case f.stale && !here:
				missing += 3 * take // dead pages would be copied in
			case !here:
				missing += take
			case after > 0:
				missing += 2 * take
			}
			run += take
		}
		if run < n {
			continue
		}
		if !preferDevice {
			missing = 0
		}
		waste, until := max(0, e.n-n), uint64(0)
		if preferDevice && e.stream != anyStream {
			until = e.seq
		}
		better := missing < bestMissing
		if missing == bestMissing {
			switch {
			case (waste == 0) != (bestWaste == 0):
				better = waste == 0
			case until != bestUntil:
				better = until > bestUntil
			default:
				better = waste < bestWaste
			}
		}
		if better {
			bestMissing, bestWaste, bestUntil, first = missing, waste, until, e.first
			if missing == 0 && waste == 0 && !preferDevice {
				break
			}
		}
	}
	return first, first >= 0
}

// compact merges neighbours that have come to share their state because the
// work on them has finished.
func (a *arena) compact(passed func(um.Mark) bool) {
	old := a.free
	a.free, a.freeOnDevice, a.freeStale = make([]extent, 0, len(old)), 0, 0
	for i := range old {
		old[i].idle(passed)
		a.insert(old[i])
	}
	a.compactAt = 2*len(a.free) + 64
}

// take removes a run of blocks from the free extents.
func (a *arena) take(first, n int32) []extent { return a.takeTo(nil, first, n) }

// takeTo is take, appending what is taken.
func (a *arena) takeTo(taken []extent, first, n int32) []extent {
	i := sort.Search(len(a.free), func(i int) bool { return a.free[i].end() > first })
	var ends [2]extent
	left := ends[:0]
	j := i
	for ; j < len(a.free) && a.free[j].first < first+n; j++ {
		e := a.free[j]
		lo, hi := max(e.first, first), min(e.end(), first+n)
		if e.first < lo {
			head := e
			head.n = lo - e.first
			left = append(left, head)
		}
		if hi < e.end() {
			tail := e
			tail.first, tail.n = hi, e.end()-hi
			left = append(left, tail)
		}
		e.first, e.n = lo, hi-lo
		taken = append(taken, e)
		a.count(&e, -1)
	}
	a.free = slices.Replace(a.free, i, j, left...)
	return taken
}

// give adds a run of blocks to the free extents.
func (a *arena) give(first, n int32, stream int, seq uint64, others []um.Mark) {
	for b := first; b < first+n; {
		on, arriving, stale := a.onDevice[b], a.arriving[b], a.stale[b]
		c := b + 1
		for c < first+n && a.onDevice[c] == on && a.arriving[c] == arriving && a.stale[c] == stale {
			c++
		}
		a.insert(extent{first: b, n: c - b, onDevice: on, arriving: arriving, stale: stale, stream: stream, seq: seq, others: others})
		b = c
	}
}

// count adds an extent to the totals, or takes it out.
func (a *arena) count(e *extent, sign int32) {
	if e.onDevice {
		a.freeOnDevice += sign * e.n
	}
	if e.stale {
		a.freeStale += sign * e.n
	}
}

func (a *arena) insert(e extent) {
	a.count(&e, 1)
	i := sort.Search(len(a.free), func(i int) bool { return a.free[i].first > e.first })
	joins := func(x, y *extent) bool {
		return x.end() == y.first && x.onDevice == y.onDevice && x.arriving == y.arriving && x.stale == y.stale && x.stream == y.stream &&
			(x.stream == anyStream || x.seq == y.seq) && len(x.others) == 0 && len(y.others) == 0
	}
	if i > 0 && joins(&a.free[i-1], &e) {
		p := &a.free[i-1]
		p.n += e.n
		if i < len(a.free) && joins(p, &a.free[i]) {
			p.n += a.free[i].n
			a.free = append(a.free[:i], a.free[i+1:]...)
		}
		return
	}
	if i < len(a.free) && joins(&e, &a.free[i]) {
		f := &a.free[i]
		f.first, f.n = e.first, f.n+e.n
		return
	}
	a.free = append(a.free, extent{})
	copy(a.free[i+1:], a.free[i:])
	a.free[i] = e
}

// largestFree is the largest run of free blocks whatever their state.
func (a *arena) largestFree() int32 {
	var best, run int32
	for i := range a.free {
		if i > 0 && a.free[i].first == a.free[i-1].end() {
			run += a.free[i].n
		} else {
			run = a.free[i].n
		}
		best = max(best, run)
	}
	return best
}
