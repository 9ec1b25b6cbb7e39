// Package pool keeps the in-GPU portion: memory that stays on the device.
//
// [Caching] is an allocator over segments of plain device memory that behaves as
// PyTorch's caching allocator does (c10/cuda/CUDACachingAllocator.cpp): requests
// are rounded to 512 bytes, those of up to 1 MiB share 2 MiB segments, larger
// ones of up to 10 MiB share 20 MiB segments, and what is larger still gets a
// segment rounded to 2 MiB; blocks are best fit within their stream's pool,
// split, and joined again with free neighbours. It serves small allocations of
// both engines, everything when a job fits, and, over simulated managed memory,
// the baseline that Penstock is compared with.
//
// # Invariants
//
//   - A block freed by one stream is reused only for that stream. Other streams
//     that used it (record_stream) must have passed their fence first.
//   - The blocks of a segment cover it without gaps or overlaps; no two free
//     neighbours exist. [Caching.Check] verifies both.
//
// # Caveats
//
// A Caching is not safe for concurrent use: its owner holds a lock.
package pool
