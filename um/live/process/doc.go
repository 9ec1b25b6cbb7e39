// Package process is what an engine needs of a process, whichever engine it is: numbers for the
// job's streams, and for how long something has waited.
//
// # Story
//
// The launch hook tells of streams by its own indices, which it gives to others when streams go; the
// job's allocations name them by the driver's handles, which the driver gives anew as well. [Streams]
// has a number for each stream, by which an engine knows it, and sees when one is another's.
//
// A thread that waits sleeps for as long as it has waited in vain already, in part ([PauseAfter]). Waiting is
// counted only while somebody looks ([Idle]): a process that was stopped has not waited.
//
// # Locking
//
// Nothing here is safe for concurrent use: package live's lock guards it.
package process
