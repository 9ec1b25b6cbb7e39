package follow

import "github.com/penstock-gpu/penstock/pool/plan"

const (
	lookNear     = 4   // steps in which a request that is not the next is taken for a later one
	lookAhead    = 128 // the same, when the request before was the step before
	lookBack     = 128 // skipped steps that are remembered
	variation    = 8   // a varying step's size may be so many times another
	lostRequests = 16  // unexpected requests in a row before the hash is asked
)

// Follower walks along steps with a job.
type Follower struct {
	steps   *Steps
	next    int
	skipped []int // lately, and not made up for
	signer  plan.Signer
	lost    int   // unexpected requests in a row
	before  int64 // bytes of the last of them
	streak  int   // followed in a row
	synced  bool  // it was sure once
	last    int   // step that was followed in order
	turns   int
	streams map[uint64]uint64
	hit     []bool // steps that came
	missed  []bool // steps that did not, where others before and after them did

	// Counts since the follower began.
	Followed, Missing, Extra, Found int64
}

// NewFollower returns a follower at the first step.
func NewFollower(s *Steps) *Follower {
	return &Follower{steps: s, hit: make([]bool, len(s.List)), missed: make([]bool, len(s.List))}
}

// ByOrder makes the follower name streams by the order of their first use, as the
// steps of a plan's file do.
func (f *Follower) ByOrder() { f.streams = map[uint64]uint64{} }

// sure is how many requests in a row are followed by somebody who knows where he is.
const sure = 8

// Sure says whether the follower knows where the job is.
func (f *Follower) Sure() bool { return f.streak >= sure }

// Turns is how often an iteration began: a step came that stands before the one
// that came last.
func (f *Follower) Turns() int { return f.turns }

// Next is the step that a request is, if it is one.
func (f *Follower) Next(bytes int64, stream uint64) (step int, ok bool) {
	if step, ok = f.find(bytes, stream); ok {
		f.streak++
		f.hit[step], f.missed[step] = true, false
		if f.streak == sure && !f.synced { // what it took for steps until here were guesses
			f.synced = true
			clear(f.missed)
		}
	} else {
		f.streak = 0
	}
	return step, ok
}

func (f *Follower) find(bytes int64, stream uint64) (step int, ok bool) {
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
	list := f.steps.List
	if x := &list[f.next]; x.Stream == stream && (x.Bytes == bytes || x.Varies && x.Bytes <= bytes*variation && bytes <= x.Bytes*variation) {
		f.lost = 0
		f.Followed++
		return f.advance(f.next), true
	}
	for k, i := range f.skipped { // requests came in another order, or one was taken for a later one
		if x := &list[i]; x.Stream == stream && x.Bytes == bytes {
			f.skipped = append(f.skipped[:k], f.skipped[k+1:]...)
			f.lost = 0
			f.Followed++
			f.Missing--
			return i, true
		}
	}
	if i, ok := f.ahead(bytes, stream); ok {
		f.lost = 0
		f.Followed++
		return i, true
	}
	f.before = bytes
	f.Extra++
	if f.lost++; f.lost >= lostRequests {
		if i, ok := f.steps.bySignature[sign]; ok && list[i].Stream == stream {
			f.lost = 0
			f.Found++
			f.skipped = f.skipped[:0]
			f.last = int(i)
			return f.advance(int(i)), true
		}
	}
	return 0, false
}

// ahead looks for a request a little further on in the same iteration, or at the
// begin of the next.
func (f *Follower) ahead(bytes int64, stream uint64) (step int, ok bool) {
	list := f.steps.List
	i, last, n := f.next, f.next, 0
	for range min(lookAhead, len(list)-1) {
		if last, i = i, f.after(i); i == f.next {
			return 0, false
		}
		n++
		if x := &list[i]; x.Bytes == bytes && x.Stream == stream && !x.Varies && (n <= lookNear || f.lost > 0 && list[last].Bytes == f.before) {
			for k := f.next; k != i; k = f.after(k) {
				if len(f.skipped) == lookBack {
					f.skipped = f.skipped[:copy(f.skipped, f.skipped[1:])]
				}
				f.skipped = append(f.skipped, k)
				f.missed[k] = true
				f.Missing++
			}
			return f.advance(i), true
		}
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
