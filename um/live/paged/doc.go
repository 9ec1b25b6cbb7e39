// Package paged is the managed engine in a process: unified memory, which package um/managed moves by prefetches of the driver.
//
// # Story
//
// Without a budget it is opened when the card is full for the first time; until then all memory is plain. A thread of its own reads the
// launch hook's ring, the streams' progress and the driver's fault and migration events, opens gates and wakes the workers. These carry out
// moves with the lock released: one brings in, three take out, because the driver maps evicted pages for the CPU and the maps of
// different blocks can be made beside each other. At the start one more makes host pages for address space that is not
// used yet: evictions to them are half as fast again.
//
// A free only leaves a note (deaths.go), which is dealt with between the operations where it belongs.
//
// # Why nothing here waits inside libcuda
//
// While a launch is held back on its stream, another thread of the job can wait
// for it inside libcuda with libcuda's lock taken. The engine's own threads
// therefore never call libcuda after the start: moves go to the unified-memory
// driver (package cuda/uvm), gates and progress are words in pinned memory. Where
// that driver cannot be asked directly, nothing is held back.
//
// # Failure
//
// If it fails (a driver error in a move, a lost hook) it opens every
// gate, stops gating and says so once: the job goes on under the driver's own
// demand paging, slower and right. A watchdog does the same when a gate has been
// closed for long without any move being made. Before that, a launch that no move
// can help is let go after a tenth of a second: it faults, and is counted as late.
package paged
