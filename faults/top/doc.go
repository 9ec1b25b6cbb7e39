// Package top is the live view of `penstock faults top`: residency, rates each
// way, and the worst kernels and allocations, on a terminal or as text.
//
// # The story
//
// A Model holds the last two reports and what the user chose: which table, the
// column that it is sorted by, a filter, whether it is paused. It is pure: it
// changes only by messages (a report, a key, a new size) and View depends on
// nothing else, so tests feed messages and read text. Run connects it with a
// terminal; Text prints the same numbers without one.
//
// # Invariants
//
//   - Rates are differences of two reports over the time between them.
//   - Lost events are always on the screen; what is not known is n/a, never 0.
//   - No line is longer than the terminal is wide, and no name reaches it unescaped.
//   - NO_COLOR is honoured.
//
// # Caveats
//
// The view runs a fraction of a second behind: the last moments' events may not
// all have arrived.
package top
