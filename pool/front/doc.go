// Package front stands before an owner of memory: what a job has just freed is given
// out again for its next request of the same size and stream without a call into Go.
//
// # The story
//
// Training asks for the same sizes again and again. A call from C into Go costs
// about as much as PyTorch's own allocator takes altogether, so the commonest case
// is served in C (front.h, included by cabi/exports.c): a free puts the allocation
// on the shelf of its size and stream, and a request takes the one that was put
// there last. To the pool what is held is still allocated. Before the pool takes
// or stitches any memory that it would not need if it had what is held, it asks
// for all of it ([Front.Empty]) and tries again; so nothing is reserved, and
// nobody runs out of memory, because of what is held.
//
// The pool says up to which size requests are served here: up to 1 MiB, which plans
// leave alone, and all of them when the job's requests follow no pattern. Where
// layers and iterations repeat, large memory is used best when the pool chooses
// each time what lies where. While it records an iteration, calls above 1 MiB are
// noted, and the pool reads the notes before it does anything else.
//
// Where what is to come is known, request by request and place by place, the pool has the front follow
// that (script.h, [Front.Load], [Front.Follow]), which is then what serves requests above 1 MiB. It is not asked how
// things are in between: at the first request that is not the next one, or finds something where it is to lie, and
// whenever the pool wants to know, the script ends ([Front.Unfollow]) and says which of its requests are live.
//
// There is a second one, before the explicit engine's tensors (um/live): a call would
// wait for the engine's lock, which is held while it plans. All calls are noted there, with
// the operation that the launch hook had last seen, so that the engine can hear of them
// in the order of the job's work, later. Until then it believes that the allocation before
// still lies there. Where it wants the memory of what is held for something else, it
// recalls it; that fails when the job has taken it, or was about to when the last
// note was read ([Front.Recall]). And it says how much more may be given out
// ([Front.SetMost]), so that nobody gets more than the budgets allow.
//
// That engine may have a better place for an allocation than what is held: it keeps one for a request that is to
// come, by its number among those of its size and stream ([Front.Reserve]). What is given out there is not held when
// it is freed, nor is what the engine gives out itself in such a place ([Front.SetApart]).
//
// Under the explicit engine the pool's front remembers when the newest few allocations
// were given out ([Front.NoteBirths], [Front.BornAt]), by a clock that counts the launch
// hook's operations: memory that no operation has come after cannot hold addresses that
// one is to follow.
//
// # Invariants
//
//   - Only a live allocation of the pool is ever held, for the stream it was made for.
//     One that another stream was recorded for is forgotten, and the pool frees it.
//   - An allocation that was under way when the epoch changed is not added: it may
//     lie in the private pool of a CUDA graph, or be able to leave the device.
//   - Live bytes are the pool's without those held. While the pool takes memory
//     back both may count it, which makes the sum too low for a moment, never too high.
//   - A script gives out a place only when none of the steps that lie there too, wholly or in
//     part, is live. All that lies in its addresses when it begins is a step of it, and nobody else gives any of them
//     out or frees there while it is followed.
//   - What a script has given out and taken counts in the bytes held until the pool has it on its account.
//   - A node belongs to exactly one live, held or reserved allocation. Shelves are never removed
//     but all together, when nothing is held or reserved.
//
// # Locks
//
// One spinning lock, held for some tens of nanoseconds (longer only when the table
// grows). The pool calls with its own lock held; nothing here calls the pool.
//
// # Caveats
//
// A front lives as long as the process. Nothing may be called in a forked child,
// where the lock may be held for ever: cabi does not.
package front
