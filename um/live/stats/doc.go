// Package stats is what is told of an engine in a process: a snapshot in numbers, and at the end of a job a verdict in words.
//
// # Story
//
// [Stats] is the snapshot, and its JSON keys are those of penstock_stats (cabi/penstock.h). Whoever stands above the engine fills in
// what is no matter of the engine, and the engine the rest. It leaves its [Part] of the verdict there as well, so that nobody
// asks later which engine the snapshot is of.
//
// # Caveats
//
// What cannot be known here is [Unavailable], and never zero.
package stats
