// Package explicit is the engine that swaps tensors between device memory and
// pinned host memory itself, by copy engines, with no page fault anywhere.
//
// # Story
//
// An allocation of 1 MiB and more is a tensor: a range of addresses of its own,
// fixed for its life, in one large reservation. What is behind the addresses
// comes and goes in chunks of up to 64 MiB, the last of less than twice that: a chunk is mapped to physical device
// memory while it is on the device, and its contents lie in pinned host memory
// while it is not. Every operation is reported by [Runtime.Op] before it is
// launched, with the tensors that it names; the launching thread then waits in the
// launch hook, outside the driver, until each of them is on the device or on its
// way with the copy submitted, in which case the stream waits for the copy. So
// nothing is ever queued on the GPU that depends on a decision still to be made.
//
// What to move is decided from the learned iteration (package correlate) by the
// look-ahead of package prefetch: what comes in is what is needed next and fits at
// every position until then; what leaves is what is needed farthest in the future, or
// dies, the larger sooner (evict/weight.go), as soon as a coming peak is known. Where that is
// something that is yet to be used before the peak, it leaves after that use, and
// nothing in its place now (Draft.choose): else what is needed last of all that comes would leave
// to let the rest come early, and would come back when the bus is busiest. What is needed
// soon comes before memory is mapped for launches that wait, which would leave the bus idle
// (occupyBus). [Runtime.Next] hands out the moves, [Runtime.Submitted] and
// [Runtime.Done] hear how they went.
//
// Copies out go in pieces ([Copier]): the copy engine that does them also writes the page tables, and mapping
// would wait for it. While memory is mapped or unmapped a piece is queued when the one before has ended, else shortly before.
//
// What leaves unchanged since it came is not copied (clean.go): the host copy that a
// chunk came from is kept while host memory is not wanted, and compared by checksums
// on the device. Checksums are taken only where launches wait for space (trial.go),
// and of the chunks that have been found unchanged or not been tried.
//
// What leaves may be dropped without a copy, and made again when it is needed, by issuing the launches again that wrote it
// (again.go): where these were recorded and make the same, which is verified before. What they read is guarded until then
// (guard.go). It is used only if it has the checksum of what was dropped.
//
// A launch that names more than the budget has what does not fit beside the rest
// mapped in host memory, in place (inplace.go). One that may reach tensors through
// addresses in memory asks first; what is found is joined to it ([Runtime.Extend]).
//
// Small allocations that were born and died together an iteration ago share a tensor of one chunk, and so do large ones of a size
// that pages fit badly (pack.go); of what repeats nothing, small ones that pages fit badly share one (loose.go).
//
// Freed tensors are dead: nothing of them is ever copied. Their ranges stay mapped
// for allocations of the same size, which then cost nothing, until the memory is
// needed for something else. Where memory is made again, and mapping is what a job waits for, they stay mapped even then, where something of their
// size takes it, as aliases (alias.go). What lives for a few operations only may borrow one of a larger size (borrow.go), and what comes many at a time
// may share one (burst.go); where shapes
// change everything may one that is little larger. What was born together is not again there, so nothing is packed ahead, and what lives for long shares
// ranges of one size as it comes (shared.go). The job may take such a range again without waiting for
// the engine, which hears of it before any operation that came after (held.go).
//
// # Floors
//
// The [Runtime] is built of floors. Each embeds the one below, so that it can ask it everything, and none knows those above:
//
//	tensors     what there is, where it lies, the budget, host memory    tensors.go, dead.go, budget.go, clean.go, held.go, alias.go
//	reclaimer   where physical memory comes from                         reclaim.go
//	operations  what has been reported: what may go, what waits          operations.go, recent.go
//	recipes     what is made again, and what of; how a tensor ends       again.go, recipe.go, guard.go, proven.go, end.go
//	packer      what an allocation repeats, and what range it gets       alloc.go, pack.go, shared.go, loose.go, borrow.go, burst.go
//	planning    what comes and what leaves                               plan.go, draft.go
//	scheduler   the moves: the next one, and how they went               move.go, inplace.go
//	Runtime     what is asked of the engine                              runtime.go, op.go, held.go
//
// What carries the moves out is a [Mover] (mover.go, mover_again.go).
//
// # Invariants
//
//   - Physical device memory (mapped, in flight and spare) and plain memory
//     together never exceed the budget.
//   - A chunk starts to leave only when every operation that names its tensor and
//     may have been launched is known and has finished. The launch hook stores the
//     number of the operation before it looks at the tensor's state, and the
//     runtime publishes "absent" before it looks at that number, so one of them
//     sees the other.
//   - A tensor that no operation has ever named stays: something that does not
//     name it may be using it. A part of a pack may leave before it is named, when
//     another part of it was named.
//   - A tensor whose address was left where no operation will show it ([Op].Keep) stays
//     while it lives.
//   - A chunk's contents are in exactly one place that counts: the device unless
//     it is on the host or leaving. A host copy that is kept beside it counts for
//     nothing until a checksum of the device, taken when nothing can write there any
//     more, has shown that it is the same.
//   - Kept copies are given back before host memory is said to be lacking.
//   - The addresses of what is alive are mapped to its own memory or to none: what is not on the device cannot be reached unforeseen.
//   - While a tensor has been dropped, no operation that may write to what it is made of is launched, nor is that freed.
//
// # Locking
//
// A Runtime is not safe for concurrent use, but for [Draft.Decide], beside which anything may happen. Package live wraps it with a lock and
// the threads of a process; package replay drives it in virtual time.
package explicit
