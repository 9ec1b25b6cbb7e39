// Package live runs the engine inside a real process: it joins the allocator
// that the framework calls, the launch hook, the driver and the runtime of
// package um, and owns the threads.
//
// # Threads
//
//   - Any thread of the job calls Malloc, Free and RecordStream. They take the
//     lock for about a microsecond and never wait for the GPU, except that an
//     allocation from plain memory may reach the driver's allocator.
//   - The loop reads the hook's ring, the progress words and the driver's fault
//     and migration events, and opens gates.
//   - Two workers carry out moves, one for each direction, with the lock released.
//
// # Where an allocation lives
//
// Under 1 MiB: plain device memory. With a device budget set, everything else
// is a tensor in the managed arena and can leave the device. Without one, plain
// memory serves as long as the card has room, at no cost; when it is full the
// job goes over to the arena for what it allocates from then on, and plain
// segments are given back as they empty.
//
// # Lock order
//
// One lock, Live.mu. Driver calls under it: only allocations of plain segments
// and event queries, none of which waits for queued work.
//
// # Failure
//
// If the engine fails (a driver error in a move, a lost hook) it opens every
// gate, stops gating and says so once: the job goes on under the driver's own
// demand paging, slower and right. A watchdog does the same when a gate has been
// closed for long without any move being made.
package live
