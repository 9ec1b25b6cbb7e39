// Package kernels is Penstock's own device code: a checksum of a range of
// memory and a search of ranges for words that look like addresses.
//
// # Story
//
// The explicit engine has to know two things about memory that only the device
// can look at quickly. Whether two states of it are the same: before and after a
// move (--verify), or now and when the host copy was made (a clean block leaves
// without a copy). And which allocations are named not by a launch but by the
// memory that the launch names, such as the pointer arrays of a batched GEMM.
//
// The code is PTX, put together in ptx.go, for every card since Volta; the
// driver compiles it in Load. Nothing of it needs a CUDA toolkit. Sum and Find
// are the same functions in Go, on memory of the host: they define what the
// kernels compute, and Check compares them on a real card.
//
// # The checksum
//
// Memory is read as little-endian words of 8 bytes, the last one filled up with
// zeros. Word w at index i contributes to two sums, modulo 2^64:
//
//	h = mix(mix(w + (i+1)·K, M0), M1)        first sum
//	y = mix(mix(h, M2), M3)                  second sum
//	mix(x, m) = the low 64 bits of (x ^ x>>32)·m, and one more x ^ x>>32 at the end of each pair
//
// Sums do not depend on the order of the blocks that add to them, and the index
// in the argument makes them depend on where a word is. Every step is a bijection
// of w, so a change of one word always shows; other changes go unnoticed with a
// probability of about 2^-128. It is no defence against somebody who wants a
// collision. Four multiplications a word leave it bound by memory: see `penstock
// selftest` for what a card does.
//
// # Memory and order
//
// A checksum writes one pair of sums for each of its blocks to memory of the
// caller (SumBytes of it, pinned), and the host adds them up: no atomics, nothing
// to clear before. A Finder counts in device memory the words of each of two spans of
// addresses, and writes the words themselves to pinned memory, as data of a job may
// hold tens of thousands that look like addresses. One launch looks through all
// ranges, cut into pieces with a block for each, and one of a single thread copies the
// counts to pinned memory and makes them 0, both on the stream of the caller. No copy
// engine takes part: it may be busy for hundreds of microseconds.
//
// # Caveats
//
//   - The kernels read what the range holds when the stream gets there. The
//     caller sees to it that nobody writes to it meanwhile, and that all of it is
//     mapped: an access to unmapped memory is fatal.
//   - A Finder sees words at multiples of 8 only, and counts more than it keeps
//     when the list is full: Found says so.
//   - Load is slow (the driver compiles) and belongs to a start. It fails with
//     cuda.ErrNotSupported on the simulated GPU, whose memory has no contents.
package kernels
