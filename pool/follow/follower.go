package follow

import "github.com/penstock-gpu/penstock/pool/plan"

const (
	lookNear     = 4   // steps in which a request that is not the next is taken for a later one
	lookAhead    = 128 // the same, when the request before was the step before
	lookBack     = 128 // skipped steps that are remembered
	mostResized  = 2   // unexpected requests in a row that are each taken for the step expected, resized
	variation    = 8   // a varying step's size may be so many times another
	lostRequests = 16  // unexpected requests in a row, after which the follower does not know where it is
	sure         = 8   // expected requests in a row, after which it does
	mostTrust    = 32  // trust goes up by one with each expected request, and down by two with others
	beginPart    = 32  // of an iteration is still its begin, one part in so many
	mostGuesses  = 64
)

// Follower walks along steps with a job.
type Follower struct {
	steps   *Steps
	located bool
	guesses []int // while not located: the steps that the last request may have been
	held    int   // requests that the guesses have stood

	next    int
	last    int   // step that was followed in order
	skipped []int // lately, and not made up for
	lost    int   // unexpected requests in a row
	before  int64 // bytes of the last of them
	streak  int   // followed in a row
	longest int
	trust   int
	turns   int
	asked   int // requests

	signer  plan.Signer
	streams map[uint64]uint64
	hit     []bool // steps that came in this turn
	missed  []bool // steps that did not, where others before and after them did
}

// NewFollower returns a follower that does not know where the job is.
func NewFollower(s *Steps) *Follower {
	return &Follower{steps: s, hit: make([]bool, len(s.List)), missed: make([]bool, len(s.List))}
}

// NewFollowerFromStart returns one for a job that has not begun. It names streams by
// the order of their first use, as the steps of a plan's file do.
func NewFollowerFromStart(s *Steps) *Follower {
	f := NewFollower(s)
	f.located, f.streams = true, map[uint64]uint64{}
	return f
}

// Longest is how many requests in a row were steps, at most, since it was last asked.
func (f *Follower) Longest() int {
	n := f.longest
	f.longest = f.streak
	return n
}

// InOrder says whether so many requests in a row, and the one before them, were the next step each.
func (f *Follower) InOrder(requests int) bool { return f.located && f.streak > requests }

// Place is the step that is to come, while the follower is located.
func (f *Follower) Place() int { return f.next }

// Skip tells of requests that were the next step each, and after which another one is; turns is how often an iteration began.
func (f *Follower) Skip(next, requests, turns int) {
	if requests == 0 {
		return
	}
	f.last, f.next = next-1, next
	if next == f.steps.Start { // after the last one
		f.last = len(f.steps.List) - 1
	}
	f.turns += turns
	f.asked += requests
	f.streak, f.trust, f.lost = f.streak+requests, mostTrust, 0
	f.longest = max(f.longest, f.streak)
	f.skipped = f.skipped[:0]
}

// Requests is how many requests the follower was told of.
func (f *Follower) Requests() int { return f.asked }

// AtBegin says whether the follower knows that the job is near the begin of an iteration.
func (f *Follower) AtBegin() bool {
	into := f.next - f.steps.Start
	return f.located && f.trust >= mostTrust/2 && into >= 0 && into <= max(lookNear, len(f.steps.List)/beginPart)
}

// Turns is how often an iteration began: a step came that stands before the one
// that came last.
func (f *Follower) Turns() int { return f.turns }

// Coming are the places of the next steps, at most so many.
func (f *Follower) Coming(most int, buffer []Gap) []Gap {
	buffer = buffer[:0]
	i := f.next
	for range min(most, len(f.steps.List)) {
		if x := &f.steps.List[i]; x.Offset != unplaced {
			buffer = append(buffer, Gap{x.Offset, x.Offset + x.Bytes})
		}
		i = f.after(i)
	}
	return buffer
}

// Forget begins to count anew which steps came and which were missed.
func (f *Follower) Forget() {
	clear(f.hit)
	clear(f.missed)
}

// Next is the step that a request is, if it is one.
func (f *Follower) Next(bytes int64, stream uint64) (step int, ok bool) {
	f.asked++
	bytes = plan.RoundUp(bytes)
	sign := f.signer.Call(bytes)
	if f.streams != nil {
		n, known := f.streams[stream]
		if !known {
			n = uint64(len(f.streams))
			f.streams[stream] = n
		}
		stream = n
	}
	if f.located {
		step, ok = f.find(bytes, stream)
	} else {
		step, ok = f.locate(bytes, stream, sign)
	}
	if !ok {
		f.streak, f.trust = 0, max(0, f.trust-2)
		return 0, false
	}
	f.streak, f.trust = f.streak+1, min(f.trust+1, mostTrust)
	f.longest = max(f.longest, f.streak)
	f.hit[step], f.missed[step] = true, false
	return step, true
}

// is says whether a request is a step.
func (x *Step) is(bytes int64, stream uint64) bool {
	return x.Stream == stream && (x.Bytes == bytes || x.Varies && x.Bytes <= bytes*variation && bytes <= x.Bytes*variation)
}

// locate follows all the steps that the job may be at, until one is left. Layers are
// alike: what comes before and after them is not.
func (f *Follower) locate(bytes int64, stream uint64, sign plan.Signature) (step int, ok bool) {
	kept := f.guesses[:0]
	for _, i := range f.guesses {
		if i = f.after(i); f.steps.List[i].is(bytes, stream) {
			kept = append(kept, i)
		}
	}
	f.held++
	if len(kept) == 0 {
		f.held = 0
		for _, i := range f.steps.bySignature[sign] {
			if x := &f.steps.List[i]; len(kept) < mostGuesses && x.Bytes == bytes && x.Stream == stream {
				kept = append(kept, int(i))
			}
		}
	}
	f.guesses = kept
	// After a whole turn those that are left are the same to us.
	if len(kept) == 0 || f.held < sure || len(kept) > 1 && f.held < len(f.steps.List) {
		return 0, false
	}
	f.located, f.lost, f.skipped = true, 0, f.skipped[:0]
	f.streak, f.trust = f.held, min(f.held, mostTrust)
	return f.advance(kept[0]), true
}

// find looks for a request near where the follower is.
func (f *Follower) find(bytes int64, stream uint64) (step int, ok bool) {
	list := f.steps.List
	if list[f.next].is(bytes, stream) {
		f.lost = 0
		return f.advance(f.next), true
	}
	for k, i := range f.skipped { // requests came in another order, or one was taken for a later one
		if x := &list[i]; x.Stream == stream && x.Bytes == bytes {
			f.skipped = append(f.skipped[:k], f.skipped[k+1:]...)
			f.lost = 0
			return i, true
		}
	}
	if i, ok := f.ahead(bytes, stream); ok {
		f.lost = 0
		return i, true
	}
	f.before = bytes
	if f.lost++; f.lost <= mostResized { // the step expected comes in another size; if not, it is found among those skipped
		f.skip(f.next)
		f.next = f.after(f.next)
	}
	if f.lost >= lostRequests {
		f.located, f.guesses, f.held = false, nil, 0
	}
	return 0, false
}

// skip notes that a step did not come.
func (f *Follower) skip(i int) {
	if len(f.skipped) == lookBack {
		f.skipped = f.skipped[:copy(f.skipped, f.skipped[1:])]
	}
	f.skipped = append(f.skipped, i)
	f.missed[i] = true
}

// ahead looks for a request a little further on in the same iteration, or at the
// begin of the next.
func (f *Follower) ahead(bytes int64, stream uint64) (step int, ok bool) {
	list := f.steps.List
	i := f.next
	for n := 1; n <= min(lookAhead, len(list)-1); n++ {
		last := i
		if i = f.after(i); i == f.next {
			return 0, false
		}
		x := &list[i]
		if x.Bytes != bytes || x.Stream != stream || x.Varies || n > lookNear && (f.lost == 0 || list[last].Bytes != f.before) {
			continue
		}
		for k := f.next; k != i; k = f.after(k) {
			f.skip(k)
		}
		return f.advance(i), true
	}
	return 0, false
}

// after is the step that follows one.
func (f *Follower) after(i int) int {
	if i++; i == len(f.steps.List) {
		return f.steps.Start
	}
	return i
}

// advance goes on to the step after i.
func (f *Follower) advance(i int) int {
	if i < f.last {
		f.turns++
	}
	f.last, f.next = i, f.after(i)
	if f.next == f.steps.Start {
		f.skipped = f.skipped[:0]
	}
	return i
}
