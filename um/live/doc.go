// Package live runs an engine inside a real process: it joins the allocator
// that the framework calls, the launch hook, the driver and the runtime of
// package um/managed or of package um/explicit, and
// owns the threads. Which of them it is is decided once (choose.go); [Live] knows an engine in a process (engine.go), of which
// there are two: the managed one's files are paged*.go, the explicit one's explicit*.go, and neither these nor what is
// common know of them (internal/repocheck).
// What any of them needs of a process, numbers for streams and waiting, is in package process.
// What is below is of the managed engine unless it says otherwise.
//
// # Threads
//
//   - Any thread of the job calls Malloc, Free and RecordStream. They hold a lock
//     for microseconds; a free under the managed engine only leaves a note (paged_deaths.go). Most allocations and frees of tensors under the explicit engine
//     do not even come here: package front serves them, and drain hears of them. Small and
//     plain allocations may reach the driver's allocator; an allocation for which
//     address space is missing waits, bounded, for queued work to let go of some.
//   - The loop reads the hook's ring, the progress words and the driver's fault
//     and migration events, opens gates, and wakes the workers.
//   - Workers carry out moves with the lock released: one brings in, three take
//     out, because the driver maps evicted pages for the CPU and the maps of
//     different blocks can be made beside each other.
//   - At the start, one more thread makes host pages for address space that is not
//     used yet: evictions to them are half as fast again.
//   - Before there is an arena the hook is off, also for a recording: nothing can fault.
//
// The explicit engine has a loop, too, which also answers launches that ask for a
// grant, has their memory searched and finds out which need not be (explicit_follow.go); a porter for each direction, which finds out
// what to move, maps and unmaps, and has checksums taken of what leaves; and the
// lane, which copies out one piece after the other and does nothing else: the
// next piece is to follow at once, or, while memory is mapped or unmapped, to leave that a moment.
//
// At the end of a job the explicit engine says how near it came to an oracle, from what its
// runtime remembers of the last iterations; the penstock command simulates it (explicit_bound.go).
//
// # Why nothing here waits inside libcuda
//
// While a launch is held back on its stream, another thread of the job can wait
// for it inside libcuda with libcuda's lock taken. The engine's own threads
// therefore never call libcuda after the start: moves go to the unified-memory
// driver (package cuda/uvm), gates and progress are words in pinned memory. Where
// that driver cannot be asked directly, nothing is held back.
//
// The explicit engine's threads do call libcuda. There a launch waits in the hook,
// outside libcuda, so that none of its locks is held meanwhile; what is under way
// already, the stream waits for.
//
// # Where an allocation lives
//
// Under 1 MiB: plain device memory, which the one pool lays out. With a device
// budget set, everything else is a tensor in the managed arena and can leave the device. Without one, plain
// memory serves as long as the card has room, at no cost; when it is full the
// job goes over to the arena for what it allocates from then on, and plain
// segments are given back as they empty. A tensor for which the arena has no range of
// addresses in one piece lies in plain memory while it lives (beside.go).
//
// # Lock order
//
// plainMu, then the lock of the pool, then mu. plainMu guards private pools and the
// opening of the arena. It and the pool's lock are held across driver calls that may
// wait for another thread of the job; the engine's own threads never take them. mu
// guards the rest; no call that can wait is made under it. The locks of the fronts
// and of the notes of frees come last.
//
// # Failure
//
// If the explicit engine fails, launches that would need absent memory are refused
// with an error that the framework understands. If the managed engine fails (a driver error in a move, a lost hook) it opens every
// gate, stops gating and says so once: the job goes on under the driver's own
// demand paging, slower and right. A watchdog does the same when a gate has been
// closed for long without any move being made. Before that, a launch that no move
// can help is let go after a tenth of a second: it faults, and is counted as late.
package live
