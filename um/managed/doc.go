// Package managed is the mover of the managed engine: it carries out the
// runtime's moves with the driver's own operations on unified memory.
//
// Everything it does is a hint to the driver: a move that fails or comes too
// late costs time, never correctness. The only operation that can lose data is
// discard, and the runtime asks for it only on memory that is free and idle.
//
// There are two ways to reach the driver. [Direct] asks the unified-memory
// driver itself (package cuda/uvm) and is what a process uses that holds
// launches back: libcuda may be locked by a thread that waits for such a launch.
// [Streamed] goes through libcuda on a stream of its own; the simulated GPU is
// driven this way, and processes in which nothing is held back.
//
// # Caveats
//
// A migration to the host is slow (9 to 16 GB/s on an H200) because the driver
// maps every page for the CPU. A mover is used by one thread at a time.
package managed
