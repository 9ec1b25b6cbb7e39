//go:build race

package pool

// raced says that the race detector is on, and everything ten times as slow.
const raced = true
