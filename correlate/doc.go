// Package correlate learns which memory the coming kernels will touch.
//
// Two learners live here, and they answer different questions.
//
// [History] is Penstock's own. Training repeats, and a launch's parameters name
// its tensors, so the access set of every launch is known the first time it is
// seen. What has to be predicted is only the order of what comes next. History
// therefore keeps a log of what happened (operations, allocations, frees) and a
// cursor into it: the place in the past that looks like the present. As long as
// operations arrive as they did after the cursor, the log after the cursor is
// the future. This is address streaming (Wenisch et al., HPCA 2009) at the
// granularity of launches. Allocations are matched by where in the sequence
// they were made, not by address, so the prediction holds when addresses differ
// from one iteration to the next. When the present departs from the past (a
// changed batch size, an evaluation between epochs, an expert that got no
// tokens) the cursor is realigned nearby, or found again through an index of
// recent contexts, or admitted to be lost.
//
// Several programs by turns (training and evaluation, two models, tokens and an update) are several contexts of one log. Where the
// present departs from what is repeated, or does the same with tensors that stay other than those, or keeps much more alive, or less,
// the places in the log where such a tensor was used are compared: that from which the past goes back the longest as it did now is where
// the cursor goes on ([History] does so in search.go). So it follows the last round of a schedule, not the last iteration, and what is
// needed after a switch is known before it, as the last round had it. Until a schedule has been seen once nothing is known across its
// switches. A batch of another size that begins like the others is followed as one of them at first, and not searched for. What
// lies further back than the log remembers is learned anew. Layers that are left out at random are found, and the explicit engine is no
// faster for it. What switches cost is in bench/results/simulated-switches.md (simulated).
//
// Where shapes change (each batch padded to its longest member) no iteration has the sizes of another, and yet runs the same
// program. When most allocations have another size than those at the same place in the past ([History.Varies]), lives are
// matched by their place alone; an operation of another function that touches what the next one is to touch is taken for that
// one, for another size takes another kernel; and how large what is to come will be follows from what has come: where an
// allocation of one size has another now, so will the others of that size. Allocations that
// share a range are known one by one, for they share it with others each time (group.go). How far that goes
// is in bench/results/simulated-changing.md (simulated).
//
// [Tables] are the correlation tables of DeepUM (Jung, Kim, Lee; ASPLOS '23):
// execution IDs, an execution table with history, and per-execution block
// tables walked by chaining. They learn from blocks alone, know neither tensors
// nor their deaths, and serve the deepum policy, the baseline that Penstock is
// compared with.
//
// # Invariants
//
//   - Memory is bounded: the log, the instances it names, the context index and
//     the tables all have caps; the oldest entries are dropped first.
//   - Positions count observed operations from the start of the process and
//     never repeat. The cursor is always behind the newest operation.
//
// # Caveats
//
// Nothing here is safe for concurrent use: the caller (an engine of package um) holds its
// lock. A prediction is a guess; callers must stay correct when it is wrong.
package correlate
