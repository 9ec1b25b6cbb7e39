// Command penstock is Penstock's command line: it runs training programs with
// more memory than their GPU has, and simulates doing so.
//
// # The story
//
// Each subcommand is a file of its own with a test beside it: run, doctor and
// measure deal with real machines; simulate, bench and demo replay a recorded
// trace on a simulated GPU through package replay; plan decides where allocations
// go; report shows what an allocator lost and where time went; version says what
// this is.
// main.go puts them together.
//
// # Invariants
//
//   - A user's mistake is answered with one line on stderr that says what was wrong
//     and what to do, and exit status 2. A failure of Penstock itself is one line
//     and status 1. There is never a stack trace, and never a page of usage that
//     pushes the reason off the screen.
//   - stdout carries results only; progress and notes go to stderr. With --json
//     or --csv, stdout is exactly that.
//   - Everything that a simulation prints says that it is simulated.
//   - Flags are rows of options.Table; a test holds both to each other.
//
// # Caveats
//
// Replays of one bench or demo run side by side on all cores; each is
// deterministic by itself, and results are in the order asked for. A trace that
// cannot be replayed at a ratio (one launch needs more than the budget) is left
// out of a bench with a note, and an error in simulate.
package main
