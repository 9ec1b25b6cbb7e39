// Package options is the one table of everything a user can set: environment
// variables and flags, with their types, defaults and meaning.
//
// # The story
//
// A training process is configured through its environment: `penstock run` and
// penstock.enable() both end up as PENSTOCK_* variables, which the engine reads
// once, when it starts. [Table] lists every one, and every flag of every
// command; docs/options.md is generated from it (go generate ./options) and a
// test fails when it is stale. [FromEnv] turns variables into a [Runtime],
// [Runtime.Environ] turns a Runtime back into variables.
//
// # Invariants
//
//   - An option exists only if it is in Table. A variable that begins with
//     PENSTOCK_ and is not there is an error naming the nearest that is: a
//     misspelt budget must not become no budget.
//   - An empty variable is an unset one.
//   - FromEnviron(r.Environ()) gives r again.
//   - Every error is one line that names the variable, its value and what to write.
//
// # Caveats
//
// A Go library loaded into a running process sees, through os.Environ, the
// environment that the process was started with, not what it has set since (the
// Go runtime copies it from the process's initial stack). A library that must
// honour later changes passes C's environ to [FromEnviron].
//
// The package holds values to their types, not to the machine: whether a budget
// fits the card is for the engine to say.
package options

//go:generate go run ./gendoc ../docs/options.md
