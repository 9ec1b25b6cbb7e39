package oracle

import (
	"errors"
	"fmt"
	"math"

	"github.com/penstock-gpu/penstock/trace"
)

// program is a trace as the planner and the scheduler want it.
type program struct {
	launches  []launch
	items     []item
	freesAt   [][]int32 // items that die before the launch at this position
	first     int       // the first launch of what is reported, of so many iterations
	last      int       // one past its last launch
	judged    int
	peakBytes int64 // most bytes allocated at once
	repeats   bool  // the last iteration stands here twice
}

// launch is one operation on the device: a kernel, a copy or a fill.
type launch struct {
	seconds     float64
	items       []int32 // what it touches, each once
	next        []int32 // parallel to items: the next position that touches it, or never
	reads       []bool  // parallel to items: known to be only read
	pinnedBytes int64   // what never moves, at its largest since the launch before
	liveBytes   int64   // everything allocated
	name        string
	awaited     bool // the job waits for its end before it goes on
}

// item is a piece of an allocation that can move on its own.
type item struct {
	bytes    int64 // in the budget: whole blocks
	copied   int64 // over the bus
	firstUse int32
	freed    int32 // the position before which it dies; len(launches) when it never does
}

const never = int32(-1)

// allocation is what is known of one while the events are read.
type allocation struct {
	bytes  int64
	pinned bool
	first  int32 // its items are first … first+pieces-1
	pieces int32
}

// maxPieces bounds the items of one allocation, whatever its size.
const maxPieces = 4096

var errNoIteration = errors.New("oracle: the trace has no full iteration: it needs a mark named iter0, iter1, … and a mark after it")

// newProgram turns events into launches and items.
func newProgram(t *trace.Trace, o Options) (*program, error) {
	judged, n := t.Judged()
	if n == 0 {
		return nil, errNoIteration
	}
	events := t.Events
	from, to := judged.First, judged.End
	p := &program{judged: n}
	recorded := len(events)
	if !o.NoRepeat {
		if followed, ok := Followed(t); ok {
			p.repeats, recorded = true, to
			events = followed.Events
		}
	}
	// What no launch was seen to touch may be touched unseen, so it stays.
	touched := map[uint64]bool{}
	for _, event := range events {
		if event.Kind == trace.KindLaunch || event.Kind == trace.KindCopy {
			for _, access := range event.Accesses {
				touched[access.Alloc] = true
			}
		}
	}
	live := map[uint64]*allocation{}
	names := map[uint32]string{}
	lastUse := []int32{}   // per item: the launch that used it last
	lastIndex := []int32{} // and its index there
	var liveBytes, pinnedBytes, pinnedPeak int64
	for i, event := range events {
		if i == from {
			p.first = len(p.launches)
		}
		if i == to {
			p.last = len(p.launches)
		}
		switch event.Kind {
		case trace.KindAlloc:
			if live[event.Alloc] != nil {
				return nil, fmt.Errorf("oracle: event %d allocates %d, which is alive already: the trace is damaged", i, event.Alloc)
			}
			if event.Bytes < 0 || event.Bytes > math.MaxInt64/4-liveBytes {
				return nil, fmt.Errorf("oracle: event %d allocates %d bytes: the trace is damaged", i, event.Bytes)
			}
			a := &allocation{bytes: event.Bytes, first: int32(len(p.items))}
			live[event.Alloc] = a
			liveBytes += a.bytes
			if i < recorded {
				p.peakBytes = max(p.peakBytes, liveBytes)
			}
			if a.bytes < o.SmallBytes || !touched[event.Alloc] {
				a.pinned = true
				pinnedBytes += a.bytes
				pinnedPeak = max(pinnedPeak, pinnedBytes)
				continue
			}
			if a.bytes > o.BudgetBytes {
				continue // whoever touches it is an error
			}
			piece := max(o.PieceBytes, roundUp(a.bytes/maxPieces+1, o.BlockBytes))
			for offset := int64(0); offset < a.bytes; offset += piece {
				bytes := roundUp(min(piece, a.bytes-offset), o.BlockBytes)
				p.items = append(p.items, item{bytes: bytes, copied: min(bytes, a.bytes-offset), firstUse: never, freed: never})
				lastUse = append(lastUse, never)
				lastIndex = append(lastIndex, never)
				a.pieces++
			}
		case trace.KindFree:
			a := live[event.Alloc]
			if a == nil {
				return nil, fmt.Errorf("oracle: event %d frees %d, which is not alive: the trace is damaged", i, event.Alloc)
			}
			delete(live, event.Alloc)
			liveBytes -= a.bytes
			if a.pinned {
				pinnedBytes -= a.bytes
			}
			for k := range a.pieces {
				p.items[a.first+k].freed = int32(len(p.launches))
			}
		case trace.KindFunction:
			names[event.Function] = event.Name
		case trace.KindLaunch, trace.KindCopy:
			l := launch{seconds: max(0, event.Duration.Seconds()), pinnedBytes: pinnedPeak, liveBytes: liveBytes}
			pinnedPeak = pinnedBytes
			l.name = launchName(event, names)
			l.awaited = event.Kind == trace.KindCopy && event.Copy == trace.CopyDeviceToHost
			at := int32(len(p.launches))
			pieces := 0
			for _, access := range event.Accesses {
				if a := live[access.Alloc]; a != nil {
					pieces += int(a.pieces)
				}
			}
			l.items, l.next, l.reads = make([]int32, 0, pieces), make([]int32, 0, pieces), make([]bool, 0, pieces)
			for _, access := range event.Accesses {
				a := live[access.Alloc]
				if a == nil {
					continue // a stale pointer: nothing alive is touched
				}
				if !a.pinned && a.bytes > o.BudgetBytes {
					return nil, &BudgetError{Kernel: l.name, NeedBytes: a.bytes, BudgetBytes: o.BudgetBytes}
				}
				reads := access.Mode == trace.AccessRead
				for k := a.first; k < a.first+a.pieces; k++ {
					if lastUse[k] == at {
						l.reads[lastIndex[k]] = l.reads[lastIndex[k]] && reads
						continue
					}
					if previous := lastUse[k]; previous != never {
						p.launches[previous].next[lastIndex[k]] = at
					} else {
						p.items[k].firstUse = at
					}
					lastUse[k], lastIndex[k] = at, int32(len(l.items))
					l.items = append(l.items, k)
					l.next = append(l.next, never)
					l.reads = append(l.reads, reads)
				}
			}
			p.launches = append(p.launches, l)
		}
	}
	if from >= len(events) { // an empty iteration, repeated
		p.first = len(p.launches)
	}
	if to >= len(events) {
		p.last = len(p.launches)
	}
	if p.first == p.last {
		return nil, errors.New("oracle: the last full iteration has no launches")
	}
	p.freesAt = make([][]int32, len(p.launches)+1)
	for i := range p.items {
		if p.items[i].freed == never {
			p.items[i].freed = int32(len(p.launches))
			continue
		}
		p.freesAt[p.items[i].freed] = append(p.freesAt[p.items[i].freed], int32(i))
	}
	return p, p.fits(o.BudgetBytes)
}

// fits checks that every launch alone fits the budget.
func (p *program) fits(budgetBytes int64) error {
	var worst BudgetError
	for i := range p.launches {
		l := &p.launches[i]
		need := l.pinnedBytes
		for _, k := range l.items {
			need += p.items[k].bytes
		}
		if need > budgetBytes && need > worst.NeedBytes {
			worst = BudgetError{Kernel: l.name, NeedBytes: need, BudgetBytes: budgetBytes}
		}
	}
	if worst.NeedBytes > 0 {
		return &worst
	}
	return nil
}

func launchName(event trace.Event, names map[uint32]string) string {
	if event.Kind == trace.KindLaunch {
		if name := names[event.Function]; name != "" {
			return "kernel " + name
		}
		return fmt.Sprintf("kernel %d", event.Function)
	}
	if event.Copy == trace.CopyFill {
		return fmt.Sprintf("a fill of %d bytes", event.Bytes)
	}
	return fmt.Sprintf("a copy of %d bytes", event.Bytes)
}
