// Package swapped is the explicit engine in a process: chunks of physical memory, which package um/explicit moves by copies.
//
// # Story
//
// The loop reads the launch hook's ring and the streams' progress, answers launches that ask for a
// grant, has their memory searched and finds out which need not be (follow.go). There is a worker for each direction, which finds out
// what to move, maps and unmaps, and has checksums taken of what leaves; and the
// lane, which copies out one piece after the other and does nothing else: the
// next piece is to follow at once, or, while memory is mapped or unmapped, to leave that a moment.
//
// Most allocations and frees of tensors do not come here: package front serves them, and the ring's reader hears of them (front.go).
//
// What leaves need not be copied where it can be made again: access.go says what launches do with what they name, trial.go and
// workspace.go find it out where names do not tell, and verify.go tries it before anything is dropped.
//
// At the end of a job the engine says how near it came to an oracle, from what its
// runtime remembers of the last iterations; the penstock command simulates it (bound.go).
//
// # Waiting
//
// The threads here do call libcuda. A launch waits in the hook,
// outside libcuda, so that none of its locks is held meanwhile; what is under way
// already, the stream waits for.
//
// # Failure
//
// If it fails, launches that would need absent memory are refused
// with an error that the framework understands.
package swapped
