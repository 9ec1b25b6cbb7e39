// Package report shows results to people: as text for a terminal and as HTML pages
// with plots. Its subjects are replays ([WriteHTML]), what an allocator lost to
// fragmentation over a run ([FragmentationOf]), and where the time of a job went
// under the explicit engine ([TimelineOf]).
//
// # Story
//
// A replay yields one replay.Result for each policy, engine and budget. The
// package first groups them: a case is one trace on one GPU profile, a point is
// one budget of a case (one oversubscription ratio), and a row of a point is
// one policy on one engine. Each row is set beside its bound, the oracle of the
// same point and engine, because a time alone does not say whether a policy is
// good: the bus may allow no better. The share of the bound is the oracle's
// time over the policy's, so 100 % is unbeatable and 50 % is twice as slow as
// possible.
//
// A time line's spans are cut to columns of a picture: each is as high as the part
// of its time in which something went on, so that a page stays small however much
// was recorded.
//
// The HTML page needs no network and no script: plots are inline SVG whose
// geometry is computed here, colours follow the reader's light or dark
// preference, and every plot has a text equivalent below it.
//
// # Invariants
//
//   - Results are checked before the first byte is written: an error means that
//     nothing was written, unless the writer itself failed.
//   - What is simulated says so, on every page and every table. A replay that is
//     not marked as simulated is refused rather than mislabelled; a fragmentation
//     report says whether what was reserved is recorded or simulated.
//   - Names come from traces, which anyone may have made. They reach HTML only
//     through html/template, and a terminal only with control characters
//     escaped.
//   - Output depends on the results alone: the same input gives the same bytes.
//
// # Caveats
//
// Plots are thinned to a few hundred moments each. Thinning keeps the extremes
// of residency and live bytes in every stretch of time, so a short peak over
// the budget stays visible, but between kept samples the lines are straight.
// Where the oracle of a row's own engine is missing, the oracle of another
// engine is used and named; it is still a schedule that knows the future, but
// for other rates.
package report
