// Package cuda is the seam between Penstock and the CUDA driver.
//
// Everything above it (the runtime, its movers, the policies) is written once,
// against the Driver interface. Two things implement it: Native, the real
// driver, and the simulated GPU of package cuda/sim. A program that opens
// neither needs no GPU, no driver and no CUDA toolkit, neither to build nor to
// run.
//
// # The story of Open
//
// Open loads libcuda.so.1 with dlopen, looks up each function it needs by its
// versioned name, and keeps the pointers in one table. A function that every
// supported driver has is required: its absence makes Open fail with
// ErrDriverTooOld and the name. All others are optional, and become one bit
// each of Capabilities, probed here and never again. Open then takes the
// device's primary context (the one the CUDA runtime and PyTorch use) and holds
// it until Close. It does not make it current: that would change the calling
// thread behind its owner's back. Threads of Penstock call BindThread; a thread of
// the program that has come in does so, too, and gets its own context back by
// LeaveThread when it leaves.
//
// Inside a process that preloads libpenstock_hook.so, dlsym and
// cuGetProcAddress hand out the hook's wrappers. A driver that called those
// would observe itself. Options.Resolve therefore replaces the look-up: the
// engine passes the hook's penstock_hook_real.
//
// # Errors
//
// Every failed call returns an *Error with the numeric code, the CUDA name and
// the driver function. The names come from a table in this package, so that
// they are the same for the simulated GPU and without a driver. Compare with
// errors.Is(err, cuda.ErrOutOfMemory). Failures of Open itself are *OpenError,
// with the sentinels ErrNoLibrary, ErrDriverTooOld, ErrNoDevice and
// ErrUnavailable, and always say what to do.
//
// # Invariants
//
//   - Capabilities and DeviceInfo never change after Open.
//   - The bytes of live managed memory that this Driver handed out never exceed
//     Options.ManagedLimitBytes, whatever the number of threads: bytes are
//     reserved before the driver is asked, and given back when it refuses or
//     when the memory is really freed.
//   - A nil Options.Resolve result means "missing", never "ask dlsym instead".
//
// # Lock order
//
// One mutex, Native.managed.mu, guards the managed ledger. No driver call
// is made while it is held. The function table is written by Open only.
//
// # Caveats
//
//   - A context is per OS thread. A goroutine that calls Driver methods must
//     hold runtime.LockOSThread and have called BindThread, or be short-lived in
//     a cgo callback on a thread of the host program.
//   - MemInfo says little about managed memory: the driver keeps evicted blocks
//     as its own until another client asks for them.
//   - Discard needs driver 580 and does not work on the legacy default stream.
//   - Calls made while the process exits fail with ErrDeinitialized. That is
//     the normal end, not a fault.
//   - libcuda is never unloaded; its threads would not survive it.
package cuda
