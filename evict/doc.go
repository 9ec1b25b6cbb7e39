// Package evict decides what leaves the device when room is needed.
//
// A [Policy] is an order among candidates: who leaves first. Three are known.
// LRU is the textbook order and the baseline. DeepUM is the order of DeepUM
// (ASPLOS '23): first what the predicted kernels do not need, among those the
// least recently migrated. NextUse is Belady's order on predicted next uses:
// the farthest leaves first, and among equals what costs no copy.
//
// Dead memory is not a candidate: its owner hands it back for nothing before
// any policy is asked. Eviction runs ahead of need: [Watermarks] say when it
// starts and how far it goes for policies that cannot look ahead; the look-ahead
// of package prefetch replaces them where the future is known. Where each move has a
// cost of its own, [Farther] orders what is large before what is small and as far away.
//
// # Caveats
//
// A policy sees predictions. It must give a strict weak order for any values,
// including unknown ones, and never decides whether a block may leave: the
// runtime has already removed what is in use or moving.
package evict
