package um

import "errors"

// Errors.
var (
	ErrOutOfMemory = errors.New("out of memory")
	ErrNotOurs     = errors.New("not an address that Penstock handed out")
)

// Direction is which kind of worker a move belongs to.
type Direction int

// The workers: one kind brings in, the other takes out.
const (
	In Direction = iota
	Out
)

// Signature is an operation's: its kind and what of that kind it is, a kernel or a
// direction of copying, with how many tensors it names. Replays ask the same as a live process.
func Signature(kind int, what uint64, slots int) uint64 {
	const k = 0x9e3779b97f4a7c15
	x := uint64(kind)<<56 ^ what<<16 ^ uint64(slots)
	x *= k
	return x ^ x>>31
}
