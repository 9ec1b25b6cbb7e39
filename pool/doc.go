// Package pool keeps the in-GPU portion: memory that stays on the device.
//
// # The story
//
// [Pool] is the one pool: a chain, each link of which ([Layer]) serves what it can and passes on the rest.
//
//   - The front (package front; front.go) serves in C what the job has just freed and asks for again. Where
//     iterations are followed without a miss, it follows the plan, too, and a request is a call into Go no more:
//     it has for each step its place and the steps that lie there as well, none of which may be live. At the first
//     request that is not the next one the pool goes on from what the front says is live.
//   - What is planned (package planned) has its place: after two iterations of a job it knows where each allocation lies.
//   - What is stitched (package stitch) is made of whatever memory is free, wherever it lies.
//
// What a link below needs of those above it asks for (package planned's Above): memory that the front holds, for instance.
//
// [Caching] is an allocator over segments of plain device memory that behaves as
// PyTorch's caching allocator does (c10/cuda/CUDACachingAllocator.cpp): requests
// are rounded to 512 bytes, those of up to 1 MiB share 2 MiB segments, larger
// ones of up to 10 MiB share 20 MiB segments, and what is larger still gets a
// segment rounded to 2 MiB; blocks are best fit within their stream's pool,
// split, and joined again with free neighbours. It serves the private pools of CUDA
// graphs, drivers that cannot map memory, and, over simulated managed memory, the
// baseline that Penstock is compared with.
//
// # Invariants
//
//   - A block freed by one stream is reused only for that stream, until the other is
//     known to be done. Streams that were recorded must have passed their fence first.
//   - The blocks of a segment cover it without gaps or overlaps; no two free
//     neighbours exist. [Caching.Check] and [Pool.Check] verify them.
//
// # Locks
//
// A Pool has one lock, held for less than a microsecond unless the driver is asked
// for memory; the front's comes after it. The goroutines that plan and map do so
// without it. A Caching has none: its owner holds a lock.
//
// # Tests
//
// TestRandom holds 8 threads on 4 streams against a reference model, with fewer
// operations than the full number:
//
//	go test ./pool -run 'TestRandom$' -ops 10000000 -v
package pool
