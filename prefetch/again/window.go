package again

import (
	"cmp"
	"slices"
)

// Options say what a plan is for, and how it is looked for.
type Options struct {
	BudgetBytes       int64
	SmallBytes        int64   // smaller tensors never move
	BusBytesPerSecond float64 // each way
	LaunchSeconds     float64 // what a launch that is issued again takes beside its own time
	Most              Class   // what may be issued again
	KeepFreed         bool    // what the job frees may be kept for launches that read it

	// The search. Candidates are what would be evicted in a budget smaller by the factor Reach. A byte that crosses
	// the bus both ways costs the share Price of what that takes, because most of it hides behind the job; one that a later
	// window may make again costs the share Later of that. What is made again at a time is at most the share Window of the budget.
	Reach, Price, Later, Window float64
}

// windowTime is how much of an iteration a window spans at most.
const windowTime = 0.08

// Bounds of the network of one window.
const (
	mostDepth = 60
	mostNodes = 3000
)

// fate is what becomes of a gap.
type fate uint8

const (
	open fate = iota
	moved
	dropped
)

// window is a run of gaps, by their ends, that are decided on together.
type window struct {
	from, to   int // gaps
	start, end int // the first and the last operation that they end with
}

// decisions are those about all gaps.
type decisions struct {
	*Planner
	o       Options
	gaps    []gap // by end
	fates   []fate
	ofGap   map[int32][]int // by tensor
	windows []window
	keep    map[int32]int // what is kept although the job frees it: up to which operation
}

// decide chooses the fate of every candidate.
func (p *Planner) decide(o Options) *decisions {
	d := &decisions{Planner: p, o: o, ofGap: map[int32][]int{}, keep: map[int32]int{}}
	d.gaps = p.gaps(int64(float64(o.BudgetBytes)/o.Reach), o.SmallBytes)
	slices.SortFunc(d.gaps, func(a, b gap) int {
		return cmp.Or(cmp.Compare(a.back, b.back), cmp.Compare(a.tensor, b.tensor))
	})
	d.fates = make([]fate, len(d.gaps))
	for i, g := range d.gaps {
		d.ofGap[g.tensor] = append(d.ofGap[g.tensor], i)
	}
	d.split()
	for _, w := range d.windows {
		c := d.network(w)
		_, side := c.net.cut(c.source, c.sink)
		c.settle(side)
	}
	return d
}

// split makes windows of the gaps. All gaps of one are open when its first ends.
func (d *decisions) split() {
	span := windowTime * d.iterationSeconds()
	for i := 0; i < len(d.gaps); {
		first, bytes, j := d.gaps[i], int64(0), i
		for ; j < len(d.gaps); j++ {
			g := d.gaps[j]
			bytes += d.Tensors[g.tensor].Bytes
			if j > i && (float64(bytes) > d.o.Window*float64(d.o.BudgetBytes) || g.after >= first.back || d.began[g.back]-d.began[first.back] > span) {
				break
			}
		}
		d.windows = append(d.windows, window{i, j, first.back, d.gaps[j-1].back})
		i = j
	}
}

// iterationSeconds is what the last iteration takes to compute.
func (p *Planner) iterationSeconds() float64 {
	if n := len(p.Iterations); n > 1 {
		return p.began[p.Iterations[n-1]] - p.began[p.Iterations[n-2]]
	}
	return p.began[len(p.Ops)]
}

// price is what keeping so many bytes costs when they must cross the bus for it, in the network's unit.
func (d *decisions) price(bytes int64) int64 {
	return picoseconds(d.o.Price * 2 * float64(bytes) / d.o.BusBytesPerSecond)
}

func picoseconds(seconds float64) int64 { return int64(seconds * 1e12) }

// hardly is the price of what comes in any case, or is small: nothing is issued again for less than nothing.
const hardly = 1000

// keeping is the price of having a version throughout a window, without making it.
func (d *decisions) keeping(v version, w window) int64 {
	t := &d.Tensors[v.tensor]
	small := t.Bytes < d.o.SmallBytes
	if t.Death <= w.start { // freed
		_, kept := d.keep[v.tensor]
		switch {
		case !d.last(v) || !d.o.KeepFreed && !small:
			return unbounded
		case kept:
			return 0
		case small:
			return hardly
		}
		return d.price(t.Bytes)
	}
	if d.before(v.tensor, w.start) != v || d.written(v.tensor, w.start, w.end) {
		return unbounded // overwritten
	}
	if t.Death <= w.end && !small && !d.o.KeepFreed {
		return unbounded
	}
	i := d.gapAt(v.tensor, w.start)
	switch {
	case i < 0 || d.fates[i] == moved || d.fates[i] == dropped && i < w.from:
		return 0 // on the device then
	case i < w.to:
		return d.price(t.Bytes)
	case d.makers(v, d.o.Most) == nil:
		return hardly // it comes back in any case
	}
	return int64(d.o.Later * float64(d.price(t.Bytes)))
}

// gapAt is the gap of a tensor that is open before an operation, or -1.
func (d *decisions) gapAt(tensor int32, k int) int {
	for _, i := range d.ofGap[tensor] {
		if d.gaps[i].after < k && k <= d.gaps[i].back {
			return i
		}
	}
	return -1
}

// choice is the network of one window. What is cut off is paid for: a version that is needed is kept, or is
// made, and then all its makers are launched, and all that these read is needed.
type choice struct {
	*decisions
	window       window
	net          network
	source, sink int32
	needed       map[version]int32 // nodes
	made         map[version]int32
	launched     map[int32]int32
	order        []version // as they came to be needed
}

// network builds that of a window.
func (d *decisions) network(w window) *choice {
	c := &choice{decisions: d, window: w, needed: map[version]int32{}, made: map[version]int32{}, launched: map[int32]int32{}}
	c.source, c.sink = c.net.node(), c.net.node()
	for i := w.from; i < w.to; i++ {
		if d.fates[i] == open {
			c.net.add(c.source, c.need(d.before(d.gaps[i].tensor, d.gaps[i].back), 0), unbounded)
		}
	}
	return c
}

// need is the node of a version that has to be there.
func (c *choice) need(v version, depth int) int32 {
	if n, ok := c.needed[v]; ok {
		return n
	}
	n := c.net.node()
	c.needed[v] = n
	c.order = append(c.order, v)
	keep := c.keeping(v, c.window)
	if depth == 0 {
		keep = min(keep, c.price(c.Tensors[v.tensor].Bytes)) // a candidate can always be moved
	}
	var makers []int32
	if keep > 0 && depth < mostDepth && len(c.order) < mostNodes {
		makers = c.makers(v, c.o.Most)
	}
	if makers == nil {
		c.net.add(n, c.sink, keep)
		return n
	}
	made := c.net.node()
	c.made[v] = made
	c.net.add(n, made, keep)
	for _, k := range makers {
		c.net.add(made, c.launch(k, depth+1), unbounded)
	}
	return n
}

// launch is the node of an operation that is issued again.
func (c *choice) launch(k int32, depth int) int32 {
	if n, ok := c.launched[k]; ok {
		return n
	}
	n := c.net.node()
	c.launched[k] = n
	o := &c.Ops[k]
	c.net.add(n, c.sink, picoseconds(o.Seconds+c.o.LaunchSeconds))
	for _, x := range o.Operands {
		if !x.Reads {
			continue
		}
		if !c.Tensors[x.Tensor].Workspace {
			// What it works on in place is the version before, made by the makers before it.
			c.net.add(n, c.need(c.before(x.Tensor, int(k)), depth), unbounded)
			continue
		}
		if l := c.left(x.Tensor, int(k)); l != none {
			if class := c.Ops[l].Class; class == Never || class > c.o.Most {
				c.net.add(n, c.sink, unbounded)
				continue
			}
			c.net.add(n, c.launch(l, depth), unbounded)
		}
	}
	return n
}

// settle writes down what a cut decides.
func (c *choice) settle(side []bool) {
	w := c.window
	isMade := func(v version) bool { n, ok := c.made[v]; return ok && side[n] }
	for _, v := range c.order {
		if !side[c.needed[v]] || isMade(v) {
			continue
		}
		if c.Tensors[v.tensor].Death <= w.end {
			c.keep[v.tensor] = max(c.keep[v.tensor], w.end)
		} else if i := c.gapAt(v.tensor, w.start); i >= w.from {
			c.fates[i] = moved
		}
	}
	for i := w.from; i < w.to; i++ {
		g := c.gaps[i]
		if c.fates[i] == open && isMade(c.before(g.tensor, g.back)) {
			c.fates[i] = dropped
		} else {
			c.fates[i] = moved
		}
	}
}
