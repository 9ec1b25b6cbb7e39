// Package hooktest tests libpenstock_hook.so (cabi/hook) and the stub driver
// (cabi/stub) from the outside: it builds both with the C compiler, builds the
// programs in testdata, and runs them, and Python, under LD_PRELOAD. There is no
// GPU and no mock in between: real dynamic linking, real threads, real forks,
// and the stub libcuda.so.1 in the place of the driver.
//
// The programs contain the checks. Each attaches to the hook as the engine does
// (testdata/engine.h), so the contract in penstock_hook.h is exercised by a
// second implementation of its other side. In those of strict mode (strict*.c,
// nccl.c; strict.h) the main thread plays the engine and a thread of its own launches, so
// that it can be seen to wait; dekker.c has an engine that evicts at random while
// threads launch, and kernels that check that their memory is there. NCCL is a
// stand-in (fake_nccl.c).
//
// # Caveats
//
//   - The stub is a test double: what the real driver does differently is
//     listed in cabi/stub/stub.h.
//   - bench/ prints nanoseconds a launch with and without the hook. It is not a
//     test: on a shared machine its numbers wander.
//   - Linux on x86-64 with gcc only; elsewhere every test is skipped.
package hooktest
