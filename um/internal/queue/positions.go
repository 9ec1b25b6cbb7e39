package queue

import "slices"

// Positions are those of the unfinished operations that name a tensor, in order. Operations mostly
// finish in that order, and there may be as many as the engine has fallen behind: the first goes at
// a constant cost. The zero value is empty.
type Positions struct {
	all  []int64
	from int // those before it are gone
}

// Add enters a position, which is not there yet.
func (p *Positions) Add(position int64) {
	if n := len(p.all); n == p.from || p.all[n-1] < position {
		p.all = append(p.all, position)
		return
	}
	i, _ := slices.BinarySearch(p.all[p.from:], position)
	p.all = slices.Insert(p.all, p.from+i, position)
}

// Remove takes a position out, if it is there.
func (p *Positions) Remove(position int64) {
	i, ok := slices.BinarySearch(p.all[p.from:], position)
	switch {
	case !ok:
		return
	case i > 0:
		p.all = slices.Delete(p.all, p.from+i, p.from+i+1)
	default:
		p.from++
	}
	if p.from > len(p.all)/2 { // as many have gone as are copied
		p.all, p.from = append(p.all[:0], p.all[p.from:]...), 0
	}
}

// Len is how many there are.
func (p *Positions) Len() int { return len(p.all) - p.from }

// All is every one of them, until the next Add or Remove.
func (p *Positions) All() []int64 { return p.all[p.from:] }

// First is the first of at least one.
func (p *Positions) First() int64 { return p.all[p.from] }

// Last is the last of at least one.
func (p *Positions) Last() int64 { return p.all[len(p.all)-1] }
