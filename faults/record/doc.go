// Package record writes what Penstock sees of a process to one recording: the
// events of a faults.Source, launches and how far each stream has got, and
// allocations with the place in the program that asked for them.
//
// # The story
//
// A Log is one recording under one clock, CLOCK_MONOTONIC_RAW, which is the
// driver's own. Marks pair it with the wall clock, now and then, so that exports
// line up with other tools' traces. The engine and the observer inside a process
// feed a Log what they see; Process listens to another process from outside and
// can see no launches.
//
// What the program's threads stamp is ticks of the processor's counter where that
// runs evenly, and is made nanoseconds of that clock by whoever reads it (package
// internal/hook), off by some hundred nanoseconds at most in the recording's first
// milliseconds and by less afterwards.
//
// Operations are numbered as they are written. Whoever reports progress gives
// the launch hook's own numbers, and the Log translates.
//
// # Invariants
//
//   - Everything that a source reports is in the recording, or counted in it as lost.
//   - Times never run backwards for what the Log stamps itself.
//
// # Locks
//
// Two a Log. Log.mu is held while an event is queued, which is short: launching
// threads and the engine's lock wait for it. Log.encoding, taken before it, is the
// encoder's, who alone calls the trace.Writer. A Log may be used from any goroutine.
//
// # Caveats
//
// A write error stops the recording, not the program: Err and Close tell it.
package record
