// Package analyse attributes faults and migrations: which kernel was running,
// which allocation was touched, in which phase of the iteration, and why the
// page was not there. It reads a stream of trace.Event in bounded memory and
// gives a Report at any time.
//
// # The story
//
// Events reach a recording from several sides, each with a delay of its own: the
// driver tells of a fault at once, of a migration when it notices that the copy
// is over, and the launch hook of a launch when its ring is read. Add therefore
// holds events back and takes them in order of time (order.go).
//
// Launches queue up on their streams (ops.go). Progress events say how far a
// stream has got at certain moments. A fault between two such moments belongs to
// one of the operations that were unfinished at the first and begun at the
// second. Mostly that is one operation; of several, the one whose parameters name
// the faulting allocation is taken. Faults wait for the second moment before
// they are counted. Without progress in the recording the last launch before the
// fault stands in, and the report says so.
//
// Pages are followed in blocks of 2 MiB with one bit for each 4 KiB page
// (blocks.go): was it ever on a GPU, is it now, and what took it away. That
// decides the cause of a fault:
//
//   - first touch: the page has not been on a GPU since its allocation was made;
//   - CPU touched it: a CPU fault had moved it to the host;
//   - thrash: the driver says so, or it went between CPU and GPU three times with
//     at most 500 us between;
//   - prefetched too late: a prefetch of the page was under way, or began within
//     2 ms;
//   - evicted too early: it came back before as many bytes had come in as
//     the GPU held at most, so a better victim was there;
//   - never predicted: it left longer ago than that, and nothing fetched it;
//   - already there: an access upgrade, or a duplicate of a fault being serviced.
//
// Faults that the driver merges, because several threads of a batch met on one
// page, have the cause of the first of them.
//
// The phase (forward, backward, optimizer) is inferred from kernels' names; the
// iteration from marks, or else from the optimizer's end (phase.go).
//
// # Invariants
//
//   - Every fault is counted once in each of: its kernel (or copies, or unknown),
//     its allocation (or unknown), its phase, its cause.
//   - Sums of bytes are those of the migration events, to the byte.
//   - Memory is bounded whatever the file says: tables have fixed limits, and what
//     is beyond them is counted in a row "(others)" or named in Report.Limits.
//
// # Caveats
//
// Pages that were never seen to arrive are taken for host pages: recordings that
// begin in the middle of a run call their first faults first touch. Memory that
// is discarded leaves without an event, so residency is an upper bound then. A
// prefetched page counts as used when a launch names its allocation while it is
// there: parameters do not tell which pages a kernel touches.
//
// Nothing here is safe for concurrent use.
package analyse
