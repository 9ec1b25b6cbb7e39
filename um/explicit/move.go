package explicit

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
)

// scheduler is the floor that hands out moves, and hears how they went.
type scheduler struct {
	planning
	flying    [2]int
	copying   int           // of these, moves out that copy
	fetching  int           // of these, fetches
	moves     int64         // that have begun
	refused   bool          // host memory was not to be had when it was last asked for
	covered   map[int64]int // scratch of uncovered
	leavingOf map[int64]int // chunks on the way out, by size
	oversize  *op           // the last operation for which something was placed
	making    *tensor       // a range that is being mapped for a coming allocation
}

// Kind is what a move does.
type Kind int

// Kinds of moves.
const (
	MoveFetch  Kind = iota // map, and copy in from Host
	MoveMap                // map memory without contents
	MoveEvict              // copy out to Host, unless Host has the contents, then unmap
	MoveTrim               // only what Unmap and Release say
	MovePlace              // map host memory in place, and copy the contents there from Host, if any
	MoveVerify             // issue Launches into other memory, of Bytes, and take the checksum of what they make there: Sum
	MoveMake               // map, and issue Launches, which make what has Sum; if they do not, [Runtime.Unmade]
)

func (k Kind) String() string {
	return [...]string{"fetch", "map", "evict", "trim", "place", "verify", "make"}[k]
}

// Mapping is physical memory at an address.
type Mapping struct {
	cuda.Range
	Handle cuda.Handle
}

// Move is one chunk's way in or out. Before a chunk comes in, dead memory may
// have to go: first everything in Unmap is unmapped, then what is in Release is
// released. When Handle is 0, physical memory is then created and Handle set.
type Move struct {
	Kind    Kind
	Chunk   cuda.Range
	Handle  cuda.Handle
	Host    []cuda.Range // where the contents come from or go to, in order
	Bytes   int64        // of the contents: the chunk but for what the allocation does not use
	Unmap   []Mapping
	Release []cuda.Handle
	Placed  bool // what leaves was in place: its host memory is released
	// Checksum asks for the checksum of what leaves. Compare says that Sum is that of
	// what Host has: if it is the same, Clean is set, and there is nothing to copy.
	Checksum, Compare, Clean bool
	// Sum is the checksum of the contents, found when they leave and compared when
	// they come back, where moves are verified; Summed says that it counts.
	Sum    kernels.Sum128
	Summed bool
	// Launches make the contents again, in this order, of a MoveMake, a MovePlace that has any, and a MoveVerify. Who
	// carries that out puts Clones, which are copies, in the place of memory that is not the engine's, and says so
	// in both; if it cannot, it tells [Runtime.Cancelled].
	Launches []*cuda.RecordedLaunch
	Temps    [][]Temp // of each, what it names of memory that the engine has to put in the place of what the job has freed
	Clones   []cuda.Range
	Proven   bool // a MoveVerify issues nothing, and nothing is compared when it leaves
	// Inputs are what the launches of a MoveVerify read of tensors. With Isolated they are given copies, and Changed are those of which the copy was written to.
	Inputs   []cuda.Range
	Isolated bool
	Changed  []cuda.Range
	// Untried says of a MoveVerify that is cancelled that nothing was learned of the launches.
	Untried bool
	By      string // the function of the last of Launches

	remake    *remake  // what it reads stays until it has landed
	functions []uint32 // of Launches
	tensor    *tensor
	index     int
	begun     bool
	copied    int64     // bytes of an eviction that have been queued
	dead      []*tensor // whose memory is unmapped
	keep      []Mapping // of the unmapped ones, handles that become spare
	releasing int64     // bytes being released
	created   bool
	empties   bool // it is one of those that EmptyCache asks for
}

// Doing says what the move does, in a word or two.
func (m *Move) Doing() string {
	switch {
	case m.Kind == MoveEvict && m.Clean:
		return "leaves clean"
	case m.Kind == MoveEvict && !m.Copied():
		return "drop"
	}
	return m.Kind.String()
}

// What names the allocation that a move belongs to, for messages.
func (m *Move) What() string {
	t := m.tensor
	return fmt.Sprintf("bytes %d to %d of the allocation of %d bytes at %#x, last named by %s",
		t.chunks[m.index].offset, t.chunks[m.index].offset+m.Chunk.Bytes, t.bytes, uint64(t.base), nameOf(t.lastName))
}

// going are the bytes that the move releases.
func (m *Move) going() int64 {
	n := m.releasing
	for _, x := range m.keep {
		n -= x.Bytes
	}
	return n
}

// Direction is the side that the chunk goes to.
func (m *Move) Direction() um.Direction {
	if m.Kind == MoveEvict || m.Kind == MoveVerify {
		return um.Out
	}
	return um.In
}

// idleWorker says whether the worker of a direction need not ask for a move.
func (r *scheduler) idleWorker(d um.Direction) bool {
	return r.flying[d] >= r.most(d) || r.nothing[d] == r.Epoch()+1
}

// Next answers a worker that is free: what to move now, if anything.
func (r *scheduler) Next(d um.Direction) (*Move, bool) {
	if r.idleWorker(d) {
		return nil, false
	}
	r.refused = false
	var m *Move
	before := r.Epoch() - 1
	for again := 0; m == nil && before != r.Epoch() && again < 2; again++ { // once more when packs were vacated for it (noRoom), which is seen from here only
		if before = r.Epoch(); d == um.In {
			m = r.nextIn()
		} else {
			m = r.nextOut()
		}
	}
	if m == nil {
		if !r.refused {
			r.nothing[d] = r.Epoch() + 1 // until something happens
		}
		return nil, false
	}
	r.flying[d]++
	r.moves++
	r.notePeak()
	return m, true
}

// most is how many moves may be under way in a direction.
func (r *scheduler) most(d um.Direction) int {
	if d == um.In {
		return 2 * r.config.Depth // what is needed at once does not wait for what was fetched ahead
	}
	return r.config.Depth
}

// mayFetchAhead says whether another fetch may be begun that no launch waits for.
func (r *scheduler) mayFetchAhead() bool { return r.fetching < r.config.Depth-1 }

// nextIn is the next move of a worker that brings in.
func (r *scheduler) nextIn() *Move {
	if r.room() < 0 { // for plain memory, which is waited for or has been taken
		m := r.trim(-r.room())
		if m == nil {
			r.noRoom()
		}
		if m != nil || r.plainNeed > 0 {
			return m
		}
	}
	x := r.head()
	if m := r.occupyBus(x); m != nil {
		return m
	}
	// What a thread is waiting for comes next, and until it has come whatever
	// room appears is for it.
	if x != nil {
		waits := false
		for t := range x.needs() {
			if t.absent > 0 {
				if t = r.first(t); t == nil {
					waits = true
					continue
				}
				m := r.bring(t, anyIdle)
				if m != nil && m.Kind == MoveMap {
					r.blame(x, um.ForMap)
				}
				if m == nil {
					r.blame(x, um.ForSpace)
					r.noRoom()
					m = r.placeFor(x)
				}
				return m
			}
		}
		if waits {
			return nil
		}
	}
	if m := r.bare(); m != nil {
		return m
	}
	if r.emptying {
		if m := r.empty(); m != nil {
			return m
		}
	}
	if m := r.mapEarly(); m != nil {
		return m
	}
	p := r.lately()
	if m := r.makeReady(p.births[:p.soon]); m != nil {
		return m
	}
	if t := p.nextMake(); t != nil {
		if m := r.bringFirst(t); m != nil { // else there is no room yet, and what follows is needed later
			return m
		}
	}
	if t := p.nextFetch(); t != nil && r.mayFetchAhead() {
		if m := r.bringFirst(t); m != nil { // the same
			return m
		}
	}
	if p.nextFetch() != nil {
		return r.makeReady(p.births[:p.near])
	}
	return r.makeReady(p.births)
}

// urgentOps is how many operations ahead of its use a fetch comes before memory for
// launches that wait.
const urgentOps = 1024

// occupyBus is the next planned fetch, when little is being fetched: the bus would be idle
// while memory is mapped for the launch that waits, x, if one does, and for coming
// allocations, and the time is lacking later. Where the GPU has nothing to do until then
// one fetch is enough. Nothing is fetched into the room that the launch needs.
func (r *scheduler) occupyBus(x *op) *Move {
	if !r.mayFetchAhead() || r.fetching > 0 && r.Stalls.Of != nil && !r.ready(r.Stalls.Of) {
		return nil
	}
	t := r.lately().nextFetch()
	if t == nil || r.nextUse(t) > r.History.Now()+urgentOps {
		return nil
	}
	if x != nil && !r.reclaimable(x.lacks()+t.chunks[0].bytes-r.room()-r.physical.spares, anyIdle) {
		return nil
	}
	return r.bringFirst(t)
}

// bringFirst is the move that brings in a tensor, or what has to come before it; nil when that is on its way, or when there is
// no room.
func (r *scheduler) bringFirst(t *tensor) *Move {
	if t = r.first(t); t == nil {
		return nil
	}
	return r.bring(t, anyIdle)
}

// noRoom is told that there is none for what is waited for: the plan must know.
func (r *scheduler) noRoom() {
	if r.drafting != nil {
		return // it is asked for again by the plan that is being made
	}
	if !r.Moving() && r.plan.epoch != r.Epoch() {
		r.plan.valid = false // made before
	}
	if p := r.planned(); !r.Moving() && !p.anyLeaves() {
		r.vacateEarly()
	}
}

// bring is the move that brings in the next chunk of a tensor, or nil when there
// is no room.
func (r *scheduler) bring(t *tensor, which reclaiming) *Move {
	for i := range t.chunks {
		c := &t.chunks[i]
		if c.where != blank && c.where != onHost && (c.where != dropped || !t.makes()) {
			continue
		}
		m := &Move{Kind: MoveMap, Chunk: t.rangeOf(c), tensor: t, index: i}
		if !r.provide(m, which) {
			return nil
		}
		if c.where == onHost || c.where == dropped {
			m.Kind, m.Host, m.Bytes = MoveFetch, c.host, t.used(c)
			m.Sum, m.Summed = c.sum, c.summed
			r.blame(r.Stalls.Of, um.ForFetch)
			if t.makes() {
				m.Kind = MoveMake
				r.makeInstead(m)
			} else {
				r.fetching++
			}
		}
		c.where, c.submitted = arriving, false
		t.absent -= c.bytes
		t.flying++
		r.incoming += c.bytes
		r.physical.mapped += c.bytes
		return m
	}
	return nil
}

// makeReady maps memory for coming allocations, so that they need not wait for it.
func (r *scheduler) makeReady(births []birth) *Move {
	if r.making == nil {
		size := r.uncovered(births, func(size int64) int { return len(r.dead.bySize[size]) })
		if size == 0 || !r.reclaimable(size-r.room()-r.physical.spares, surplusOnly) {
			return nil
		}
		base, ok := r.addresses.take(size)
		if !ok {
			return nil
		}
		r.making = &tensor{Tensor: um.Tensor{Freed: true}, base: base, size: size, chunks: r.cut(size), absent: size}
	}
	t := r.making
	m := r.bring(t, surplusOnly)
	if m == nil { // the room is gone; what has been mapped is as good as any dead range
		if t.flying == 0 {
			r.making = nil
			r.retire(t)
		}
		return nil
	}
	if t.absent == 0 {
		r.making = nil
	}
	return m
}

// nextOut is the next move of a worker that takes out.
func (r *scheduler) nextOut() *Move {
	if m := r.backToPool(); m != nil {
		return m
	}
	// What can be made again is gone at once when room is wanted. What is copied takes its time: the bus must not wait for
	// the others' turn.
	var m *Move
	wait, p := false, r.planned()
	if r.copying < busyCopies {
		if m, wait = r.leaver(p, &p.evict); m != nil {
			return m
		}
	}
	if m, _ = r.leaver(p, &p.drops); m == nil && !wait {
		m, _ = r.leaver(p, &p.evict)
	}
	return m
}

// busyCopies is how many copies out keep the bus busy.
const busyCopies = 2

// leaver is the next move that takes out one of those in a list of the plan. wait says that it cannot be made now and can be
// later.
func (r *scheduler) leaver(p *plan, list *[]*tensor) (m *Move, wait bool) {
	if r.mapsMuch() {
		r.fitFirst(p, *list)
	}
	for ; len(*list) > 0; *list = (*list)[1:] {
		t := (*list)[0]
		if t.serial != p.serial || t.leaves <= 0 {
			continue
		}
		if r.evictable(t) {
			if m := r.verifyFirst(t); m != nil {
				return m, false
			}
			if m, wait = r.take(t, onDevice); m != nil || wait {
				return m, wait
			}
		}
		if t.pins > 0 || t.remake != nil && t.remake.moving {
			p.waiting = append(p.waiting, t)
		}
	}
	return nil, false
}

// fitFirst puts the first of a list that has memory of the size that what comes next lacks before the others: that memory
// need not be released, nor other memory created.
func (r *scheduler) fitFirst(p *plan, list []*tensor) {
	if len(list) < 2 {
		return
	}
	size := r.lacking()
	i := slices.IndexFunc(list, func(t *tensor) bool {
		return t.size == size && len(t.chunks) == 1 && t.serial == p.serial && t.leaves > 0 && r.evictable(t)
	})
	if i > 0 {
		t := list[i]
		copy(list[1:], list[:i])
		list[0] = t
	}
}

// lacking is the size of the first of what comes next for which no memory of that size is free, or is being freed; 0 when there is for all.
func (r *scheduler) lacking() int64 {
	if x := r.head(); x != nil {
		for t := range x.needs() {
			if t.absent > 0 {
				return t.chunks[0].bytes
			}
		}
	}
	return r.uncovered(r.plan.births, func(size int64) int {
		return len(r.dead.bySize[size]) + len(r.physical.spare[size]) + r.leavingOf[size]
	})
}

// uncovered is the size of the first of coming allocations for which there is no memory, where there is some for so many of each size; 0 when there is
// for all.
func (r *scheduler) uncovered(births []birth, free func(size int64) int) int64 {
	clear(r.covered)
	for _, b := range births {
		if b.position <= r.History.Now() {
			continue // it has come since the plan was made
		}
		if r.covered[b.size]++; r.covered[b.size] > free(b.size) {
			return b.size
		}
	}
	return 0
}

// take is the move that takes out the last chunk of a tensor. again says that it
// cannot be made now and can be later.
func (r *scheduler) take(t *tensor, w where) (m *Move, again bool) {
	for i := len(t.chunks) - 1; i >= 0; i-- {
		c := &t.chunks[i]
		if c.where != w {
			continue
		}
		if !r.withdraw(t) {
			return nil, false
		}
		rm := t.remake
		if rm != nil && rm.moving { // it is being verified
			r.setState(t)
			return nil, false
		}
		drop := w == onDevice && c.kept == nil && r.drops(t)
		insured, cause := !drop || !r.trusted(t), r.cause(t, drop)
		t.copied = t.copied || !drop
		if !drop {
			r.release(t)
		}
		kept := r.unkeep(c)
		sum := w == onDevice && (r.trial.on && c.learned.worth() || drop)
		if c.host == nil && insured && !r.takeHost(c) {
			r.setState(t)
			r.refused = true
			return nil, true
		}
		r.stats.HostPeakBytes = max(r.stats.HostPeakBytes, r.stats.HostBytes-r.kept.bytes)
		c.where = leaving
		r.leavingOf[c.bytes]++
		t.flying++
		if w == onDevice {
			t.leaves -= c.bytes
			r.outgoing += c.bytes
		}
		m = &Move{
			Kind: MoveEvict, Placed: w == inPlace, Chunk: t.rangeOf(c), Handle: c.handle, Host: c.host, Bytes: t.used(c),
			Checksum: sum, Compare: kept && sum, Sum: c.sum,
			tensor: t, index: i,
		}
		if m.Copied() {
			r.copying++
			r.stats.CopiedBytes[cause] += m.Bytes
		}
		if drop {
			r.again.guards++
			m.remake = rm
			r.ofRecipe(m)
			if m.Proven = rm.proven; !insured && !m.Proven {
				m.Compare, m.Sum = true, rm.sum
			}
		}
		return m, false
	}
	return nil, false
}

// withdraw publishes that a tensor is not to be used, unless an operation that has
// not been reported yet came before.
func (r *scheduler) withdraw(t *tensor) bool {
	if t.state == Absent {
		return true
	}
	t.state = Absent
	r.process.SetState(t.Slot, Absent, 0)
	if r.process.LastSeq(t.Slot) > r.Reported() {
		r.stats.TakenBack++
		r.setState(t)
		return false
	}
	return true
}

// Submitted reports that a move has been started: what had to go before it is
// gone, and a chunk that comes in is mapped, with its copy queued, which is done
// when the word of arrivals has reached the ticket.
func (r *scheduler) Submitted(m *Move, ticket uint32) {
	m.begun = true
	for _, g := range m.dead {
		r.addresses.give(g.base, g.size)
	}
	r.physical.releasing -= m.releasing
	r.physical.going -= m.going()
	for _, x := range m.keep {
		r.freed(x.Handle, x.Bytes)
	}
	r.stats.Released += int64(len(m.Release))
	if m.created {
		r.stats.Created++
	}
	m.dead, m.keep, m.Release, m.releasing, m.created = nil, nil, nil, 0, false // a move whose memory was not made rightly is submitted twice
	if m.Kind == MoveFetch || m.Kind == MovePlace && ticket != 0 && len(m.Launches) == 0 {
		c := &m.tensor.chunks[m.index]
		c.submitted, c.ticket = true, ticket
		c.handle = m.Handle
		r.setState(m.tensor)
	}
	r.Happened()
	r.accountStall()
}

// Failed reports that a move could not be begun because the driver had no memory
// for it: what had to go is gone, and the chunk is where it was. The budget
// becomes what there is now, for the card has less than was believed. An error
// says that nothing can move within that.
func (r *scheduler) Failed(m *Move) error {
	r.Submitted(&Move{Kind: MoveTrim, dead: m.dead, keep: m.keep, releasing: m.releasing, Release: m.Release}, 0)
	r.flying[m.Direction()]--
	t := m.tensor
	c := &t.chunks[m.index]
	t.flying--
	t.absent += c.bytes
	r.incoming -= c.bytes
	r.physical.mapped -= c.bytes
	switch {
	case m.Kind == MoveMap:
		c.where = blank
	case c.host == nil:
		c.where = dropped
	default:
		c.where = onHost
	}
	if m.Kind == MoveFetch {
		r.fetching--
	}
	r.landed(m)
	if t == r.making {
		r.making = nil
	}
	switch {
	case !t.Freed:
		r.setState(t)
	case t.flying == 0 && !t.held:
		r.retire(t)
	}
	r.Shrink()
	if r.config.BudgetBytes < r.PlainBytes+c.bytes {
		return fmt.Errorf("%w: the driver has none left for %d bytes, and only %s of it are held, %s as plain memory",
			um.ErrOutOfMemory, c.bytes, size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes))
	}
	return nil
}

// Done reports that a move has been carried out.
func (r *scheduler) Done(m *Move) {
	if !m.begun {
		r.Submitted(m, 0)
	}
	d := m.Direction()
	r.flying[d]--
	t := m.tensor
	if m.Kind == MoveVerify {
		r.verified(m)
		r.Happened()
		return
	}
	if t == nil { // it only made room
		if m.empties {
			r.empties--
		}
		r.Happened()
		return
	}
	c := &t.chunks[m.index]
	t.flying--
	switch m.Kind {
	case MovePlace:
		c.where, c.submitted, c.handle = inPlace, false, m.Handle
		r.giveHost(c)
		r.placed += c.bytes
		r.cameBack(m)
	case MoveFetch, MoveMap, MoveMake:
		r.incoming -= c.bytes
		c.where, c.submitted, c.handle = onDevice, false, m.Handle
		r.keep(t, c)
		r.recent.delay(t.Queued.All(), r.process.Now()) // what names it waited for it
		t.arrived = r.moves
		switch m.Kind {
		case MoveFetch:
			r.fetching--
			r.stats.Fetches++
			r.stats.FetchedBytes += m.Bytes
		case MoveMake: // cameBack counts it
		default:
			r.stats.Maps++
		}
		r.cameBack(m)
	case MoveEvict:
		r.leavingOf[c.bytes]--
		if m.Copied() {
			r.copying--
		}
		if m.Placed {
			r.placed -= c.bytes
		} else {
			r.outgoing -= c.bytes
			r.physical.mapped -= c.bytes
			r.freed(c.handle, c.bytes)
			if m.remake == nil {
				c.learned.note(m.Compare, m.Clean)
			}
		}
		c.where, c.handle = onHost, 0
		c.sum, c.summed = m.Sum, m.Summed && m.Bytes == t.used(c) // else it was taken again meanwhile
		t.absent += c.bytes
		r.stats.Evictions++
		switch {
		case m.remake == nil:
		case m.remake != t.remake: // it is not to be made any more, or another allocation has the range, and nothing in it yet
			if c.host == nil {
				c.where = blank
			}
		default:
			if c.host == nil {
				c.where = dropped
			}
			if m.Proven {
				m.remake.sum = m.Sum
			}
			r.judge(m, m.Sum == m.remake.sum)
		}
		switch {
		case c.host == nil: // it was dropped
		case m.Clean:
			r.stats.CleanBytes += m.Bytes
		default:
			r.stats.EvictedBytes += m.Bytes
		}
	}
	r.settled(t)
}

// settled goes on with a tensor of which a move has ended.
func (r *scheduler) settled(t *tensor) {
	switch {
	case !t.Freed:
		r.setState(t)
	case t.flying == 0 && t != r.making && !t.held:
		r.retire(t)
		if t.Slot == 0 && t.whole() { // it was never anyone's: it has been made ready
			t.Stream = r.lastStream // for no stream in particular
			r.offer(t)
		}
	}
	r.Happened()
	r.accountStall()
}

// Cancelled reports that a move is not carried out: one that was to verify a recipe, because that cannot be done, or one that was to drop a
// chunk, which is not what its recipe makes. The chunk is where it was.
func (r *scheduler) Cancelled(m *Move) {
	t, rm := m.tensor, m.remake
	r.flying[um.Out]--
	if rm == t.remake {
		r.judge(m, false)
	}
	if m.Kind == MoveVerify {
		rm.clones = m.Clones
		r.landed(m)
		r.plan.resume()
		r.plan.changed = true
		r.Happened()
		return
	}
	r.plan.valid = false
	c := &t.chunks[m.index]
	t.flying--
	r.leavingOf[c.bytes]--
	if m.Copied() {
		r.copying--
	}
	r.outgoing -= c.bytes
	c.where = onDevice
	r.settled(t)
}

// Unmade reports that what a move was to make again is not what left, though it was when it left, or that it cannot be made any more. What
// makes it is not trusted again. The copy on the host, which there has to be, is fetched instead, by the same move.
func (r *scheduler) Unmade(m *Move) {
	r.Doubted(m)
	r.stats.Unmade++
	t := m.tensor
	r.landed(m)
	r.giveUpRecipe(t, r.History.Now())
	m.Kind, m.Launches = MoveFetch, nil
	r.fetching++
	r.Happened()
}

// mapEarly maps memory for a pack before an operation names it.
func (r *scheduler) mapEarly() *Move {
	for _, t := range r.early {
		if !t.Freed && !t.Named && t.absent > 0 {
			return r.bring(t.tensor, surplusOnly)
		}
	}
	return nil
}

// Moving says whether a move is under way.
func (r *scheduler) Moving() bool { return r.flying[um.In]+r.flying[um.Out] > 0 }
