package explicit

import (
	"sort"

	"github.com/penstock-gpu/penstock/correlate"
)

// life is one allocation, from its birth to its death.
type life struct {
	instance   correlate.Ref // of its tensor
	bytes      int64         // as asked for
	stream     int
	born, died int64   // positions of the operations that came next; notYet while it lives
	named      bool    // an operation has named it
	lasting    bool    // at the end of its longest rest it could have been made again, or one that it repeats could
	makeable   bool    // and it had a recipe when it died: it is no part of a pack, which has none
	rest       rest    // the longest, of one with a recipe that was not moved
	repeated   bool    // by an allocation that has come
	home       *tensor // the pack that its repetition is to be a part of: see pack.go
	part       int     // which one
}

const (
	notYet = int64(-1)
	noLife = int64(-1)
	// leastMakeable is how large an allocation is at least that is not packed as it can be made again: to map a smaller one takes as long
	// as its contents take on the bus, which in a pack share one mapping.
	leastMakeable = 12 << 20
	// mostLives is how many are remembered at least: an iteration has up to some thousands.
	mostLives = 1 << 15
)

// lives remembers allocations by number, in the order of their births.
type lives struct {
	first int64 // the number of all[0]
	all   []life
}

// begin enters an allocation and answers its number.
func (l *lives) begin(instance correlate.Ref, bytes int64, stream int, now int64) int64 {
	if len(l.all) == 2*mostLives {
		l.all = append(l.all[:0:0], l.all[mostLives:]...)
		l.first += mostLives
	}
	l.all = append(l.all, life{instance: instance, bytes: bytes, stream: stream, born: now, died: notYet})
	return l.end() - 1
}

// end is the number after the last.
func (l *lives) end() int64 { return l.first + int64(len(l.all)) }

// of is the life with a number, nil when it is forgotten, or for noLife.
func (l *lives) of(number int64) *life {
	if number < l.first {
		return nil
	}
	return &l.all[number-l.first]
}

// again lets all that was born from a position on be repeated once more, as it may have been before, and answers the number of the
// first.
func (l *lives) again(born int64) int64 {
	first := l.bornAt(born)
	for i := first; i < len(l.all); i++ {
		x := &l.all[i]
		x.repeated = false
		if x.home != nil && x.home.Freed {
			x.home = nil
		}
	}
	return l.first + int64(first)
}

// bornAt is the index of the first that was born at a position or later.
func (l *lives) bornAt(born int64) int {
	return sort.Search(len(l.all), func(i int) bool { return l.all[i].born >= born })
}

// like is the number of the life that an allocation repeats: of the first one of its size and stream that
// was born at a position, and has not been repeated; noLife when there is none.
func (l *lives) like(bytes int64, stream int, born int64) int64 {
	for i := l.bornAt(born); i < len(l.all) && l.all[i].born == born; i++ {
		if x := &l.all[i]; !x.repeated && x.bytes == bytes && x.stream == stream {
			x.repeated = true
			return l.first + int64(i)
		}
	}
	return noLife
}
