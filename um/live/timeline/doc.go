// Package timeline keeps what the explicit engine does, and what the job waits for, as spans of time, and writes them in the trace
// event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open, and `penstock report timeline` draws.
//
// # Invariants
//
//   - Without PENSTOCK_TIMELINE there is no Timeline, and nothing is kept: all methods do nothing of a nil one.
//   - Memory is bounded by [Most]; what came later is counted. So is the memory of who reads a file: what is larger,
//     or not as it was written here, is refused.
//   - Its lock is the last of all: nothing is called under it.
//
// # Caveats
//
//   - Phases are told by the names of kernels (package trace/phase). Where these tell nothing only the length of an
//     iteration is known, and it begins anywhere.
//   - A mark's time is when the first operation behind it was seen to have ended.
//
// The format is described in "Trace Event Format" of the Chromium project.
package timeline
