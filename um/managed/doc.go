// Package managed is the mover of the managed engine: it carries out the
// runtime's moves with the driver's own calls on unified memory.
//
// Everything it does is a hint to the driver: a move that fails or comes too
// late costs time, never correctness. The only call that can lose data is
// discard, and the runtime asks for it only on memory that is free and idle.
//
// # Caveats
//
// A prefetch to the host is slow (9 to 16 GB/s on an H200) because the driver
// maps every page for the CPU. A mover is used by one thread at a time.
package managed
