// Package replay runs a trace through the engine on the simulated GPU.
//
// The engine is a real one (package um/managed or um/explicit); what is
// simulated is the GPU, its driver and the passing of time (package cuda/sim),
// and the application, which here is a trace: it queues its launches as fast as
// the CPU could, up to as many as the driver's queue holds, waits where the
// original waited (copies to the host), and allocates and frees where the
// original did.
//
// Policies: naive is the stock driver under PyTorch's caching allocator, with no
// engine at all; lru, deepum and penstock are the engine under those policies;
// oracle is package oracle's clairvoyant schedule. The card's memory is the
// budget, so the driver itself evicts; with Options.SoftwareCap the card is large
// and the engine keeps residency under the budget, as it does in a process that
// is given part of a card.
//
// # Caveats
//
// Every number is simulated. A launch's parameters do not say what it reads and
// what it writes, so everything it names counts as both; under the explicit engine
// nothing leaves without a copy. Small allocations
// (under 1 MiB) are always on the device, as in the engine.
package replay
