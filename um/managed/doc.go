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
//
// What has left the device, or was discarded, still takes memory there as far as
// NVML and cuMemGetInfo tell: the block keeps its 2 MiB of device memory, on a list
// of unused ones, for when it comes back. The driver lets go of them only when the
// block is destroyed, which is when the allocation is freed or the GPU is
// unregistered (uvm_va_block.c, block_destroy_gpu_state), or when another allocation
// finds the card full (uvm_pmm_gpu.c, pick_and_evict_root_chunk for managed memory,
// uvm_pmm_gpu_pma_evict_pages for all other; 580.105.08 and 595.45.04). Neither serves
// for a cap: freeing loses the contents that the host holds, and waits for the
// device, which may be waiting for us; filling the card is what a cap is there to
// avoid. So the device memory that managed memory takes is bounded by the arena,
// and residency alone by the budget.
package managed
