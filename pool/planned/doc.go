// Package planned serves allocations from a plan, once there is one.
//
// # The story
//
// It is the middle link of package pool's chain. It watches ([Pool.NoteAlloc]); once it has seen two iterations of a job (package
// follow) it plans where the allocations of one lie (package plan), in the background (planning.go); chooses, when an
// iteration begins, enough of the memory that is free then; maps it a second time as
// one range, in the background; and takes that range when a later iteration begins,
// if the memory is free again. From then on requests above 1 MiB that come as
// planned get their planned addresses (service.go). What lives across iterations stays where it
// is: nothing is moved. Where iterations are followed without a miss, the front follows the plan by itself (script.go).
//
// A request that is not in the plan, or whose place is in use, goes to stitching below;
// one whose size varies goes to the gaps that the plan leaves during its life. When
// the job does something else for long, or memory runs out, the range is given up
// and its free memory serves everything; the plan is taken up again when the
// iterations go on.
//
// # Invariants
//
//   - A planned address is given out only when what is really there is free, and the
//     stream that used it last is the same one or known to be done.
//   - A plan that is wrong costs memory or time, never a value.
//
// # Locks
//
// It has none of its own: callers hold that of [Above], which the goroutines that plan and map take for what they note.
package planned
