// Package um is what the two engines are that move memory between the device and the host:
// um/managed by prefetches of unified memory, um/explicit by copies of physical chunks. Neither
// knows of the other.
//
// # Story
//
// An engine embeds a [Base], and hears of each operation ([Op]) what the hook saw of it: its place, what it names,
// what it does with that as far as it is known, and how it could be made again. A [Policy] says
// when memory is brought to the device and in which order it leaves. Workers of two directions ([Direction]) carry out what an engine decides.
//
// # Locking
//
// An engine is not safe for concurrent use. In a real process packages live/paged and live/swapped
// each make the worker threads of one, under the one lock of package live/process; package replay
// drives it in virtual time.
package um
