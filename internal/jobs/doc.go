// Package jobs is how a running job is found and asked what it does: by a Unix socket of its own, PID.sock, in a folder of
// its user. The job's end is [Listen], that of `penstock top` [All] and [Ask].
//
// # The story
//
// Whoever connects gets one line of JSON, an [Answer], and is sent away: nothing that a client sends is ever read. So that
// a job which nobody looks at pays nothing, one thread sleeps in accept(2), outside of Go's scheduler and poller, and the
// statistics are taken when somebody has come; twenty times a second at most, for others get the line of before. The
// line fits the socket's buffer, so that a client that never reads holds nobody up.
//
// # Invariants
//
//   - Only the job's own user and root get an answer. The folder is the user's alone, 0700, or it is not used; both ends
//     look at who the other is (SO_PEERCRED).
//   - A socket has its name only while it listens: one that refuses is of a dead process, and is removed.
//   - Listen fails at worst: the job goes on without.
//
// # Caveats
//
// The line comes from another process, and what is in it is not trusted: its size is bounded, and names are made fit for
// a terminal by whoever shows them. A job in a container is found by a command in the same container, where it has its
// temporary folder.
package jobs
