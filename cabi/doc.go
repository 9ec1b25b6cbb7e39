// Command cabi is libpenstock.so, the engine behind a C interface (penstock.h).
// It is built with -buildmode=c-shared and loaded late, by the framework's
// allocator plug-in; the launch hook (cabi/hook) is a library of its own, in
// plain C, that is preloaded.
//
// # Rules at this border
//
//   - Exports are C functions (exports.c) that never enter Go in a forked child.
//   - A panic never crosses: it becomes an error and the engine is given up, so
//     that the job goes on under the driver's own paging.
//   - What can be served without the engine is served in C (pool/front/front.h), which takes
//     a few tens of nanoseconds; the call into Go is the rest of an allocation's time.
//   - One engine a process, for one device. In a job of several processes its files
//     have its rank in their names, and so have the lines that it prints (internal/ranks).
//
// # Lock order
//
// state.mu, then the engine's own lock. state.mu is only held to start and stop.
package main
