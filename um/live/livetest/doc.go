// Package livetest is what tests put below and above an engine: for tests of um/live and of its floors alone.
//
// # Story
//
// [Driver] is a driver that keeps accounts and moves nothing, [Hook] a launch hook whose Queue plays a thread of the job. A [Job] runs on the
// test double of the driver in package cudastub, where what it launches really reads and writes, under a hook that waits as the real
// one does ([StrictHook]). It is served by Live, or by one engine alone under [Above], which stands there for Live.
//
// # Caveats
//
// Nothing here is for a real process. A wait that lasts 20 s fails the test.
package livetest
