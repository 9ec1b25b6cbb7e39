//go:build linux

// Package bpf watches the unified-memory driver with eBPF: the faults and
// migrations of every process, which blocks the driver evicts, and how long its
// fault handler runs. It is a faults.Source for when the driver's event queue is
// not enough or cannot be had: all processes at once, and no descriptor of theirs.
//
// # The story
//
// nvidia-uvm has no tracepoints, but one function that every fault and migration
// passes, uvm_perf_event_notify, with the same prototype from driver 535 to 595.
// The programs (kmod-patch/bpf/uvm.bpf.c; the objects here are made from them)
// read its arguments and put a record of 64 bytes into a ring. Where things lie
// in the driver's structures is found at load time: from the module's own type
// information where the kernel publishes it, as CO-RE does for the kernel's, else
// from a table by driver version. The programs attach as kprobes; where a kernel
// has none, by fentry, which takes the module's type information.
//
// A GPU's faults are serviced in a kernel thread, so the current process is not
// the faulting one. What identifies it is the address space: the programs note
// who creates one, and an iterator finds those that existed before.
//
// # Invariants
//
//   - Every record is accounted for: sent and read, or counted in Stats.
//   - A process that is not asked for is never reported; that the programs drop
//     its events early is an optimisation, the decision is taken here.
//   - An address space that is destroyed is forgotten before its address can be
//     used again.
//
// # Lock order
//
// One mutex, Source.mu. Nothing else is taken under it.
//
// # Caveats
//
//   - It takes root, or CAP_BPF and CAP_PERFMON; lockdown's confidentiality mode,
//     gVisor and unprivileged containers rule it out. Open says what is missing.
//   - Faults on one page that the driver merges are one event here; the event
//     queue reports each.
//   - A migration is seen when its copy is submitted. It has no end time, and no
//     GPU time.
//   - Times are converted to CLOCK_MONOTONIC_RAW when a record is read: read often
//     enough (every 100 ms) and the error stays under 50 us even while NTP slews.
//   - Process ids are those of the initial PID namespace.
package bpf
