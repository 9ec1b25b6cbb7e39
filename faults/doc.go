// Package faults reads what the NVIDIA driver says about unified memory: which
// addresses the GPU faulted on, and which ranges moved between the sides, why
// and when.
//
// # The story
//
// Whoever has events is a Source. The main one is the driver itself: the
// nvidia-uvm module keeps an event queue for anyone who holds a descriptor of
// the address space, /dev/nvidia-uvm-tools. It needs no root, no BPF and no
// patch. Open finds the /dev/nvidia-uvm descriptor that libcuda made in this
// process, gives the driver a ring of anonymous memory, and asks for kinds of
// event: GPU faults and migrations for the engine, more for a recording. The
// driver writes 64-byte entries; Drain decodes what has arrived without any
// system call. Each becomes an Event, and Event.Trace turns it into the
// trace.Event that the correlation tables and the residency ledger take.
//
// A descriptor can be copied out of a process with pidfd_getfd, and the driver
// does not ask who holds it: Attach listens to a process that was never told.
// Because a process may own several address spaces, and have several
// descriptors of each, Attach and OpenAll give a Group of queues.
//
// The third source is a Recording. Kernel probes, which see all processes and
// the driver's own decisions, implement the same interface.
//
// Where the queue cannot be had (a container without the node, gVisor, a
// missing permission), Open returns *Unavailable, which says why and what to do.
// The engine goes on without it: it then knows its own moves, but not those of
// the driver, and reports faults as unavailable, never as zero.
//
// # Invariants
//
//   - Every entry of the ring is accounted for: returned by Drain, counted by
//     Dropped (the driver found the ring full), or counted by Unknown.
//   - Drain never blocks and never returns more than one ring of events.
//   - The ring stays mapped until the driver has let go of it: Close first
//     closes the tools descriptor, then unmaps.
//   - The indices in shared memory are masked on every use.
//
// # Lock order
//
// Of each queue Queue.flushing, taken by Flush and Close, and then Queue.mu, taken by all but the wait of Flush.
// Nothing is called with it held but system calls on the two descriptors.
//
// # Caveats
//
//   - Open works only after CUDA has made its first context in this process.
//   - A migration appears when the driver notices that the GPU is done with it.
//     Call Flush at synchronisation points, or the last ones may wait.
//   - Faults and migrations are not in causal order in the ring. Sort by time
//     where it matters.
//   - The driver never emits eviction events. An eviction is a migration to
//     the host with trace.CauseEviction. Discarded pages leave without any event.
//   - Times are nanoseconds of CLOCK_MONOTONIC_RAW, which is not Go's clock: use
//     Clock for the same base.
//   - A fault is one entry that the driver serviced, merged duplicates included;
//     there are no more once a page is mapped, and the driver fills 64 KiB to
//     2 MiB around it. Model at 2 MiB blocks.
//   - The tools descriptor keeps the address space alive until Close: an
//     outside listener that outlives the process delays its tear-down (Alive).
//   - Layouts lists the driver versions whose interface was compared.
//   - The ring is not inherited by fork (it would become copy-on-write under
//     the driver's pin).
package faults
