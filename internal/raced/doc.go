// Package raced says whether the race detector is on, under which everything is ten
// times as slow. Long tests of what runs in one thread, where it has nothing to find,
// are skipped then: their packages are tested without it too.
package raced
