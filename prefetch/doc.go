// Package prefetch looks ahead: it decides what to bring to the device next,
// when to wait, and how much must leave to make room.
//
// The look-ahead walks the future in order of need. Along the way it keeps the
// account of device memory as it will be: predicted allocations take from it,
// predicted frees give back, and every absent block that a coming operation
// needs takes its size at the position where it is needed. From that one walk
// follow three answers. What may be fetched now: the next needs that fit at
// every position between now and their use, so that an early fetch never
// displaces something needed sooner (the rule of G10 and DeepUM: pause rather
// than displace). What must leave: the first position where the account goes
// negative is a coming peak, and eviction for it starts at once, because a bus
// that idles now is missing later. Something that is still to be used, and then
// not for long, makes room without leaving now ([Victim].Later): it is better to
// wait for it than to send away what is needed sooner. And where to stop: the
// degree, in
// operations, and the look-ahead in bytes.
//
// A [Planner] asks it for an engine, which enters its tensors as it sees them: what is
// needed and away, what could leave now or once it has been used, and what is to be
// allocated and freed. Both engines decide by it; what may leave, and how much of it at
// a time, is theirs to say. Its plans stand in testdata/plans.txt, as scripts.
//
// # Caveats
//
// The account is in bytes as the caller rounds them; it knows nothing of
// addresses or fragmentation. Positions are those of package correlate.
package prefetch
