// Package phase tells the phases of training, forward, backward and optimizer, by the names of the kernels that are
// launched, as they come. It is used while a job runs and on recordings.
//
// # Invariants
//
//   - Nothing is looked at but names and their order; a launch's phase is known when it comes.
//
// # Caveats
//
//   - Most names tell nothing: a launch without a word of its own belongs to the phase that is on. On logs of six training
//     jobs at most 1.5 % of the launches came out in another phase than the log says.
//   - The first launches behind an optimizer belong to it still.
package phase
