// Package hook is the Go side of the launch hook: a view of the state that
// libpenstock_hook.so shares (cabi/hook/penstock_hook.h), with the memory order
// that the header prescribes. What both engines use is in hook.go, what only
// the explicit engine uses (the hook's strict mode) in strict.go.
//
// Stamps of calls are made times here (clock.go): the program's threads store ticks of
// the processor's counter, which cost them little, and [Times] follows how fast it runs.
//
// # Invariants
//
// One goroutine at a time drains the ring; the runtime's lock sees to it. All
// words that both sides use are accessed atomically. A slot's state is stored
// with a full barrier behind it, so that a load of [Shared.LastSeq] afterwards
// sees every operation that did not see the state.
//
// # Caveats
//
// The state lives as long as the process. Nothing here may be called in a
// forked child.
package hook
