package evict

import "github.com/penstock-gpu/penstock/correlate"

// moveOverhead is what could be copied while a chunk is unmapped and mapped again, on
// its way out and back: measured on an H200, beside copies, that takes the driver some
// 0.2 ms, and the thread that maps is the one that small chunks keep busy.
const moveOverhead = 8 << 20

// Farther is the position that a victim in chunks of so many bytes is ordered by, when
// it is used next at a position: of what is as far away the larger chunk leaves first,
// because its way costs the less a byte. A small one leaves when it is so much farther
// away that the room it gives for as long is worth its way.
func Farther(now, next, chunk int64) int64 {
	if next >= correlate.Unknown || next <= now {
		return next
	}
	return now + int64(float64(next-now)*float64(chunk)/float64(chunk+moveOverhead))
}

// Exhausted says that what comes first, by Farther, and with it all that follows is used
// at a position or before it, where no chunk is smaller than least bytes.
func Exhausted(now, first, position, least int64) bool {
	share := float64(least) / float64(least+moveOverhead) // that Farther makes of a distance, at least
	return first < correlate.Unknown && float64(first+1-now) <= float64(position-now)*share
}
