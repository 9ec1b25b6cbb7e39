package trace

const (
	leastAnchors = 3   // iterations begin so often at least, for it to be seen that they are alike
	alikeShare   = 0.6 // of the launches and copies of two iterations in a row, that have a counterpart in the other
)

// MarkDiffering puts marks around the training iterations of a recording that has none and of which no two launch the same,
// because their shapes differ: what [Trace.MarkIterations] does where they do. It takes an operation for the first of an
// iteration that comes once in each: from one to the next mostly the same functions are launched as from that to the one
// after, these stretches are at least half of the recording, and each leaves about as much alive as the one before: the layers
// of a model do not. Of such operations those that come most often are meant, and of these the one before which the fewest
// bytes are live.
func (t *Trace) MarkDiffering() bool {
	ops, symbols := t.operations()
	at := map[int32][]int{}
	for i, s := range symbols {
		at[s] = append(at[s], i)
	}
	live := t.liveBefore(ops)
	var best []int
	var least int64
	c := newComparison(len(at))
	for s := range int32(len(at)) {
		if len(at[s]) < max(leastAnchors, len(best)) {
			continue
		}
		anchors := c.longest(symbols, at[s])
		if len(anchors) < max(leastAnchors, len(best)) || anchors[len(anchors)-1]-anchors[0] < len(ops)/2 || !returns(live, anchors) {
			continue
		}
		var bytes int64
		for _, i := range anchors {
			bytes = addBytes(bytes, live[i])
		}
		if len(anchors) > len(best) || bytes < least {
			best, least = anchors, bytes
		}
	}
	if best == nil {
		return false
	}
	t.Differ = true
	t.mark(ops, best)
	return true
}

// Judged are the iterations that a simulation reports together, and how many they are: the last full one, or the later half
// where no two are alike. A trace without iterations has none.
func (t *Trace) Judged() (Range, int) {
	all := t.Iterations()
	if len(all) == 0 {
		return Range{}, 0
	}
	n := 1
	if t.Differ {
		n = (len(all) + 1) / 2
	}
	r := all[len(all)-n]
	r.End = all[len(all)-1].End
	return r, n
}

// returns says whether about as much is live at each place, compared with what comes and goes in between. The first
// iteration may leave more than it found, such as an optimizer's state.
func returns(live []int64, at []int) bool {
	least, most, peak := live[at[1]], live[at[1]], int64(0)
	for _, i := range at[1:] {
		least, most = min(least, live[i]), max(most, live[i])
	}
	for _, bytes := range live[at[1]:at[len(at)-1]] {
		peak = max(peak, bytes)
	}
	return 2*(most-least) <= peak-least
}

// liveBefore are the bytes that are live before each operation.
func (t *Trace) liveBefore(ops []int) []int64 {
	live, sizes := make([]int64, 0, len(ops)), map[uint64]int64{}
	var sum int64
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case KindAlloc:
			sum = addBytes(sum, e.Bytes)
			sizes[e.Alloc] = e.Bytes
		case KindFree:
			sum -= sizes[e.Alloc]
			delete(sizes, e.Alloc)
		case KindLaunch, KindCopy:
			live = append(live, sum)
		}
	}
	return live
}

// comparison compares stretches of symbols by how often each comes.
type comparison struct {
	count [2][]int   // by symbol, in this stretch and in the one before
	seen  [2][]int32 // symbols that come in them
}

func newComparison(symbols int) *comparison {
	return &comparison{count: [2][]int{make([]int, symbols), make([]int, symbols)}}
}

// longest is the longest row of places such that what stands between two is like what stands between the next two.
func (c *comparison) longest(symbols []int32, at []int) []int {
	begin, best := 0, at[:1]
	for i := 0; i+1 < len(at); i++ {
		c.next(symbols[at[i]:at[i+1]])
		if i > begin && !c.alike() {
			begin = i
		}
		if i+2-begin > len(best) {
			best = at[begin : i+2]
		}
	}
	return best
}

// next counts one more stretch.
func (c *comparison) next(symbols []int32) {
	c.count[0], c.count[1] = c.count[1], c.count[0]
	c.seen[0], c.seen[1] = c.seen[1], c.seen[0]
	for _, s := range c.seen[0] {
		c.count[0][s] = 0
	}
	c.seen[0] = c.seen[0][:0]
	for _, s := range symbols {
		if c.count[0][s]++; c.count[0][s] == 1 {
			c.seen[0] = append(c.seen[0], s)
		}
	}
}

// alike says whether most of the last two stretches is in both.
func (c *comparison) alike() bool {
	var both, all int
	for k, other := range [2]int{1, 0} {
		for _, s := range c.seen[k] {
			all += c.count[k][s]
			both += min(c.count[k][s], c.count[other][s])
		}
	}
	return float64(both) >= alikeShare*float64(all)
}
