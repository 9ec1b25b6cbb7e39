package correlate

import (
	"math"
	"math/bits"
	"slices"
)

// Positions in the sequence of observed operations.
const (
	// Never is the next use of an allocation that is not used again before it dies.
	Never int64 = math.MaxInt64
	// Unknown is the next use of an allocation that nothing is known about.
	Unknown int64 = math.MaxInt64 - 1
)

const (
	contextOps       = 8   // operations that make up a context in the index
	skipOps          = 16  // operations that may be left out of what is repeated, at once, without a search
	leastSure        = 2   // tensors that stay which show where to go on behind those
	changedOps       = 2   // of them, where another kernel comes after those
	realignOps       = 256 // how far ahead of the cursor a departed sequence is looked for
	realignMatch     = 3   // operations that must match for a realignment
	mostPatience     = 256 // unexpected operations in a row before any past is looked for elsewhere
	maxInsertedOps   = 64  // unexpected operations in a row before the cursor is given up
	defaultMaxOps    = 1 << 18
	defaultMaxIndex  = 1 << 18
	leastIndex       = 1 << 6
	trimFraction     = 64 // the log is dropped in so many parts
	trimUses         = 4  // the share of an instance's uses that must be forgotten for the others to be moved
	noInstance       = 0
	firstInstance    = 1
	lostCursor       = int64(-1)
	noPosition       = int64(-1)
	minLogOps        = 1024
	contextSeed      = 0x9e3779b97f4a7c15
	contextMultipler = 0xff51afd7ed558ccd
)

// HistoryConfig bounds a History. Zero values take the defaults.
type HistoryConfig struct {
	MaxOps   int // operations remembered (default 262,144)
	MaxIndex int // contexts indexed, made a power of two; of two that share an entry the newer stays (default 262,144)
}

// InstanceID names one life of one allocation. 0 is none.
type InstanceID uint32

// instance is one life of an allocation, as the log remembers it.
type instance struct {
	bytes   int64
	asked   int64 // of these
	born    int64 // position of the first operation after it was allocated
	died    int64 // position of the first operation after it was freed; noPosition while alive
	uses    []int64
	coming  int        // the use that was found by after
	past    InstanceID // its counterpart in the previous iteration, if any
	pastGen uint32     // generation of past when it was linked
	gen     uint32     // bumped when the slot is recycled
	live    bool
	used    bool   // the slot holds an instance
	stands  bool   // for several of the past: see Foretell
	group   *group // that it is in, or is: see group.go
}

// step is what the log remembers of one operation.
type step struct {
	signature  uint64
	freshBytes int64  // allocated between the previous operation and this one
	freedBytes int64  // freed between the previous operation and this one
	turns      int64  // the first turn between the previous operation and this one
	turnsEnd   int64  // the one after the last
	sum        uint64 // of the signatures of all operations up to this one
	live       int64  // bytes that were allocated then
}

// turn is the beginning of an allocation's life, or its end.
type turn struct {
	id    InstanceID
	gen   uint32
	death bool
}

// HistoryStats counts what a History has seen.
type HistoryStats struct {
	Ops           int64 // operations observed
	Predicted     int64 // operations that came exactly as predicted, with exactly the predicted access set
	Realignments  int64 // times the cursor moved to another place
	Lost          int64 // times the cursor was given up
	Period        int64 // operations between the cursor and the present: the iteration length when it is stable; 0 when lost
	InstancesLive int64
	Bytes         int64 // memory held by the log, approximately
}

// History is a log of operations with a cursor at the place in the past that
// the present repeats. See the package comment.
type History struct {
	maxOps int
	base   int64 // the first position that is remembered
	steps  log[step]
	turns  log[turn]
	now    int64 // position of the next operation to be observed
	cursor int64 // position that matches now-1, or lostCursor

	instances log[instance] // by InstanceID
	recycled  []InstanceID
	dead      []InstanceID // dead instances in order of death

	index   []int64            // by context: the newest position, plus one
	recent  [contextOps]uint64 // signatures of the last operations, newest last
	missed  int                // unexpected operations in a row
	version uint64

	// for search.go
	live, mostLive int64     // bytes that are allocated, and the most that were
	drift          float64   // how much more became alive than where that is repeated, of late
	strangers      int       // operations in a row that touch another tensor than where they are repeated
	anchors        [4]anchor // the last ones, newest first
	stayed         int64     // the cursor, or where it was when it was lost: what was born by then stays
	searchAt       int64     // no place is searched for up to this position, for none was found lately
	wait           int64     // and for so many operations

	// what was allocated and freed since the last operation
	freshBytes, freedBytes int64
	newTurns               int64   // the first of them
	turnOrdinal            int64   // turns matched so far since the last operation
	merged                 []int64 // scratch of restOf
	sizes                  sizeMap

	stats HistoryStats
}

// NewHistory returns an empty History.
func NewHistory(c HistoryConfig) *History {
	if c.MaxOps <= 0 {
		c.MaxOps = defaultMaxOps
	}
	if c.MaxOps < minLogOps {
		c.MaxOps = minLogOps
	}
	if c.MaxIndex <= 0 {
		c.MaxIndex = defaultMaxIndex
	}
	h := &History{maxOps: c.MaxOps, cursor: lostCursor, stayed: lostCursor, index: make([]int64, 1<<bits.Len(uint(max(c.MaxIndex, leastIndex)-1)))}
	h.instances.add(instance{}) // noInstance
	for i := range h.anchors {
		h.anchors[i].position = -anchorOps
	}
	return h
}

func (h *History) instance(id InstanceID) *instance { return h.instances.at(int64(id)) }

// Now is the position that the next observed operation will have.
func (h *History) Now() int64 { return h.now }

// Locked says whether the present is matched to a place in the past.
func (h *History) Locked() bool { return h.cursor != lostCursor }

// Version changes whenever predictions made before may no longer hold for
// reasons other than operations being observed: on a realignment, or a loss.
func (h *History) Version() uint64 { return h.version }

// Period is how many operations ago the present was last like now: the length of an
// iteration when it is stable; 0 when nothing is known.
func (h *History) Period() int64 {
	if !h.Locked() {
		return 0
	}
	return h.now - 1 - h.cursor
}

// Stats reports counters.
func (h *History) Stats() HistoryStats {
	s := h.stats
	s.Period = h.Period()
	s.InstancesLive = h.instances.end - firstInstance - int64(len(h.recycled))
	s.Bytes = h.steps.bytes() + h.turns.bytes() + h.instances.bytes() + int64(len(h.index))*8
	for id := range h.instances.end {
		s.Bytes += int64(cap(h.instances.at(id).uses)) * 8
	}
	return s
}

// Alloc records an allocation and returns the name of its life.
func (h *History) Alloc(bytes int64) InstanceID {
	id := h.newInstance()
	in := h.instance(id)
	*in = instance{bytes: bytes, asked: bytes, born: h.now, died: noPosition, uses: in.uses[:0], gen: in.gen, live: true, used: true}
	h.matchBirth(id)
	h.turns.add(turn{id: id, gen: in.gen})
	h.freshBytes += bytes
	h.live += bytes
	h.mostLive = max(h.mostLive, h.live)
	return id
}

func (h *History) newInstance() InstanceID {
	if n := len(h.recycled); n > 0 {
		id := h.recycled[n-1]
		h.recycled = h.recycled[:n-1]
		return id
	}
	return InstanceID(h.instances.add(instance{}))
}

// Ref names one life of one allocation for as long as it is remembered, and nothing afterwards.
type Ref struct {
	id  InstanceID
	gen uint32
}

// Ref is the name to keep of a life that may end.
func (h *History) Ref(id InstanceID) Ref { return Ref{id, h.instance(id).gen} }

// Foretell says that an allocation, just made, takes the place of several of the past, born and dead at positions
// in the log: unless more is known of it, it is expected to be used when one of them was.
func (h *History) Foretell(id InstanceID, past []Ref, born, died int64) {
	if p := h.counterpart(id); p != nil && p.bytes == h.instance(id).bytes {
		return
	}
	together := h.newInstance()
	in := h.instance(together)
	*in = instance{bytes: h.instance(id).bytes, born: born, died: died, uses: in.uses[:0], gen: in.gen, used: true, stands: true}
	for _, ref := range past {
		if p := h.instance(ref.id); p.gen == ref.gen {
			in.uses = append(in.uses, p.uses...)
		}
	}
	slices.Sort(in.uses)
	in.uses = slices.Compact(in.uses)
	h.dead = append(h.dead, together)
	h.instance(id).past, h.instance(id).pastGen = together, in.gen
}

// matchBirth links an allocation to its counterpart.
func (h *History) matchBirth(id InstanceID) {
	in := h.instance(id)
	turn := h.nextBirth(in.bytes)
	if turn == noPosition {
		return
	}
	t := h.turns.at(turn)
	in.past, in.pastGen = t.id, t.gen
	if h.Varies() || h.instance(t.id).bytes == in.bytes {
		h.turnOrdinal = turn + 1 - h.at(h.cursor+1).turns
	}
}

// nextBirth is the turn that an allocation which comes now repeats: the one made at the same place after the cursor, of the same
// size, or of another where none has that; noPosition when there is none.
func (h *History) nextBirth(bytes int64) int64 {
	if !h.Locked() {
		return noPosition
	}
	next := h.at(h.cursor + 1)
	if next == nil {
		return noPosition
	}
	last := next // of the places where it may be: an operation may have come that was not there, or in place of another
	if s := h.at(h.cursor + 1 + int64(h.missed)); s != nil && h.Varies() {
		last = s
	}
	other := noPosition
	for i := next.turns + h.turnOrdinal; i < last.turnsEnd; i++ {
		t := h.turns.at(i)
		p := h.instance(t.id)
		switch {
		case t.death || p.gen != t.gen:
		case p.bytes == bytes:
			return i
		case other == noPosition:
			other = i
		}
	}
	return other
}

// Lasts predicts for how many operations an allocation of so many bytes will live that comes now; Unknown when nothing is known.
func (h *History) Lasts(bytes int64) int64 {
	turn := h.nextBirth(bytes)
	if turn == noPosition {
		return Unknown
	}
	p := h.instance(h.turns.at(turn).id)
	if p.bytes != bytes && !h.Varies() {
		return Unknown
	}
	return p.lasted()
}

// lasted is for how many operations it lived; Never where it still does.
func (in *instance) lasted() int64 {
	if in.died == noPosition {
		return Never
	}
	return in.died - in.born
}

// Free records the end of an allocation's life.
func (h *History) Free(id InstanceID) {
	in := h.instance(id)
	if !in.live {
		return
	}
	if h.groupOf(id) != nil {
		h.recycle(id)
		return
	}
	if in.group != nil {
		in.group.leave(id)
		in.group = nil
	}
	in.live = false
	in.died = h.now
	h.freedBytes += in.bytes
	h.live -= in.bytes
	h.turns.add(turn{id: id, gen: in.gen, death: true})
	h.dead = append(h.dead, id)
	if h.turns.end-h.newTurns > int64(h.maxOps) {
		h.forgetTurns()
	}
}

// forgetTurns forgets what was allocated and freed since the last operation: where there is
// so much of it, operations are not seen, and there may be no next one to trim the log.
func (h *History) forgetTurns() {
	h.turns.truncate(h.newTurns)
	kept := h.dead[:0]
	for _, id := range h.dead {
		if in := h.instance(id); in.born == h.now { // no operation knows of it
			h.recycle(id)
		} else {
			kept = append(kept, id)
		}
	}
	h.dead = kept
}

// recycle makes room for another life.
func (h *History) recycle(id InstanceID) {
	in := h.instance(id)
	*in = instance{uses: in.uses[:0], gen: in.gen + 1}
	h.recycled = append(h.recycled, id)
}

// Observe records an operation with a signature that is the same whenever the
// same work is done (kernel identity and shape, no addresses), and the distinct
// allocations it touches.
func (h *History) Observe(signature uint64, touched []InstanceID) {
	exact := h.exact(signature, touched)
	if exact {
		h.stats.Predicted++
	}
	repeated := h.repeated(signature, touched)
	doubt := h.doubtful(repeated, touched, exact)
	h.stats.Ops++

	copy(h.recent[:], h.recent[1:])
	h.recent[contextOps-1] = signature
	s := step{signature: signature, freshBytes: h.freshBytes, freedBytes: h.freedBytes, turns: h.newTurns, turnsEnd: h.turns.end}
	s.sum, s.live = h.sum(signature), h.live
	h.steps.add(s)
	before := h.enter()
	h.learnSizes()
	h.freshBytes, h.freedBytes, h.newTurns = 0, 0, h.turns.end
	if !h.Varies() {
		h.turnOrdinal = 0
	}
	for _, id := range touched {
		h.Touch(id, h.now)
	}
	h.findAnchor(touched)
	h.now++
	h.follow(repeated, before, doubt, touched)
	if h.Locked() {
		h.stayed = h.cursor
	}
	if h.now-h.base > int64(h.maxOps) {
		h.trim()
	}
}

// Touch records that an operation, the newest or one shortly before it, touches an
// allocation, too, which was found out after it had been observed.
func (h *History) Touch(id InstanceID, position int64) {
	if g := h.groupOf(id); g != nil {
		for _, m := range g.members {
			h.Touch(m, position)
		}
		return
	}
	in := h.instance(id)
	if n := len(in.uses); n > 0 && n == cap(in.uses) {
		if old := indexAfter(in.uses, h.base-1); old > n/trimUses {
			in.uses = append(in.uses[:0], in.uses[old:]...)
		}
	}
	i := len(in.uses)
	for i > 0 && in.uses[i-1] > position {
		i--
	}
	if i == 0 || in.uses[i-1] != position {
		in.uses = slices.Insert(in.uses, i, position)
	}
}

// exact says whether an operation is the next one, and touches exactly what was foretold.
func (h *History) exact(signature uint64, touched []InstanceID) bool {
	if !h.Locked() {
		return false
	}
	next := h.at(h.cursor + 1)
	if next == nil || next.signature != signature {
		return false
	}
	for _, id := range touched {
		if h.NextUse(id) != h.now {
			return false
		}
	}
	return true
}

// repeated is the position after the cursor that an operation, not entered yet, repeats; noPosition when it is none of the
// next ones. Where shapes change another kernel does the same work, one launch more or less: what is known of the tensors
// that it touches tells whether it is the next one, or one behind some that are left out.
func (h *History) repeated(signature uint64, touched []InstanceID) int64 {
	if !h.Locked() {
		return noPosition
	}
	next := h.cursor + 1
	switch s := h.at(next); {
	case s == nil:
		return noPosition
	case s.signature == signature:
		return next
	case !h.Varies():
		return noPosition
	}
	for p := next + 1; p <= next+skipOps; p++ {
		if s := h.at(p); s != nil && s.signature == signature && h.touchedAt(p, touched, true) {
			return p
		}
	}
	for p := next; p <= next+changedOps && p < h.now; p++ {
		if h.touchedAt(p, touched, p != next) {
			return p
		}
	}
	return noPosition
}

// touchedAt says whether the operation at a position in the log touched the counterparts of most of the tensors that have
// one: kernels for another size may use a workspace besides, or none. It is sure of it when one of these was made since that
// position, or there are two: one that stays may be a workspace, which many operations touch.
func (h *History) touchedAt(position int64, touched []InstanceID, surely bool) bool {
	known, same, sure := 0, 0, 0
	for _, id := range touched {
		was, touches, stays := h.was(id, position)
		if !was {
			continue
		}
		known++
		if touches {
			same++
			if sure++; !stays {
				sure = leastSure
			}
		}
	}
	return 2*same > known && (!surely || sure >= leastSure)
}

// follow moves the cursor on to the newest operation, which repeats one at a position, if that is not doubtful. Where the context was
// before is known, too.
func (h *History) follow(repeated, before int64, doubt doubt, touched []InstanceID) {
	if h.Locked() {
		if repeated != noPosition {
			if doubt == noDoubt || !h.search(doubt, contextOps, touched) {
				h.cursor, h.missed, h.turnOrdinal = repeated, 0, 0
			}
			return
		}
		h.missed++
		if h.missed == 1 {
			return
		}
		// One operation in place of another: the ones after it go on as before.
		if h.matches(h.cursor+int64(h.missed), min(h.missed-1, contextOps)) {
			h.cursor += int64(h.missed)
			h.missed, h.turnOrdinal = 0, 0
			return
		}
		if h.search(otherPlace, knownOps, touched) {
			return
		}
		if h.missed < realignMatch {
			return // operations that were not there in the past: the cursor waits for them to pass
		}
		if p := h.realign(touched); p != lostCursor {
			h.jump(p)
			return
		}
		// The parts of an iteration resemble each other (layers, parameters), and
		// the newest place that looks the same is then the wrong one: the longer
		// what has been repeated, the longer it is held on to.
		patience := int(min(mostPatience, max(contextOps, (h.now-1-h.cursor)/8)))
		if h.missed < patience {
			return
		}
	} else if h.search(otherPlace, contextOps, touched) {
		return
	}
	if before >= h.base && h.matches(before, contextOps) {
		h.jump(before)
		return
	}
	if h.Locked() && h.missed > maxInsertedOps {
		h.cursor = lostCursor
		h.version++
		h.stats.Lost++
	}
}

// jump puts the cursor at a new place.
func (h *History) jump(p int64) {
	h.cursor, h.missed, h.turnOrdinal = p, 0, 0
	h.version++
	h.stats.Realignments++
}

// realign looks around the cursor, the nearest first, for the operations that
// have come since the sequence departed from the past.
func (h *History) realign(touched []InstanceID) int64 {
	n := min(h.missed, contextOps)
	for d := int64(1); d <= realignOps; d++ {
		if p := h.cursor + d; p < h.now-1 && h.matches(p, n) && h.mayTouch(p, touched) {
			return p
		}
		if p := h.cursor - d; d <= maxInsertedOps && p >= h.base && h.matches(p, n) && h.mayTouch(p, touched) {
			return p
		}
	}
	return lostCursor
}

// mayTouch says whether the operation at a position touched the counterpart of any of some tensors, as far as those are known.
func (h *History) mayTouch(position int64, touched []InstanceID) bool {
	known := false
	for _, id := range touched {
		was, touches, _ := h.was(id, position)
		if touches {
			return true
		}
		known = known || was
	}
	return !known || !h.Varies()
}

// matches says whether the n operations up to position p are the n newest.
func (h *History) matches(p int64, n int) bool {
	for i := 0; i < n; i++ {
		s := h.at(p - int64(i))
		if s == nil || s.signature != h.recent[contextOps-1-i] {
			return false
		}
	}
	return true
}

func (h *History) context() uint64 {
	x := uint64(contextSeed)
	for _, s := range h.recent {
		x = (x ^ s) * contextMultipler
		x ^= x >> 29
	}
	return x
}

func (h *History) at(p int64) *step {
	if p < h.base || p >= h.now {
		return nil
	}
	return h.steps.at(p)
}

// counterpart is the life in the log whose uses after the cursor foretell id's:
// itself when it has been alive since before the cursor, or else its counterpart
// in the previous iteration.
func (h *History) counterpart(id InstanceID) *instance {
	in := h.instance(id)
	if in.born <= h.cursor {
		return in // it has lived through what is repeated, and is its own best witness
	}
	if in.past != noInstance {
		p := h.instance(in.past)
		switch {
		case p.gen != in.pastGen || !p.used:
			in.past = noInstance
		case p.bytes == in.bytes || h.Varies(): // else it is another allocation
			return p
		}
	}
	return nil
}

// NextUse predicts the position of the next operation that touches a live
// allocation; Never when it dies first, Unknown when nothing is known.
func (h *History) NextUse(id InstanceID) int64 {
	if !h.Locked() {
		return Unknown
	}
	if g := h.groupOf(id); g != nil {
		return h.nextUseOf(g)
	}
	in := h.counterpart(id)
	if in == nil {
		return Unknown
	}
	if i := in.after(h.cursor); i < len(in.uses) {
		return h.now - 1 + (in.uses[i] - h.cursor)
	}
	if in.live {
		return Unknown // alive for an iteration and not used in it
	}
	return Never
}

// Rest predicts when a live allocation is next left alone for more than so many
// operations: from, the position after the last use before, until next, that of the first use
// after; ok is false when it dies before that, or nothing is known. What is known ends
// an iteration from now: one that is not used again by then is used next where its next use
// comes round again.
func (h *History) Rest(id InstanceID, operations int64) (from, next int64, ok bool) {
	if !h.Locked() {
		return 0, 0, false
	}
	if g := h.groupOf(id); g != nil {
		return h.restOf(g, operations)
	}
	in := h.counterpart(id)
	if in == nil {
		return 0, 0, false
	}
	first := in.after(h.cursor)
	if first == len(in.uses) {
		return 0, 0, false
	}
	last := first
	for last+1 < len(in.uses) && in.uses[last+1]-in.uses[last] <= operations {
		last++
	}
	ahead := h.now - 1 - h.cursor // from a position in the log to the one that it foretells
	from = in.uses[last] + ahead + 1
	switch {
	case last+1 < len(in.uses):
		return from, in.uses[last+1] + ahead, true
	case in.died != noPosition:
		return 0, 0, false
	}
	return from, in.uses[first] + ahead + h.Period(), true
}

// Death predicts the position of the first operation after a live allocation is
// freed; Never when it outlives the log, Unknown when nothing is known.
func (h *History) Death(id InstanceID) int64 {
	if !h.Locked() {
		return Unknown
	}
	if g := h.groupOf(id); g != nil {
		return h.deathOf(g)
	}
	in := h.counterpart(id)
	switch {
	case in == nil:
		return Unknown
	case in.died == noPosition:
		return Never
	case in.died <= h.cursor:
		return h.now // overdue: it died earlier last time
	}
	return h.now - 1 + (in.died - h.cursor)
}

// Future calls visit for each coming operation in order, with the bytes
// expected to be allocated and freed just before it, until visit returns false
// or the log ends. Positions start at Now.
func (h *History) Future(visit func(position, freshBytes, freedBytes int64) bool) {
	if !h.Locked() {
		return
	}
	for p := h.cursor + 1; p < h.now; p++ {
		s := h.steps.at(p)
		fresh, freed := s.freshBytes, s.freedBytes
		if h.Varies() {
			from := s.turns
			if p == h.cursor+1 {
				from += h.turnOrdinal
			}
			fresh, freed = h.expected(s, from)
		} else if p == h.cursor+1 { // some of it has happened already
			fresh = max(0, fresh-h.freshBytes)
			freed = max(0, freed-h.freedBytes)
		}
		if !visit(h.now-1+(p-h.cursor), fresh, freed) {
			return
		}
	}
}

// after is the index of the first use after a position, that of the last use plus one when there is none. It is asked about ever later
// positions, with the same answer most of the time.
func (in *instance) after(position int64) int {
	i := in.coming
	if i > len(in.uses) || i > 0 && in.uses[i-1] > position || i < len(in.uses) && in.uses[i] <= position {
		in.coming = indexAfter(in.uses, position)
	}
	return in.coming
}

// indexAfter is the index of the first that is larger than p, len(sorted) when none is.
func indexAfter(sorted []int64, p int64) int {
	i, _ := slices.BinarySearch(sorted, p+1)
	return i
}

// trim forgets the oldest part of the log and the lives that ended in it. Uses in it are
// forgotten by Touch.
func (h *History) trim() {
	h.base += int64(h.maxOps / trimFraction)
	h.turns.forget(h.steps.at(h.base).turns)
	h.steps.forget(h.base)
	if h.Locked() && h.cursor < h.base {
		h.cursor = lostCursor
		h.version++
		h.stats.Lost++
	}
	for len(h.dead) > 0 && h.instance(h.dead[0]).died < h.base {
		h.recycle(h.dead[0])
		h.dead = h.dead[1:]
	}
}

// Turns calls visit for each beginning and each end of a life that is predicted
// before the operation at a position, in order, with the allocation's size, and for how many operations it lives: Never where its
// counterpart still does.
func (h *History) Turns(before int64, visit func(position, bytes, lasts int64, death bool)) {
	if !h.Locked() {
		return
	}
	for p := h.cursor + 1; p < h.now && h.now-1+(p-h.cursor) <= before; p++ {
		s := h.steps.at(p)
		from := s.turns
		if p == h.cursor+1 {
			from += h.turnOrdinal // the others have been
		}
		for i := from; i < s.turnsEnd; i++ {
			t := h.turns.at(i)
			if in := h.instance(t.id); in.gen == t.gen {
				visit(h.now-1+(p-h.cursor), h.sizes.of(in.bytes), in.lasted(), t.death)
			}
		}
	}
}
