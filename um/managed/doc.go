// Package managed is the engine on unified memory: it hands out memory, keeps what the coming kernels
// need on the device, and moves the rest out in time, by prefetches.
//
// # Story
//
// A [Runtime] owns one arena of address space in 2 MiB blocks (the driver's own
// unit, a va_block). An allocation of 1 MiB and more is a tensor with a run of
// blocks of its own; what is smaller lives in plain device memory (package
// pool). Every operation on a stream is reported by [Runtime.Op] with the
// tensors that its parameters name, when it is queued, not when it runs, so the
// runtime sees some way ahead of the GPU for certain, and further by prediction
// (package correlate). [Runtime.Next] answers a worker thread that asks what to
// move now; [Runtime.Done] takes its report. An operation that names a tensor
// which is not on the device is held back on its stream by a gate, in the GPU's
// queue: no thread of the job ever waits. The gate opens when its tensors have
// arrived and everything before it may run.
//
// The job's threads run up to a thousand launches ahead of the GPU, so most of
// what is freed is still to be used by operations in the queue. Such a tensor
// lives on while they do, its free deferred: it is fetched and evicted like any other until the last of
// them is done, also when its blocks belong to another tensor already, which then
// waits behind it (tensor.prior).
//
// Freed memory that nothing uses any more is dead: it is never moved. Its blocks
// stay on the device as long as there is room and are handed out again first, so
// that most allocations cost no transfer and no populating; under pressure they
// are discarded. While the GPU is far behind and memory is tight, new tensors go
// to blocks that are in use until shortly before, or to untouched ones, rather
// than lie on idle blocks that others need sooner.
//
// Two kinds of budget exist. Under a software cap the card has room and the
// runtime itself keeps residency under the budget, evicting by prefetching to
// the host. When the card is really full the driver evicts inside a prefetch,
// several times faster because it does not map the pages for the CPU; the
// runtime then chooses the victims by the order in which it makes blocks recent
// ([Config.DriverEvicts]; steer.go). Every copy out then takes the bus from a copy
// in, so room is made for what is queued, and further ahead only while nothing that
// fits wants to come in (ready.go).
//
// # Floors
//
// The [Runtime] is built of floors. Each embeds the one below, so that it can ask it everything, and none knows those above:
//
//	blocks         whose each block is, where it is, what moves, the budget    blocks.go, tensor.go
//	evictionOrder  what the driver evicts by itself                            steer.go, ledger.go
//	gates          which operations may run, and what the others wait for      gate.go
//	planning       what comes and what leaves                                  plan.go, tables.go
//	scheduler      the moves: the next one, and how they went                  next.go, ready.go, prepare.go, ledger.go
//	Runtime        what is asked of the engine                                 runtime.go
//
// # Invariants
//
//   - Blocks on the device, as the ledger counts them, are the sum over blocks;
//     [Runtime.Check] recounts. Together with plain memory they keep to the budget,
//     with three exceptions, after each of which as much leaves as soon as it can:
//     an operation that no move can help is let go and faults for what it misses;
//     memory is reached that no parameter named, and faults; plain memory is
//     needed and in a second nothing can leave for it (package live).
//   - A tensor's contents are never discarded: only blocks that are free, and
//     whose last work has finished, are.
//   - Everything in the managed engine is a hint. If every decision here were
//     wrong the job would be slow, not wrong.
//
// # Moving
//
// A [Mover] carries out the runtime's moves with the driver's own operations on unified memory.
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
//
// # Locking
//
// A Runtime is not safe for concurrent use. Package live wraps it with the one lock
// and the worker threads of a real process; package replay drives it in virtual
// time. No driver call that can wait for the GPU is made under the lock.
package managed
