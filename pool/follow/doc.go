// Package follow serves a plan online: it finds out where in the planned iteration
// a job is from nothing but the requests that the job makes, and says where each
// belongs.
//
// # The story
//
// A [Recorder] watches the large allocations and frees of a process until it has
// seen one iteration: two moments with the same last requests and as much memory
// live, a peak between them, and a fair share of all requests so far. It turns the
// stretch from the quietest moment to the next into [Steps]. Steps.Plan gives each
// a place (package plan); steps whose size was another in the iteration before
// have none, but a list of the gaps that everything planned leaves during
// their life. A [Follower] then walks along the steps with the job, and a [Layout]
// knows what really lies in the planned addresses, whatever the plan says.
//
// # Resynchronisation
//
// A request that is not the one expected is looked for among those lately skipped
// (requests came in another order, as with several threads), then a little ahead
// (requests are missing), and else is taken for the expected one, resized; if it
// was extra, the expected one is among those skipped when it comes. A follower that
// is lost altogether keeps all the steps that the job may be at, by the hash of the last
// requests, until what follows leaves one.
//
// # Invariants
//
//   - A Layout never gives out what is in use, nor what another stream freed before
//     that stream's work is known to be done. A wrong guess of the Follower is thus
//     never an error, only a request that is served elsewhere.
//   - Memory is bounded: a Recorder that finds nothing forgets and starts again.
//
// # Caveats
//
// Nothing here is safe for concurrent use, but Steps.Plan may run beside
// everything else: it works on its own copy.
package follow
