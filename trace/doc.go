// Package trace is Penstock's one event model and everything that reads, writes
// and checks sequences of it.
//
// # The story
//
// Whatever happens to device memory is an [Event]: an allocation comes to life,
// a kernel is launched on it, it is copied, it faults, it migrates, it dies. The
// same stream of events is recorded from a live training process ([Writer]),
// replayed on a simulated GPU, and learned from. A recording is a .pstrace file,
// whose schema is docs/formats.md; a launch log (.tsv or .tsv.gz, one event
// a line, timings at the end), a PyTorch memory snapshot and an RMM log are accepted
// wherever a recording is. [Load] takes any, told apart by content and not by name,
// and returns a checked [Trace];
// [Reader] iterates over a recording too long to hold.
//
// # Invariants
//
//   - Events stand in program order, and a prefix of a valid trace is valid: this
//     is what makes a recording that was cut short still worth reading.
//   - An allocation id names one allocation for the whole trace. It is never used
//     again, however often its address is.
//   - Every chunk of a recording can be decoded without the chunks before it, is
//     covered by a checksum, and reaches the file in one append. A process killed
//     in the middle of a write costs at most the chunk it was writing and the
//     events not yet handed to the file (at most [WriterOptions.FlushEvery] old).
//   - Readers bound every size before they allocate: a hostile file costs an
//     error, never a panic and never more memory than [LoadLimitBytes].
//
// # Damage
//
// A reader that meets damage returns everything before it, then a [*DamageError]
// with the byte offset. [Load] returns both at once: a non-nil Trace beside a
// DamageError holds the intact prefix. A trace that reads well but contradicts
// itself (a launch on freed memory, an id used twice) gives an [*InvalidError].
//
// # Locks
//
// [Writer] has one mutex, held while an event (AppendAll: all of them) is encoded and while a full chunk is
// queued. Its background goroutine compresses and writes; it only ever tries the
// mutex, because a producer may hold it while it waits for the queue to drain.
// Nothing else here is safe for concurrent use; a Trace that nobody changes may
// be read by many.
//
// # Caveats
//
// A launch log need not say how a kernel uses its parameters: launches imported from one
// that does not carry [AccessUnknown], and package trace/roles infers it. It never says how much of an
// allocation is touched, and its events have no clock (Time is 0). Memory snapshots and RMM logs have no launches and no
// marks. Recordings of a live process have neither durations nor marks:
// [Trace.EstimateDurations], [Trace.MarkIterations] and, where shapes change, [Trace.MarkDiffering] find some. The number of parameters of a function is not kept.
// Events that were lost before they reached the Writer cannot be noticed here.
// Recordings are not synced to the disk: they survive the death of the process,
// not that of the machine.
package trace
