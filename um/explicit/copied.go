package explicit

import "github.com/penstock-gpu/penstock/um"

// This file is for why memory that leaves is copied where it might have been dropped.

// Cause is why a tensor that left was copied instead of being dropped, to be made again.
type Cause int

// Causes, of which the first that holds counts.
const (
	Swapped     Cause = iota // nothing is made again
	NotRecorded              // something wrote to it that cannot be issued again, or will have: it is older than an iteration
	OtherLevel               // what makes it is not issued again at present: see level.go
	FoundWrong               // it was found not to be what its recipe makes, or that could not be verified
	InPieces                 // it is in several chunks
	Borrowed                 // it is in memory of a larger size
	Retained                 // the job has freed it, and others are to be made of it
	InputsGone               // what it is made of has been freed or written to since
	Distrusted               // a function of its recipe, or recipes like it, were wrong too often
	TooLarge                 // there is not so much memory to verify it in
	InputsAway               // what it is made of is not on the device
	NotYet                   // it had to leave before it was verified
	Insured                  // a function of its recipe has not been right often enough yet
	Causes
)

func (c Cause) String() string {
	return [...]string{"swapped", "not_recorded", "other_level", "found_wrong", "in_pieces", "borrowed", "retained", "inputs_gone", "distrusted", "too_large", "inputs_away", "not_yet", "insured"}[c]
}

// cause says why a tensor that leaves is copied.
func (r *recipes) cause(t *tensor, drop bool) Cause {
	switch m := &t.recipe; {
	case r.config.Replay == um.ReplayOff:
		return Swapped
	case drop:
		return Insured
	case m.wrong:
		return FoundWrong
	case !r.hasRecipe(t) || r.isState(t):
		return NotRecorded
	case !r.makesNow(t):
		return OtherLevel
	case len(t.chunks) != 1:
		return InPieces
	case t.borrowed:
		return Borrowed
	case t.retained:
		return Retained
	case !r.inputsLast(t):
		return InputsGone
	case r.distrusts(t) || r.disproven(t):
		return Distrusted
	case !r.fits(t):
		return TooLarge
	case t.remake == nil:
		return InputsAway
	}
	return NotYet
}
