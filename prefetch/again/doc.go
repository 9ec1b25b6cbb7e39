// Package again plans which memory is not moved across the bus but given up, and made
// again by issuing the launches that made it.
//
// # Story
//
// The bus is 20 to 60 times dearer than the kernel that computes what would cross it. A
// [Job] is some iterations of a program: its operations in order, each with what it
// reads and writes, and tensors with sizes, births and deaths. A tensor's version is
// its last writer. A version is made again by issuing all that wrote the tensor since its
// birth, in order, whose own inputs must be there or be made again in turn. What lives
// across iterations (weights, states of an optimizer) is never made again.
//
//  1. Candidates are the gaps between two uses that an eviction of what is used farthest in
//     the future would open in a smaller budget (gaps.go).
//  2. They are taken in windows: gaps that end near each other. In each a minimum cut decides for
//     every version in reach: keep it, at the price of its bytes on the bus or of nothing where it is
//     there anyway, or make it again, at the price of its launches, with everything that they need
//     (window.go, cut.go). What the job has freed may be kept for a launch that reads it.
//  3. The decisions are carried out on paper, position by position: which launch names which memory, what
//     is scratch and for how long (steps.go). A candidate that turns out to lack something
//     is moved after all.
//
// The result is a [Plan] in positions: what is dropped after which operation, which launches are issued before which
// operation on which memory, what is kept after the job freed it. It knows no simulator
// and no engine: whoever carries it out has to move the rest within the budget.
//
// # Invariants
//
//   - A launch of a plan reads versions that are what the original read. It writes nothing that the job
//     still has but the tensors that are being made.
//   - Every dropped tensor is back before the job's next use of it.
//
// # Caveats
//
// Roles are taken as they are given: with a wrong one a plan computes something else. Package
// oracle/rewrite checks a plan against its job by following symbolic values; a live engine has to compare checksums.
// A launch that works in place and has other outputs besides is never issued again. Prices know the bus one tensor
// at a time, so a caller tries several [Options] and takes what its own schedule finds the fastest.
package again
