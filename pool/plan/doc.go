// Package plan decides before a job runs where each of its allocations will lie.
//
// # The story
//
// Training repeats: an iteration asks for the same sizes in the same order as the
// one before, so where everything goes can be decided once, with all lifetimes
// known, instead of at every call with none. [FromTrace] reads a recorded run, finds
// the steady iteration in it and the start-up before it, and turns their allocations
// into requests ([FromRecent] does so within a running process, for what is to
// come); [Place] gives every request an offset so that no two that are alive
// together overlap. The result is a [Plan], which can be kept in a file
// ([Plan.WriteFile], [ReadFile]) and which the online service follows call by call
// ([Plan.Lookup]).
//
// The problem is dynamic storage allocation, rectangle packing with the time axis
// fixed; it is NP-hard.
//
// # Time
//
// The clock of a plan is the number of allocations and frees that happened. What
// is alive at the end of an iteration and freed in the next (a loss that is read
// late) wraps around: its lifetime is two pieces of the period, and nothing else
// may lie there in either. What lives longer than an iteration, such as an output
// that is bound until the next one replaces it, has its next instance beside it:
// a period then has as many iterations as it takes, and each instance its own place.
//
// Iterations that differ in places (a mixture of experts) still make a plan when
// they are marked and mostly alike: the last of them is the period, and its follower
// must expect other sizes in places.
//
// # How places are found
//
// Every problem is first packed first fit and best fit in some fifty orders, of
// which grouping by size class and then by time is best on training jobs. What then
// is above its bound is searched exactly if it is small (up to 3000 requests, none
// pinned or wrapped): depth first over canonical placements with the prunings listed in
// exact.go, begun anew with other orders all the time. Large problems are packed
// again in orders near the best until that stops helping.
//
// # Invariants
//
//   - No placement leaves this package unchecked: [Check] is a separate sweep over
//     the result that shares no code with the search. Plans are checked as they
//     will be played, start-up and two periods ([Plan.Check]).
//   - A plan read from a file passed its checksum and then the same check.
//
// # Caveats
//
// A plan knows sizes and order, not streams' progress: who follows it orders reuse
// across streams itself. Nothing here is safe for concurrent use, except that a
// Plan is never changed once made and may be read by many.
package plan
