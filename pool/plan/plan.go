package plan

import "math"

// AlignBytes is what offsets and sizes are multiples of, as PyTorch's allocator has it.
const AlignBytes = 512

// Unplanned is the Offset of a call that has no place in the plan: the next time
// it may come with another size, or live longer than a period.
const Unplanned = -1

// Forever is the Upper of what is never freed.
const Forever = math.MaxInt64

// Plan says where every allocation of a job goes. The calls of Prologue come
// once, from the start of the process; those of Period follow, again and again.
type Plan struct {
	Job           Job
	ArenaBytes    int64 // what the placements need, from offset 0
	PeakLiveBytes int64 // most bytes alive at once in the recording, as requested: no plan can need less
	// UnplannedBytes is the most that calls without a place had alive at once in the recording.
	UnplannedBytes int64

	Prologue       []Call
	PrologueEvents int64 // allocations and frees in it
	Period         []Call
	PeriodEvents   int64
	Iterations     int // training iterations in a period; 0 when the trace did not say

	bySignature map[Signature][]int32 // calls of Period
}

// Call is one allocation of the plan.
type Call struct {
	Bytes  int64 // as requested; it takes up RoundUp(Bytes)
	Offset int64 // in the arena, or Unplanned
	Stream int   // 0, 1, ... in order of first use

	// Lifetime, in allocations and frees since the Prologue or the Period began.
	// An Upper past the end of the prologue counts on into the first period, one
	// past the end of the period into the next; Forever is never freed.
	Lower, Upper int64

	// Signature of the calls up to this one: how a lost follower finds its way back.
	Signature Signature
}

// Resident says that the call is never freed.
func (c Call) Resident() bool { return c.Upper == Forever }

// RoundUp is the bytes that a request takes up.
func RoundUp(bytes int64) int64 { return (bytes + AlignBytes - 1) / AlignBytes * AlignBytes }

// Lookup gives the planned call number sequence (0 is the first allocation of the
// process); false when the plan has none.
func (p *Plan) Lookup(sequence int) (Call, bool) {
	if i := sequence - len(p.Prologue); i >= 0 {
		if len(p.Period) == 0 {
			return Call{}, false
		}
		return p.Period[i%len(p.Period)], true
	}
	if sequence < 0 {
		return Call{}, false
	}
	return p.Prologue[sequence], true
}

// Find gives the positions in Period, ascending, at which a follower that has seen
// these last calls may be. The slice is the plan's own: it must not be changed.
func (p *Plan) Find(s Signature) []int32 { return p.bySignature[s] }

// finish derives what is not kept in files: signatures, and where they are.
func (p *Plan) finish() {
	var signer Signer
	for i := range p.Prologue {
		p.Prologue[i].Signature = signer.Call(p.Prologue[i].Bytes)
	}
	for _, c := range p.Period {
		signer.Call(c.Bytes) // what comes before the period is, most often, its end
	}
	p.bySignature = make(map[Signature][]int32, len(p.Period))
	for i := range p.Period {
		s := signer.Call(p.Period[i].Bytes)
		p.Period[i].Signature = s
		p.bySignature[s] = append(p.bySignature[s], int32(i))
	}
}
