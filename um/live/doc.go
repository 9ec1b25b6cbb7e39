// Package live serves a process: it joins the allocator
// that the framework calls, the launch hook, the driver and an engine that moves memory. Which engine that is is decided
// once, and choose.go alone names them; all else speaks to a [process.Engine].
//
// # Floors
//
//   - live has an allocation's route, plain memory, private pools, budgets and the job's speed.
//   - live/paged is the managed engine in a process, live/swapped the explicit one. Neither knows of the other, nor of Live.
//   - live/process has what these share with Live: the lock, the ring, the job's streams; live/stats what is told.
//
// # Threads
//
// Any thread of the job calls Malloc, Free and RecordStream. They hold a lock
// for microseconds. Small and plain allocations may reach the driver's allocator; an allocation for which
// address space is missing waits, bounded, for queued work to let go of some. The rest of the threads are the engine's.
// Before there is an arena the hook is off, also for a recording: nothing can fault.
//
// # Where an allocation lives
//
// Under 1 MiB: plain device memory, which the one pool lays out. With a device
// budget set, everything else is a tensor of the engine's and can leave the device. Without one, under the managed engine, plain
// memory serves as long as the card has room, at no cost; when it is full the
// job goes over to the arena for what it allocates from then on, and plain
// segments are given back as they empty. A tensor for which the arena has no range of
// addresses in one piece lies in plain memory while it lives (beside.go).
//
// # Lock order
//
// plainMu, then the lock of the pool, then Mu of the process. plainMu guards private pools and the
// opening of the arena. It and the pool's lock are held across driver calls that may
// wait for another thread of the job; the engine's own threads never take them. Mu
// guards the rest; no call that can wait is made under it. The locks of the fronts
// and of the notes of frees come last.
package live
