// Package repocheck holds the rules that the repository keeps about itself, as
// tests: who may import whom, in Go and in C, which parts of a package know nothing of each other, that every package tells its story, and that the
// tree neither points to the machine it was written on nor to files, or names in files, that are
// not there.
//
// # Story
//
// A design erodes one convenient import at a time, and documentation one moved
// file at a time. Neither shows in a compiler's output, so the rules stand
// here, beside the tests that everybody runs. When a rule is in the way of a
// good change, change the rule in the same commit and say why.
//
// # Invariants
//
// The checks read files only: no network, no build, no change to the tree. The
// helpers take the text to be judged as an argument, so that each rule is
// itself tested against text that breaks it.
//
// # Caveats
//
// The tree is what git tracks or could track. Without git, every file outside
// of hidden and build folders is read. Imports are followed through the files
// of this module only, whatever their build tags. The C is read by patterns that
// know this repository's style, names that macros make excepted.
package repocheck
