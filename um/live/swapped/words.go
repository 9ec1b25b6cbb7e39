package swapped

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// words is pinned memory that the device writes tickets to: behind the words of the launch hook one line for each direction, one for pieces
// of moves out, and one for what is made again.
type words cuda.Ptr

const (
	wordLine   = 64
	wordsBytes = 2*hook.WordsBytes + 4*wordLine
)

// finished is where a direction's finished tickets are written.
func (w words) finished(d um.Direction) cuda.Ptr {
	return cuda.Ptr(w) + 2*hook.WordsBytes + cuda.Ptr(d)*wordLine
}

// pieces is where the finished pieces of moves out are written.
func (w words) pieces() cuda.Ptr { return w.finished(um.Out) + wordLine }

// makings is where the tickets of what is made again are written.
func (w words) makings() cuda.Ptr { return w.pieces() + wordLine }
