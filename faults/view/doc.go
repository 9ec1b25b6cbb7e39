// Package view shows an analyse.Report to people and to programs: as tables in
// several formats, as one page, as a verdict in words, beside another report.
//
// # The story
//
// Every view of a report is a Table: a name, columns with units, rows. Views
// lists them. A Table is written as aligned text, CSV, JSON, Markdown or HTML by
// one function each, so that a number is the same wherever it is read. Names of
// columns follow nsys's um_sum reports where the meaning is the same
// (docs/faults.md has the table).
//
// Explain and Diff turn reports into sentences: what limits the run, the numbers
// behind that, and what to do next.
//
// # Invariants
//
//   - Names come from recordings, which anyone may have made. They reach HTML
//     only escaped, a terminal only with control characters escaped, and CSV
//     never as a spreadsheet's formula.
//   - The page needs no network and no script.
//   - Output depends on the report alone.
//
// # Caveats
//
// Tables of kernels and allocations are cut to a number of rows in text, Markdown
// and HTML, and say so; CSV and JSON have all.
package view
