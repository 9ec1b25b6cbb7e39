// Package bound is what is told of how near a job came to the best possible, and what the job leaves for
// those who find out.
//
// # The story
//
// A job that ends under the explicit engine knows what its last iterations launched, and how long that took. What an oracle, which
// knows the future, would have made of them has to be simulated; the simulator and the oracle are no part of the library that
// runs in the job. So the job leaves [Evidence] in its report, and the command that has them (package replay, `penstock
// report bound`) makes a [Bound] of it. Where `penstock run` started the job, it asks that command itself at its end.
//
// # Invariants
//
//   - What is measured comes from the job, what is simulated from the command: no field has both.
//   - The names of the fields in JSON are those of the report, whoever filled them in.
//
// # Caveats
//
// Evidence is of one build: a recording of the trace format's version, and no more is promised of it. It has
// the last iterations only.
package bound
