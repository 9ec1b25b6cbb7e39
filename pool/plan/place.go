package plan

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// DefaultTimeLimit is the time limit of [Options] without one.
const DefaultTimeLimit = 10 * time.Second

// Options say how hard to try.
type Options struct {
	CapacityBytes int64            // be content below it; 0: as low as can be
	TimeLimit     time.Duration    // 0: DefaultTimeLimit
	Workers       int              // threads that search; 0: as many as Go uses
	Progress      func(best int64) // called with the bytes of each new best placement; may be nil
}

// Placement is where everything goes.
type Placement struct {
	Offsets       []int64 // by request
	Bytes         int64   // the highest end of a request: what the placement needs
	PeakLiveBytes int64   // most bytes alive at once
	BoundBytes    int64   // no placement can need less; more than the peak where the search proved it
}

// Place gives every request an offset. It returns the best placement found when it
// reaches the capacity or the bound, when the time is up, when it has stopped
// getting better, or when ctx ends, which is no error. A request that cannot be is
// an *InputError. The first placement is always made, whatever the time limit.
//
// With the time the machine comes into it: two runs may find different placements.
func Place(ctx context.Context, requests []Request, o Options) (Placement, error) {
	p, err := newProblem(requests)
	if err != nil {
		return Placement{}, err
	}
	s := newSearch(ctx, p, o)
	s.greedy()
	if s.open() {
		if len(p.buffers) <= mostExactBuffers && !p.wraps && !p.pinned {
			s.exactly()
		} else {
			s.improve()
		}
	}
	result := Placement{Offsets: make([]int64, len(requests)), Bytes: s.best, PeakLiveBytes: p.peakBytes, BoundBytes: s.bound}
	for k, i := range p.index {
		result.Offsets[i] = s.offsets[k]
	}
	if err := Check(requests, result.Offsets, result.Bytes); err != nil {
		return Placement{}, err
	}
	return result, nil
}

// search is the state of one Place, shared by its workers. mu guards best, bound,
// offsets, order and bestAt.
type search struct {
	p        *problem
	ctx      context.Context
	begun    time.Time
	deadline time.Time
	content  int64 // low enough
	progress func(int64)
	workers  int

	mu      sync.Mutex
	best    int64 // 0: nothing yet
	bound   int64
	offsets []int64
	order   []int32 // that gave best, when an order did
	bestAt  time.Time
}

func newSearch(ctx context.Context, p *problem, o Options) *search {
	limit := o.TimeLimit
	if limit <= 0 {
		limit = DefaultTimeLimit
	}
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	now := time.Now()
	return &search{p: p, ctx: ctx, begun: now, deadline: now.Add(limit), bestAt: now, content: max(p.boundBytes, o.CapacityBytes),
		bound: p.boundBytes, progress: o.Progress, workers: workers, offsets: make([]int64, len(p.buffers))}
}

// open says that it is worth going on.
func (s *search) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.best > max(s.content, s.bound) && !s.over()
}

// over says that the time is up.
func (s *search) over() bool { return s.ctx.Err() != nil || time.Now().After(s.deadline) }

// stop is open for the inside of a worker's step.
func (s *search) stop() bool { return !s.open() }

// offer keeps a placement if it is the best. order is what it was packed in, or nil.
func (s *search) offer(bytes int64, offsets []int64, order []int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.best > 0 && bytes >= s.best {
		return false
	}
	s.best, s.order, s.bestAt = bytes, slices.Clone(order), time.Now()
	copy(s.offsets, offsets)
	if s.progress != nil {
		s.progress(bytes)
	}
	return true
}

// each runs work on all workers.
func (s *search) each(work func(worker int)) {
	var wg sync.WaitGroup
	for w := range s.workers {
		wg.Go(func() { work(w) })
	}
	wg.Wait()
}

// greedy packs in all the orders that are known to be good.
func (s *search) greedy() {
	all := orderings()
	offsets := make([]int64, len(s.p.buffers))
	// Without a first placement there would be nothing to return.
	if len(s.p.buffers) >= quickBuffers && !s.p.pinned {
		longestFirst := s.p.order(ordering{byLife, firstFit})
		s.offer(s.p.skyline(longestFirst, offsets), offsets, longestFirst)
	} else {
		first := s.p.order(all[0])
		height, _ := s.p.pack(first, all[0].fit, 0, offsets, func() bool { return false })
		s.offer(height, offsets, first)
		all = all[1:]
	}
	next := make(chan ordering)
	go func() {
		defer close(next)
		for _, o := range all {
			if !s.open() {
				return
			}
			next <- o
		}
	}()
	s.each(func(int) {
		offsets := make([]int64, len(s.p.buffers))
		for o := range next {
			order := s.p.order(o)
			if height, ok := s.p.pack(order, o.fit, s.limit(), offsets, s.stop); ok {
				s.offer(height, offsets, order)
			}
		}
	})
}

// limit is what a new placement must stay below.
func (s *search) limit() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.best
}

// exactly searches small problems.
func (s *search) exactly() {
	s.each(func(worker int) {
		r := newRanker(s.p, uint64(worker))
		e := newExact(s.p)
		for try := 1; s.open(); try++ {
			goal := s.goal(try)
			e.capacity, e.stop = goal, s.stop
			if e.run(r.next(e.dead), luby(try)*nodesPerBuffer*int64(len(s.p.buffers))) {
				var height int64
				for i, at := range e.offsets {
					height = max(height, at+s.p.buffers[i].bytes)
				}
				s.offer(height, e.offsets, nil)
			} else if !e.stopped {
				s.refuted(goal)
			}
		}
	})
}

// goal is what a try aims at: mostly at what would be enough, now and then at half way there.
func (s *search) goal(try int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	low := max(s.content, s.bound)
	if try%16 == 15 {
		return low + (s.best-1-low)/2
	}
	return low
}

// refuted says that nothing fits in so many bytes.
func (s *search) refuted(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = max(s.bound, bytes+1)
}
