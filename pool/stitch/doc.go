// Package stitch is an allocator of device memory that does not fragment: where no
// free memory is large enough in one piece, it makes one range of addresses over
// several (GMLake, ASPLOS '24).
//
// # The story
//
// Physical memory comes in chunks, one handle each, of 2 to 64 MiB. An arena is
// address space in which chunks are mapped one after the other, and cut into
// blocks at 512 bytes, free or used; GMLake's primitive blocks are the free blocks.
// There are two arenas, one for requests of up to 1 MiB. A request goes through the
// states of the paper:
//
//   - a free block of its stream is large enough: it is cut. Among those that are
//     much larger the first is taken, so that what lives long gathers at low addresses;
//   - a stitched range made before is large enough and the memory behind it is free;
//   - the whole chunks of several free blocks are mapped one after the other in new
//     addresses, a stitched range, and access is given once for all of it;
//   - they are not enough: the shortfall is created, and stitched with them;
//   - nothing is to be gained by stitching: the arena grows at its end;
//   - the budget is spent: what queued work holds is waited for, the other arena gives
//     back what is free, and everything is tried again before memory is out.
//
// Only the arenas know what is in use. A stitched range that is allocated holds
// used blocks in its arena, exactly as many bytes as were asked for, so the end of
// a chunk is not lost to it; a range that is free holds nothing, and may be reused
// when the blocks behind it happen to be free. Free ranges are kept in order of
// use, and given up (StitchFree) when there is more than so much address space.
//
// A [Range] lends chunks to somebody who decides himself what lies where, a plan.
//
// # Streams
//
// Free memory belongs to the stream in whose order it was freed: it is reused for
// that stream at once. Another stream may have it after a fence on the first that
// is newer than the last free; one is made only when a stream runs out. Memory
// that other streams used (RecordStream) waits for a fence on each.
//
// # Sizes
//
// Every mapping operation costs by the handle and not by the byte, so large
// growth is made of larger handles; but only whole free handles can be stitched,
// and in seven recorded training jobs handles of a thirty-second of the growth, up to 4
// MiB, leave half a percent. Access is set once for a range.
//
// # Invariants
//
//   - No byte of physical memory is in two live allocations, whatever the addresses.
//   - A chunk is released only when it is free, its stream is done with it and
//     nothing else maps it. [Pool.Check] verifies blocks, lists and counters.
//   - A driver that refuses to map costs a stitch, not the allocation.
//
// # Caveats
//
// A Pool is not safe for concurrent use: its owner holds a lock, also across the
// driver calls of a request that finds nothing free. Memory made of chunks cannot
// be shared with other processes through cudaIpc handles. Fences are made on the
// streams that callers named: one that was destroyed keeps its memory to itself.
package stitch
