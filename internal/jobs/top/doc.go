// Package top is the live view of `penstock top`: what running jobs have on the device and on the host, what moves each way,
// what waits for what, and how near each is to its speed in memory; on a terminal, as text or as JSON.
//
// # The story
//
// A [Sample] is what all jobs answered at one look. A [Model] holds, for each job, the last two, and what the user chose. It is
// pure: it changes only by messages, and View depends on nothing else. The table has as many columns as the terminal has
// room for; below it stand all figures of the job that is chosen. [Text] and [JSON] print the same figures without a terminal.
//
// # Invariants
//
//   - Rates are differences of two answers of one job over the time between their snapshots.
//   - What is not known is n/a, never 0.
//   - No line is longer than the terminal is wide, and nothing that a job says reaches it unescaped.
//
// # Caveats
//
// The speed is an estimate of the job's own engine, and only the explicit one has it: of others it is n/a.
package top
