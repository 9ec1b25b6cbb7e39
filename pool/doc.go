// Package pool keeps the in-GPU portion: memory that stays on the device.
//
// # The story
//
// [Pool] is the one pool. It stitches (package stitch) from the first request on,
// and watches. Once it has seen two iterations of a job (package follow) it plans where
// the allocations of one lie (package plan), in the background; chooses, when an
// iteration begins, enough of the memory that is free then; maps it a second time as
// one range, in the background; and takes that range when a later iteration begins,
// if the memory is free again. From then on requests above 1 MiB that come as
// planned get their planned addresses. What lives across iterations stays where it
// is: nothing is moved.
//
// A request that is not in the plan, or whose place is in use, goes to stitching;
// one whose size varies goes to the gaps that the plan leaves during its life. When
// the job does something else for long, or memory runs out, the range is given up
// and its free memory serves everything; the plan is taken up again when the
// iterations go on. What an iteration left free from its begin to its end is given back.
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
// Before all of that stands the front (package front): it serves in C what the job
// has just freed and asks for again. Where iterations are followed without a miss, it follows
// the plan, too (script.go), and a request is a call into Go no more: it has for
// each step its place and the steps that lie there as well, none of which may be live. At the first
// request that is not the next one the pool goes on from what the front says is live.
//
// # Invariants
//
//   - A planned address is given out only when what is really there is free, and the
//     stream that used it last is the same one or known to be done.
//   - A block freed by one stream is reused only for that stream, until the other is
//     known to be done. Streams that were recorded must have passed their fence first.
//   - A plan that is wrong costs memory or time, never a value.
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
