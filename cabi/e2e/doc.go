// Package e2e runs libpenstock.so end to end without a GPU: it builds the engine
// (cabi), the launch hook (cabi/hook) and the stub driver (cabi/stub), and runs
// C and Python programs under LD_PRELOAD with the stub libcuda.so.1 in the place
// of the driver. Nothing in between is a mock: the programs load the library
// late, as a framework's plug-in does, allocate, launch by several routes, fork
// and start threads.
//
// # What is asserted
//
//   - Contents. Kernels of the stub really add, and its discard really destroys,
//     so reusing memory too soon or discarding live memory shows in the values,
//     each word of which is compared at the end.
//   - Residency. In the program "ledger" every launch is held back by the program
//     until the engine has brought its tensor in, so no kernel ever faults, and
//     what the stub has on the device equals resident_bytes exactly whenever
//     nothing moves; it is sampled all along and is never above the budget. Bytes
//     moved each way equal the stub's own counts.
//   - Where launches run freely ("train") kernels may fault, and a fault is
//     invisible without the driver's event queue: there the card is made smaller
//     than the job, and the ledger itself, not the stub, is held to the budget.
//
// # Caveats
//
//   - The stub has no /dev/nvidia-uvm, so the engine moves through libcuda and
//     holds no launch back. Gates are tested in cabi/hooktest and in um.
//   - Linux on x86-64 with gcc only; elsewhere every test is skipped.
package e2e
