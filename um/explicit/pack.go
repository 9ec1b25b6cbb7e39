package explicit

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for allocations that share a range of memory, a pack: a chunk costs as much to
// map however small it is, so small allocations that are born shortly after one another, and die
// shortly after one another, move as one. Which those are is learned from the iteration before
// (lives.go). To everything else a pack is a tensor of one chunk, which is born some operations
// before its first part is due and dies with its last. A part whose allocation does not come stays
// empty; one that is freed is not used again.
//
// All places in a pack are reserved when it is made: the job takes them without asking, which
// would be to wait for the engine's lock ([Process.Reserve]), and what the engine hears of late
// does not change which allocations are parts. A pack of other parts than an iteration ago is
// foretold by what these did then.

const (
	// packOps is within how many operations the parts of a pack are born, and die.
	packOps = 200
	// leastLife is how many operations an allocation lives for at least that is packed: what
	// dies sooner hardly ever leaves.
	leastLife = 200
	// oddPart is the part of a large allocation that rounding to pages adds at least, for it to share a chunk with
	// others of its size: two of 24.5 pages are one of 49.
	oddPart = 64
	// packAhead is how many operations before its first part is due a pack is made: that much later the engine may
	// hear of what the job allocates.
	packAhead = 32
)

// packer is the floor of allocations: what each repeats, and whether it gets a range of its own, shares one, or borrows one.
type packer struct {
	recipes
	unpackedUntil int64                // the position before which no packs are made
	pass          uint64               // the version of the history that is repeated
	prepared      int64                // the lives before this number are parts of packs, or are not to be
	newest        int64                // the life that the newest allocation repeats which does repeat one
	reserved      map[cuda.Ptr]*tensor // packs, by the parts that the job may take
	early         []early              // packs, in the order in which they were made
	open          map[int][]open       // packs that have room, by stream: see shared.go
	loose         map[int]*tensor      // packs of what repeats nothing, by stream: what comes next is in it (loose.go)
	borrowers     map[kind]int64       // the position at which they last borrowed: see borrow.go
	fitting       map[int64]int64      // scratch of fit
	bursting      map[int64]int        // scratch of newBurst
}

// part is an allocation's place in a pack.
type part struct {
	offset, bytes int64
	written       int64                // position of the last operation that is known to write to it
	life          int64                // the one that it is to repeat; its own, once it is born
	instance      correlate.InstanceID // of it alone, where the pack is a group of the history: see shared.go
	state         partState
}

type partState uint8

const (
	unborn   partState = iota
	reserved           // unborn, and the job may take it without asking
	alive
	dead
)

// kind is what the job tells dead ranges apart by.
type kind struct {
	size   int64 // in whole pages
	stream int
}

func (x *life) kind() kind { return kind{WholePages(x.bytes), x.stream} }

// repeats is the life that an allocation repeats, noLife when none is known.
func (r *packer) repeats(bytes int64, stream int) int64 {
	period := r.History.Period()
	if !r.config.Packs || period == 0 {
		return noLife
	}
	born := r.History.Now() - period
	if v := r.History.Version(); v != r.pass { // it goes on from another place
		r.pass, r.prepared = v, r.lives.again(born)
	}
	return r.lives.like(bytes, stream, born)
}

// packs says whether the repetition of a life is worth packing with others. Not where shapes change (see shared.go): what does not come leaves
// holes, and a pack stays until its last part is freed (simulated, BERT's text at 1.5x took a third longer).
func (r *packer) packs(x *life) bool {
	return r.packable(x) && !r.mayBeMade(x) && x.died-x.born >= leastLife && (!r.large(x) || r.pairs(x))
}

// packable says whether the repetition of a life may be a part of a pack at all.
func (r *packer) packable(x *life) bool {
	return r.History.Now() >= r.unpackedUntil && !r.History.Varies() && x.home == nil && x.named && x.died != notYet
}

// mayBeMade says whether the repetition of a life may be made again, which a part of a pack cannot. Of a part it is not known.
func (r *packer) mayBeMade(x *life) bool {
	return x.makeable || r.makesAgain() && x.bytes >= 2*leastMakeable
}

// makesAgain says whether anything may be.
func (r *packer) makesAgain() bool {
	return r.config.Replay != um.ReplayOff && r.levels.at > LevelNothing
}

// large says whether an allocation is packed with others of its size alone, if at all.
func (r *packer) large(x *life) bool { return x.bytes > r.config.ChunkBytes/2 }

// pairs says whether pages fit a large allocation badly, and two of it fit a chunk.
func (r *packer) pairs(x *life) bool {
	return WholePages(x.bytes) < r.config.ChunkBytes && odd(x.bytes, oddPart)
}

// hasRoom says whether a pack of so many bytes that begins with one life has room for another.
func (r *packer) hasRoom(first, x *life, total int64) bool {
	if r.large(first) {
		return x.bytes == first.bytes && total+x.bytes <= 2*r.config.ChunkBytes-PageBytes // else it were two chunks
	}
	return total+x.bytes <= r.config.ChunkBytes && !r.large(x)
}

// early is a pack of which no part may have been born yet.
type early struct {
	*tensor
	due  int64     // the position at which the first one is to come
	made []um.Mark // what may still have used the memory when the pack was made; nothing has since
}

// prepare makes the packs that are due soon after the repetition of a life, and ends those whose time has passed
// without an allocation for them.
func (r *packer) prepare(before int64) {
	for len(r.early) > 0 && (r.early[0].alive > 0 || r.early[0].Freed || r.early[0].due+packOps < r.History.Now()) {
		t := r.early[0].tensor
		r.early = r.early[1:]
		r.endEmpty(t)
	}
	x := r.lives.of(before)
	if x == nil {
		return
	}
	r.newest = before
	soon := x.born + packAhead
	for number := max(r.prepared, before+1); number < r.lives.end() && r.lives.of(number).born <= soon; number++ {
		if r.prepared = number + 1; !r.lives.of(number).repeated {
			r.newPack(number, before)
		}
	}
}

// vacateEarly makes the memory of packs of which no part has been born that of dead ranges, for a launch that there
// is no room for otherwise. The packs lie elsewhere then, with nothing mapped there.
func (r *packer) vacateEarly() {
	for _, early := range r.early {
		t := early.tensor
		if t.Freed || t.retained || t.flying > 0 || t.absent > 0 || !r.unreserveAll(t) {
			continue
		}
		base, ok := r.addresses.take(t.size)
		if !ok {
			return
		}
		r.process.Withdraw(t.Slot, cuda.Range{Base: t.base, Bytes: t.size})
		// The range that lay there before may be in use. But not by the launch that waits for it.
		dead := &tensor{Tensor: um.Tensor{Stream: t.Stream, Freed: true}, base: t.base, size: t.size, chunks: t.chunks, freedAt: early.made}
		r.retire(dead)
		t.base, t.chunks, t.absent = base, r.cut(t.size), t.size
		r.publish(t)
		for k := range t.parts {
			if x := r.lives.of(t.parts[k].life); x != nil && x.home == t {
				r.reserve(t, &t.parts[k], r.newest)
			}
		}
		r.Happened()
	}
}

// giveUpEarly ends the packs of which no part has been born: there is no other memory for what is asked for.
func (r *packer) giveUpEarly() {
	for _, t := range r.early {
		r.endEmpty(t.tensor)
	}
	r.early = r.early[:0]
}

// mallocPacked allocates a part of a pack for the repetition of a life; 0 when it is to be no part
// of one.
func (r *packer) mallocPacked(before int64, stream int) cuda.Ptr {
	x := r.lives.of(before)
	if x == nil || x.home == nil {
		return 0
	}
	t := x.home
	p := &t.parts[x.part]
	x.home = nil
	if !r.unreserve(t, p) {
		return 0 // the job has taken it for another
	}
	at := t.place(p).Base
	if !r.process.SetApart(at, p.bytes, stream) {
		p.state = dead
		r.endEmpty(t)
		return 0
	}
	r.fillPart(t, p)
	return at
}

// takePart gives a part that was reserved to the allocation that the job has taken it for, which may
// be another than was expected.
func (r *packer) takePart(t *tensor, at cuda.Ptr, bytes int64, stream int) error {
	k := slices.IndexFunc(t.parts, func(p part) bool { return p.state == reserved && at == t.place(&p).Base })
	if k < 0 || bytes > t.parts[k].bytes {
		return fmt.Errorf("%w: %#x", um.ErrNotOurs, uint64(at))
	}
	p := &t.parts[k]
	delete(r.reserved, at)
	before := r.repeats(bytes, stream)
	if x := r.lives.of(p.life); x != nil {
		x.home = nil
	}
	p.bytes = bytes
	r.fillPart(t, p)
	t.UsedOn(stream)
	r.prepare(before)
	return nil
}

// fillPart begins the life of a part.
func (r *packer) fillPart(t *tensor, p *part) {
	instance := p.instance
	if instance == 0 {
		instance = t.Instance
	}
	p.state, p.life = alive, r.enter(t, instance, t.place(p).Base, p.bytes, noLife)
	t.alive++
	r.stats.PackedAllocs++
}

// reserve lets the job take a part of a pack for the repetition of its life, which comes
// after that of another.
func (r *packer) reserve(t *tensor, p *part, before int64) {
	k := r.lives.of(p.life).kind()
	others := 0
	for number := before + 1; number < p.life; number++ {
		if x := r.lives.of(number); x != nil && !x.repeated && x.kind() == k {
			others++
		}
	}
	at := t.place(p)
	if r.process.Reserve(at, k.size, k.stream, others) {
		p.state = reserved
		r.reserved[at.Base] = t
	}
}

// unreserve makes sure that the job does not take a part; false when it has, and [Runtime.Retake] is to come.
func (r *packer) unreserve(t *tensor, p *part) bool {
	if p.state != reserved {
		return true
	}
	at := t.place(p).Base
	if !r.process.Recall(at) {
		return false
	}
	delete(r.reserved, at)
	p.state = unborn
	return true
}

// filling says whether parts of a pack are still to come: what is made of those that are there would be in the way of what writes to these.
func (t *tensor) filling(now int64) bool {
	return now < t.filledBy && slices.ContainsFunc(t.parts, func(p part) bool { return p.state == unborn || p.state == reserved })
}

// write notes that an operation writes to parts of a pack; to any, where it is not known to which.
func (t *tensor) write(to []cuda.Ptr, position int64) {
	known := false
	for _, at := range to {
		if p := t.partAt(at); p != nil {
			p.written, known = position, true
		}
	}
	if !known {
		t.recipe.written = position
	}
}

// endEmpty ends a pack of which no part is alive, unless the job has taken one.
func (r *packer) endEmpty(t *tensor) {
	if t.alive == 0 && !t.Freed && r.unreserveAll(t) {
		r.end(t)
	}
}

// unreserveAll makes sure that the job takes no part of a pack of which none is alive; false when it has, or one is.
func (r *packer) unreserveAll(t *tensor) bool {
	if t.alive > 0 {
		return false
	}
	all := true
	for k := range t.parts {
		all = r.unreserve(t, &t.parts[k]) && all
	}
	return all
}

// newPack makes a pack, of which the repetition of a life is the first part, unless nothing goes with it, or
// there is no room. The newest allocation repeats the life before.
func (r *packer) newPack(life, before int64) {
	first := r.lives.of(life)
	if !r.packs(first) || !r.roomForPacks() {
		r.newBurst(life, before)
		return
	}
	var parts []part
	var total int64
	for number := life; number < r.lives.end(); number++ {
		x := r.lives.of(number)
		if x.born > first.born+packOps {
			break
		}
		if x.repeated || x.stream != first.stream || !r.packs(x) {
			continue
		}
		if max(x.died-first.died, first.died-x.died) <= packOps && r.hasRoom(first, x, total) {
			parts = append(parts, part{offset: total, bytes: x.bytes, life: number})
			total += wholeUnits(x.bytes)
		}
	}
	if len(parts) < 2 || WholePages(total) > r.BeyondLiveBytes() {
		return
	}
	if t, ok := r.newTensor(noLife, total, first.stream); ok {
		r.expect(t, parts, life, before)
	}
}

// expect makes a tensor a pack of parts that are to come, of which the first repeats a life.
func (r *packer) expect(t *tensor, parts []part, life, before int64) {
	first := r.lives.of(life)
	t.parts = parts
	t.filledBy = r.History.Now() + first.born - r.lives.of(before).born + packOps
	died := first.died
	past := make([]correlate.Ref, len(parts))
	for k := range parts {
		x := r.lives.of(parts[k].life)
		x.home, x.part = t, k
		past[k], died = x.instance, max(died, x.died)
		r.reserve(t, &parts[k], before)
	}
	r.History.Foretell(t.Instance, past, first.born, died)
	r.early = append(r.early, early{t, r.History.Now() + first.born - r.lives.of(before).born, r.reported(t)})
	r.stats.Packs++
}

// roomForPacks says whether there is room enough for what is in packs and is not needed at the time:
// not where one operation names most of the budget, for it names whole packs, nor where most of all memory
// has been allocated at a time, for a pack is until its last part is freed.
func (r *packer) roomForPacks() bool {
	device := r.config.BudgetBytes - r.PlainBytes
	return r.mostNamed <= device/4*3 && r.holesFit()
}

// holesFit says whether there has always been memory left for what is in packs and is dead.
func (r *packer) holesFit() bool {
	return r.mostLive <= (r.config.BudgetBytes-r.PlainBytes+r.config.HostBudgetBytes)/8*7
}

// appendPart puts a part that is to be filled behind the others of a pack; nil where the process cannot set it apart.
func (r *packer) appendPart(t *tensor, bytes int64, stream int) *part {
	p := part{offset: t.filled(), bytes: bytes}
	if !r.process.SetApart(t.place(&p).Base, bytes, stream) {
		r.endEmpty(t)
		return nil
	}
	t.parts = append(t.parts, p)
	return &t.parts[len(t.parts)-1]
}

// freePart ends the life of a part, and with the last one of its pack that of the pack.
func (r *packer) freePart(t *tensor, at cuda.Ptr) {
	p := t.partAt(at)
	p.state = dead
	r.leave(t, at, p.bytes, p.life, true)
	if t.loose {
		r.looseExcess += WholePages(p.bytes)
	}
	if p.instance != 0 {
		r.History.Free(p.instance)
	}
	t.alive--
	r.endEmpty(t)
}

// place is where a part lies.
func (t *tensor) place(p *part) cuda.Range {
	return cuda.Range{Base: t.base + cuda.Ptr(p.offset), Bytes: p.bytes}
}

// partAt is the live part that an address lies in, nil when it lies in none.
func (t *tensor) partAt(at cuda.Ptr) *part {
	for k := range t.parts {
		if p := &t.parts[k]; p.state == alive && at >= t.place(p).Base && at < t.place(p).End() {
			return p
		}
	}
	return nil
}
