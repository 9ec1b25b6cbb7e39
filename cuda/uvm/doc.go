//go:build linux

// Package uvm moves and discards managed memory by asking the unified-memory
// driver directly, on the descriptor that libcuda opened in this process.
//
// # Why not through libcuda
//
// A launch that is held back on its stream can leave another thread of the job
// waiting inside libcuda with its lock taken: in a synchronous copy, or in a
// launch when the stream's queue is full. Every prefetch or discard through
// libcuda then waits for that lock, and the move that would end the wait is
// never made. The driver itself knows no such lock. Measured on an H200 (driver
// 580.159, bench/probe stage f): with a thread in cuMemcpyDtoH on a gated stream
// cuMemPrefetchAsync, cuMemDiscardBatchAsync, cuEventRecord and others block;
// the calls here do not. They also run in both directions at once (33 GB/s in
// beside 12 GB/s out, stage b), where calls through libcuda starve each other.
//
// # Interface
//
// Ioctl numbers and layouts are those of kernel-open/nvidia-uvm/uvm_ioctl.h and
// uvm_linux_ioctl.h, equal from driver 535 to 595 for what is used here
// (UVM_DISCARD exists from 580 on). The request number is the bare integer and
// ioctl returns 0 even on failure: the status field is what counts.
//
// A driver with kmod-patch also evicts without that pass of its migrations which
// maps every page for the CPU, and is told what to evict last without a
// migration. [Open] asks whether it does; [Space.Evict] and [Space.Touch] use it.
//
// # Caveats
//
// The interface is private to NVIDIA's driver: [Open] verifies by a harmless
// call that it is the one expected, and callers fall back to libcuda without
// holding launches back if it is not.
package uvm
