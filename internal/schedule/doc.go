// Package schedule makes recordings of jobs that run several programs by turns out of a launch log of one that trains.
//
// [Cut] takes the last iteration of a log apart: what stays (weights, the optimizer's state) and what an iteration makes,
// and the three parts forward, backward and update. A [Job] plays these parts in any order, on one model or several:
// training, evaluation, generation token by token, batches that are accumulated, layers that are left out. [Names] are
// schedules of such jobs, and [New] makes one.
//
// # Invariants
//
//   - What comes out is valid (trace.Validate): nothing is used before it was allocated or after it was freed.
//   - The same log and name give the same recording.
//
// # Caveats
//
// These are made up. Durations and sizes of other batches are those of the log, scaled; an evaluation is the forward part, whose
// tensors die after their last use in it; a token is that with an eighth of the kernels' names and a part of the sizes.
// For tests and for benches of the simulator only.
package schedule
