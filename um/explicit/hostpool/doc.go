// Package hostpool is the explicit engine's host memory: pinned, in one range of
// addresses, given out in pieces to what is swapped out.
//
// # Story
//
// Pinning memory is slow, and slowest the way that CUDA offers first: 1.6 GB/s
// with cuMemHostAlloc on the machine of the README. Memory of huge pages that
// several threads have touched and that is then registered comes at 22 GB/s. So
// [New] reserves the addresses of the whole budget at once, which costs nothing,
// and a thread of the pool makes memory of them, segment by segment, while the
// job is still building its model: it stays AheadBytes ahead of what is in use,
// and of what [Pool.Expect] announces. [Pool.Take] waits only where it has caught
// up with that thread, and [Stats] says for how long.
//
// Take prefers one piece: the smallest free one that is large enough. Where there
// is none it gives the fewest pieces, the largest first; a copy of a few MiB runs
// almost as fast as one of many. No piece crosses a border between segments,
// since a copy may not cross memory that was registered in parts.
//
// # Budget
//
// The pool never has more than its budget, and New refuses a budget above what
// the system and the control group have free (package internal/hostmem), less a
// little for everybody else. What others take later is theirs: growing stops
// before the system runs out, and Take then fails with a *GrowthError. It is tried
// again while there is need, after a pause and with smaller segments, for what others
// have taken they may give back. A Take
// that cannot be served within the budget fails at once with a
// *HostBudgetError; a Take that waits never waits for a Give.
//
// # Invariants
//
//   - Free and used extents together are exactly the grown segments.
//   - Free extents are disjoint, in order, and those that touch within a segment
//     are one. Every size and address is a multiple of Granularity.
//   - Bytes in use and promised to waiting Takes never exceed the budget.
//
// # Locks
//
// One mutex. Neither the driver nor the system is called while it is held,
// except on the simulated GPU, where growing happens in Take, in the caller's
// virtual time, and no memory exists behind the addresses.
//
// # Caveats
//
//   - A child made by fork does not have this memory: pages that a device writes
//     to must not be copied on write. The hook's children do not touch it.
//   - Segments are not given back before Close.
//   - Memory comes from whatever NUMA node the threads run on.
//   - Where transparent huge pages are off, growing is half as fast; a warning says so.
package hostpool
