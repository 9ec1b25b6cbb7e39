// Package rewrite carries a plan of package prefetch/again out in a trace, and proves that the job computes the same.
//
// # Story
//
// A [Job] is a trace as the planner wants it: operations with the roles of their operands, and what may be issued
// again. [Job.Rewrite] gives the trace that a plan makes of it: a drop is a free, what is made again is an
// allocation with its launches in front of the use, on the job's own time line and charged in full, scratch and what is kept are
// allocations like any other. The oracle can then schedule the rest of the traffic in it as in any trace.
//
// [Job.Check] follows symbolic values through both. What an operation writes is a hash of which operation it is, of all
// that it reads, and of what was there before, since it may write a part. A rewritten trace passes if every operand of every operation
// of the job holds the hash that it holds in the trace as it was, whatever was dropped and made in between,
// and if everything that lives at the end does. A launch that is issued again has the hash of the first time
// exactly when it reads the same.
//
// # Caveats
//
// The check proves the plan and not the roles: it takes them as the job has them ([Job.Inferred] says whether the trace said them itself).
// Memory that nobody has written compares equal to other such memory. What an operation leaves in a
// workspace means something for the next few operations only. Hashes have 64 bits.
package rewrite
