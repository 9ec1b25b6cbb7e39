// Package sim is a simulated NVIDIA GPU and its driver, in virtual time, behind
// cuda.Driver.
//
// # Story
//
// A GPU is a discrete-event simulator: a clock, a queue of events, the state of
// every managed block, and a handful of resources that work competes for. A
// Thread is the driver as one host thread sees it, with a clock of its own that
// each call moves on. The user queues work (kernels with Launch, moves, copies
// and waits through a Thread) and steps the simulator; nothing happens between
// events, and nothing sleeps.
//
// Unified memory is kept per 2 MiB block as masks over its 64 KiB leaves: what
// is on the device, what is on the host, both when read-duplicated, neither
// when never touched or discarded. A block with anything on the device holds a
// 2 MiB root chunk and keeps it when its contents leave, until somebody takes
// it. When no chunk is free the driver's own order applies: blocks with nothing
// on the device, then discarded ones, then the used one that the driver has not
// touched for longest. Kernels do not touch; faults and prefetches do, also
// prefetches that find everything in place.
//
// The resources are
//
//   - the bus: two directions, each a fluid shared by the transfers that use it;
//   - the managed lock: prefetches take turns, a slice of up to 8 blocks at a
//     time, so that moves both ways together reach what one did;
//   - the fault thread: the same for kernels that fault;
//   - a copy engine for each direction;
//   - the lock of the calls that create, map, unmap and release physical memory.
//
// A kernel scans its accesses in order when it starts. Blocks that are there
// cost nothing; those that a slice is moving are waited for; those that miss
// are faulted in, each once per kernel, with the driver's tree prefetcher
// filling up their neighbours. A kernel is over when its duration has passed
// and its scan is: max(duration, fault service). A kernel that touches more than
// fits streams through.
//
// # Invariants
//
//   - Every byte that crosses the bus is part of a flow of the bus model, so no
//     interval moves more than its rate allows.
//   - Root chunks, plain allocations and physical handles never exceed the capacity.
//   - A block that a slice holds is changed by that slice alone.
//   - Check recomputes the ledger from the blocks.
//   - The same calls give the same times: no map is iterated, ties run in the
//     order in which they were scheduled. (Rates are floating point: another
//     processor architecture may differ in the last nanosecond.)
//
// # Locks
//
// One mutex guards everything. User code (At, Started, Done, Callback,
// observers) runs after the event that caused it, without the lock, and may
// call anything. A call that waits (StreamSynchronize, EventSynchronize, and the
// queries up to the thread's clock) steps the simulator itself; doing that from
// user code nests, which is allowed but makes later events run inside it.
//
// # Caveats
//
//   - The cost of the driver's own eviction has no public figure. It is the bare
//     copy at the full rate of one direction, with no CPU mapping and no host
//     page allocation. This favours demand paging, the baseline that Penstock is
//     compared with (Profile.EvictBytesPerSecond).
//   - Faults overlap the kernel's compute entirely, a block faults once per
//     kernel even if it is taken away again meanwhile (Stats.InUseMoves counts
//     those), and sparse faults are charged by entries alone. All three favour
//     the baseline.
//   - Discard unmaps and revokes residency, as the documented rule that a write
//     ends it implies; Profile.DiscardKeepsMapping gives the other kind.
//   - Kernels of different streams overlap without slowing each other down;
//     copies do not slow kernels down (on an H200: 11 % for a GEMM with both
//     directions full). In-place access moves each byte once.
//   - Residency is kept to 64 KiB, not to the driver's 4 KiB. Allocations below 2
//     MiB do not share blocks.
//   - Freeing does not wait for work; a kernel that reaches freed memory sets
//     Err. Stream 0 is a stream like any other. Pinning on several threads at once
//     is as fast as on each alone. Thrashing detection, access counters and a
//     second device are not modelled. Addresses are never reused.
//   - Memory has no contents, only places: device code does not run, and a word
//     that StreamWriteValue32 writes only rises.
package sim
