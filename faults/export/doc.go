// Package export writes recordings and reports in the formats of other tools:
// Chrome's trace JSON (which Perfetto opens), pprof, JSON lines, CSV and
// Prometheus' text.
//
// # The story
//
// JSON lines and CSV are the events of a recording as they are, one a line.
// Chrome streams the recording too, but gathers: faults that were serviced
// together are one slice, and migrations one way that touch each other are one.
// Its times are those of torch.profiler: with Merge both are in one file on one
// time axis. Pprof and Prometheus are made from a finished report.
//
// # Invariants
//
//   - What is written is complete and well formed, or an error says that it is not.
//   - Memory does not grow with the recording.
//   - Names from recordings are escaped for the format.
//
// # Caveats
//
// When a kernel began and ended is known from progress samples: slices of kernels
// share the time between two samples evenly and say "approximate".
// A recording's clock is paired with the wall clock every ten seconds; between
// those times are interpolated, and agree with torch.profiler's to some tens of
// microseconds.
package export
