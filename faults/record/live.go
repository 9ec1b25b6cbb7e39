package record

// Live are numbers of live allocations by address. Go's map takes a third of what
// encoding an allocation and its free costs; here their lines follow each other. The
// zero value is empty.
type Live struct {
	slots []liveSlot // a power of two, at most half of them in use
	used  int
	shift uint // of a hash, to an index
}

type liveSlot struct{ address, id uint64 } // address 0: free

const leastLive = 1 << 10

func (l *Live) home(address uint64) int {
	return int(address * 0x9e3779b97f4a7c15 >> l.shift)
}

// at is where an address is, or the free slot where it would be.
func (l *Live) at(address uint64) int {
	i := l.home(address)
	for l.slots[i].address != address && l.slots[i].address != 0 {
		i = (i + 1) & (len(l.slots) - 1)
	}
	return i
}

// Find is the number of what lives at an address, which is not 0.
func (l *Live) Find(address uint64) (id uint64, ok bool) {
	if l.used == 0 {
		return 0, false
	}
	s := l.slots[l.at(address)]
	return s.id, s.address != 0
}

// Put makes an address, which is not 0, that of an allocation.
func (l *Live) Put(address, id uint64) {
	if 2*(l.used+1) > len(l.slots) {
		l.grow()
	}
	i := l.at(address)
	if l.slots[i].address == 0 {
		l.used++
	}
	l.slots[i] = liveSlot{address, id}
}

func (l *Live) grow() {
	old := l.slots
	l.slots = make([]liveSlot, max(leastLive, 2*len(old)))
	l.shift = 64
	for n := len(l.slots); n > 1; n /= 2 {
		l.shift--
	}
	for _, s := range old {
		if s.address != 0 {
			l.slots[l.at(s.address)] = s
		}
	}
}

// Take is Find, and forgets the address.
func (l *Live) Take(address uint64) (id uint64, ok bool) {
	if l.used == 0 {
		return 0, false
	}
	gap := l.at(address)
	s := l.slots[gap]
	if s.address == 0 {
		return 0, false
	}
	l.used--
	// What follows without a gap moves up, unless it is between its home and the gap already.
	mask := len(l.slots) - 1
	for i := (gap + 1) & mask; l.slots[i].address != 0; i = (i + 1) & mask {
		if (i-l.home(l.slots[i].address))&mask >= (i-gap)&mask {
			l.slots[gap] = l.slots[i]
			gap = i
		}
	}
	l.slots[gap] = liveSlot{}
	return s.id, true
}
