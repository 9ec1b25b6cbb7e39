// Package oracle computes the clairvoyant bound: how fast a recorded training
// run could go inside a memory budget if the future were known and software
// cost nothing. Every policy is measured against it.
//
// # Story
//
// A trace becomes a [program]: launches in order, each with a duration and
// the items it touches. An item is a piece of at most [Options.PieceBytes] of
// one allocation, so a large tensor may move and leave in parts. Then, for
// several plans:
//
//  1. The planner walks the launches in order, in positions and not in
//     seconds, and wherever the demand exceeds the budget sends away the items
//     whose present gap between two uses ends farthest in the future (Belady).
//     The result is a list of gaps: this item need not be here after launch u,
//     must be away by launch e and back at launch v.
//  2. The scheduler executes the gaps in seconds. Each direction of the bus
//     works one piece at a time. A copy out starts as soon as the gap opens,
//     earliest deadline first; a copy in runs ahead as far as no position
//     between now and its use would overflow, nearest use first. A copied-out
//     item is not dropped before its space is wanted, so a gap that turns out
//     to be unnecessary costs no copy back.
//
// The plans differ in how much room they leave for running ahead and in how
// they weigh memory that dies without being used again; the fastest schedule
// counts.
//
// # What it may not do
//
// It is a bound for programs that must stay correct. Memory that has not been
// freed keeps its contents even when the trace never uses it again. Touched
// memory counts as written unless the trace says that it was only read (one
// imported from kernel parameters never does). The budget is never exceeded:
// what comes in occupies space from the start of its copy, what goes out until
// the end of it. An allocation occupies nothing before its first use.
// Allocations below [Options.SmallBytes], and those that no launch was ever
// seen to touch (library workspaces), are resident while they live.
//
// It knows the device and the bus. With [Options.LaunchCost] it knows the job's CPU as well, which no
// engine makes faster: a launch starts when the job has come to it. What copies cost the CPU it does not know.
//
// # Caveats
//
// The schedule is a good one, not a proven optimum: the true bound may be a
// little lower. Launches run one after the other in program order, also those
// on different streams. All iterations are simulated in sequence, so that the
// last one starts from what the ones before left; to keep the end of the trace
// from looking like an iteration whose state nobody needs any more, the last
// iteration is followed by a repetition of itself wherever its allocations
// repeat ([Options.NoRepeat] turns this off).
package oracle
