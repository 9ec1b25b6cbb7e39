// Package process is what an engine in a process and what stands above it share, whichever engine it is.
//
// # Story
//
// A [Process] has the lock, the launch hook's ring, the job's streams, counts, and what has become of the engine. Package live makes one and puts an [Engine] into it,
// which is the contract between the two: the engine's package makes the threads, and knows nothing of what stands above but [Plain]. Records
// of the ring go to the engine, with the frees between them ([Process.Drain]); how far streams are is read from their words ([Process.Progress]).
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
// Process.Mu guards a Process but for what is atomic, and the engine. Streams and Idle are not safe for concurrent use. The order of locks is in package live.
package process
