package follow

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/plan"
)

const (
	mostRecorded  = 1 << 18 // allocations remembered before all is forgotten
	leastRequests = 16      // in an iteration
	lowEvery      = 256     // requests, of which the least bytes live are kept
	sampled       = 16      // of long iterations' moments one in so many is considered, by its hash
	nearPeak      = 0.9     // of the highest peak: what counts as one
	nearFloor     = 0.3     // of the way from the floor up to the peak
	leastAlike    = 0.5     // of the requests of two iterations that are the same
	sameLength    = 64      // two iterations differ by at most one request in so many
	nearLive      = 64      // live bytes at both ends of an iteration differ by at most a 64th of the peak
	sameLive      = 4096    // the same of two moments that are alike when only one iteration came before
	mostAlike     = 0.9     // of them, when only one iteration before looks so
	resync        = 16      // requests that one of two iterations may have more, in a row
	occurrences   = 4       // of the same last requests that are remembered: layers are alike
	newWindow     = 2048    // requests, of which
	mostKnown     = 16      // one in so many may follow the same last requests as an earlier one, in a job that does not repeat
)

// request is one recorded allocation.
type request struct {
	bytes  int64 // rounded up
	stream uint64
	live   int64 // bytes live before it
	made   int64 // tick
	freed  int64 // tick; 0 while live
	since  int32 // requests since the same moment of what may be the iteration before; 0: it is not known
}

// Recorder records allocations and frees until it has seen an iteration.
type Recorder struct {
	requests []request
	live     map[cuda.Ptr]int32 // to requests
	tick     int64              // allocations and frees so far
	bytes    int64              // live
	signer   plan.Signer
	last     map[plan.Signature][occurrences]int32 // the last requests with it, plus 1
	peak     int64
	peakAt   int32   // the last request near the peak
	lows     []int64 // least bytes live, by lowEvery requests

	known   int32 // requests of this window that followed what an earlier one did
	repeats bool  // there were too many of them in the last window

	from, until int32 // the iteration being waited for; until is 0 when none was found
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	return &Recorder{live: map[cuda.Ptr]int32{}, last: map[plan.Signature][occurrences]int32{}, repeats: true}
}

// Repeats says whether what a job asks for follows what it has asked for before, as
// layers and iterations do. It is assumed until a stretch of requests shows otherwise.
func (r *Recorder) Repeats() bool { return r.repeats }

// Alloc notes an allocation. Once a whole iteration is known, it is returned.
func (r *Recorder) Alloc(p cuda.Ptr, bytes int64, stream uint64) *Steps {
	if len(r.requests) == mostRecorded {
		repeats := r.repeats
		*r = *NewRecorder()
		r.repeats = repeats
	}
	bytes = plan.RoundUp(bytes)
	i := int32(len(r.requests))
	r.tick++
	r.requests = append(r.requests, request{bytes: bytes, stream: stream, live: r.bytes, made: r.tick})
	r.live[p] = i
	if k := int(i / lowEvery); k == len(r.lows) {
		r.lows = append(r.lows, r.bytes)
	} else {
		r.lows[k] = min(r.lows[k], r.bytes)
	}
	r.bytes += bytes
	r.peak = max(r.peak, r.bytes)
	if float64(r.bytes) >= nearPeak*float64(r.peak) {
		r.peakAt = i
	}
	sign := r.signer.Call(bytes)
	seen := r.last[sign]
	if seen[0] > 0 {
		r.known++
	}
	if i%newWindow == newWindow-1 {
		r.repeats, r.known = r.known*mostKnown > newWindow, 0
	}
	for _, j := range seen {
		if n := i - (j - 1); j > 0 && r.until == 0 && (n <= lowEvery || sign%sampled == 0) {
			r.consider(j-1, i)
		}
	}
	copy(seen[1:], seen[:])
	seen[0] = i + 1
	r.last[sign] = seen
	if r.until == 0 || i < r.until {
		return nil
	}
	found, lasting := r.steps(r.from, r.until)
	if lasting && i < r.until+(r.until-r.from)/2 {
		return nil // it may be freed in the next iteration, and then has a place
	}
	found.Begins = i-r.until <= (r.until-r.from)/beginPart
	r.until = 0
	return found
}

// Free notes that an allocation ended; others than those recorded are left alone.
func (r *Recorder) Free(p cuda.Ptr) {
	i, ok := r.live[p]
	if !ok {
		return
	}
	delete(r.live, p)
	r.tick++
	r.requests[i].freed = r.tick
	r.bytes -= r.requests[i].bytes
}

// consider says whether requests j to i, after the same last requests, may be an
// iteration. It is taken for one when what came before is nearly the same, or when the one
// before had the same length. It begins where least memory is live, which may be later.
func (r *Recorder) consider(j, i int32) {
	n := i - j
	difference := r.requests[i].live - r.requests[j].live
	if n < leastRequests || r.peakAt <= j ||
		max(difference, -difference) > r.peak/nearLive {
		return
	}
	quiet, floor := j, r.requests[j].live
	for k := j; k < i; k++ {
		if r.requests[k].live < r.requests[quiet].live {
			quiet = k
		}
	}
	for _, low := range r.lows[i/3/lowEvery:] { // not from the beginning: an optimizer's state comes with the first iteration
		floor = min(floor, low)
	}
	if float64(r.requests[quiet].live-floor) > nearFloor*float64(r.peak-floor) {
		return // a part of an iteration
	}
	if max(difference, -difference) <= r.peak/sameLive && r.likeBefore(j, i) {
		r.from, r.until = quiet, quiet+n
		if r.until > i && !r.keeps(quiet-n, j) { // the iteration that ended there is known altogether
			r.from, r.until = quiet-n, quiet
		}
	} else if before := r.requests[j].since; before > 0 && max(n-before, before-n) <= n/sameLength {
		if n, share := r.period(i, n); share > leastAlike {
			r.from, r.until = quiet, quiet+n
		}
	}
	r.requests[i].since = n
}

// keeps says whether so many of the requests [from, to) still live that they cannot be
// part of what repeats; also when there are no such requests.
func (r *Recorder) keeps(from, to int32) bool {
	if from < 0 {
		return true
	}
	kept := int32(0)
	for k := from; k < to; k++ {
		if r.requests[k].freed == 0 {
			kept++
		}
	}
	return kept*sameLength > to-from
}

// likeBefore says whether the requests j to i are the same as those before j, but for
// what was kept since: an optimizer's state, which only the first iteration asks for.
func (r *Recorder) likeBefore(j, i int32) bool {
	same, other, a, b := int32(0), int32(0), i-1, j-1
	alike := func(a, b int32) bool { return a >= j && b >= 0 && r.requests[a].bytes == r.requests[b].bytes }
	for a >= j && b >= 0 {
		if r.requests[b].freed == 0 {
			b--
			continue
		}
		if !alike(a, b) {
			for d := int32(1); d <= resync; d++ {
				if alike(a, b-d) && alike(a-1, b-d-1) && alike(a-2, b-d-2) {
					b -= d
					break
				}
				if alike(a-d, b) && alike(a-d-1, b-1) && alike(a-d-2, b-2) {
					a -= d
					break
				}
			}
		}
		if alike(a, b) {
			same++
		} else if other++; float64(other) > (1-mostAlike)*float64(i-j) {
			return false
		}
		a, b = a-1, b-1
	}
	return float64(same) > mostAlike*float64(i-j)
}

// period is the length near n at which the requests before i are most like those one
// length earlier, and which share of them is the same.
func (r *Recorder) period(i, n int32) (best int32, share float64) {
	most := int32(-1)
	for d := range n / sameLength * 2 {
		m := n + (d+1)/2*(1-2*(d%2)) // n, n-1, n+1, n-2 ...
		same, from := int32(0), max(m, i-m)
		for k := from; k < i; k++ {
			if r.requests[k].bytes == r.requests[k-m].bytes {
				same++
			}
		}
		if same > most && i > from {
			best, most, share = m, same, float64(same)/float64(i-from)
		}
	}
	return best, share
}

// steps makes steps of the requests [from, until). It says whether some of them have
// not been freed yet.
func (r *Recorder) steps(from, until int32) (s *Steps, lasting bool) {
	begin, end := r.requests[from].made, r.requests[until].made
	s = &Steps{Ticks: end - begin}
	var signer plan.Signer
	for k := max(0, from-plan.SignatureCalls); k < from; k++ {
		signer.Call(r.requests[k].bytes)
	}
	for _, q := range r.requests[from:until] {
		x := Step{Bytes: q.bytes, Stream: q.stream, Offset: unplaced, Lower: q.made - begin, Upper: q.freed - begin, signature: signer.Call(q.bytes)}
		if outlives := q.freed == 0 || q.freed > end; outlives {
			x.Upper, x.Again = s.Ticks, q.freed-end
			// Unless it ends in the next iteration before its like comes there, it is no part of what repeats.
			x.Lasting = q.freed == 0 || x.Again > x.Lower
			lasting = lasting || q.freed == 0
		}
		s.List = append(s.List, x)
	}
	s.index()
	return s, lasting
}
