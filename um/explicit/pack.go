package explicit

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
)

// This file is for allocations that share a range of memory, a pack: a chunk costs as much to
// map however small it is, so small allocations that are born shortly after one another, and die
// shortly after one another, move as one. Which those are is learned from the iteration before
// (lives.go). To everything else a pack is a tensor of one chunk, which is born with its first
// part and dies with its last. A part whose allocation does not come stays empty; one
// that is freed is not used again.
//
// The job must not take a dead range of its own accord where an allocation is to be part
// of a pack: [Process.Ask] says which one is to be asked for, as the first of a pack is, and [Process.Reserve]
// lets the job take its place in the pack, as it does for the others: to ask is to wait for the engine's lock.

const (
	// packOps is within how many operations the parts of a pack are born, and die.
	packOps = 200
	// leastLife is how many operations an allocation lives for at least that is packed: what
	// dies sooner hardly ever leaves.
	leastLife = 200
	// askAhead is how many allocations ahead the next one is looked for that is to be packed.
	askAhead = 256
	// mostKinds is of how many kinds of allocations it is known which one is asked for next.
	mostKinds = 4096
)

// part is an allocation's place in a pack.
type part struct {
	offset, bytes int64
	life          int64 // the one that it is to repeat; its own, once it is born
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
func (r *Runtime) repeats(bytes int64, stream int) int64 {
	period := r.history.Period()
	if !r.config.Packs || period == 0 {
		return noLife
	}
	return r.lives.like(bytes, stream, r.history.Now()-period)
}

// packs says whether the repetition of a life is worth packing with others.
func (r *Runtime) packs(x *life) bool {
	return x.home == nil && x.named && x.died != notYet && x.died-x.born >= leastLife && x.bytes <= r.config.ChunkBytes/2
}

// mallocPacked allocates a part of a pack for the repetition of a life; 0 when it is to be no part
// of one.
func (r *Runtime) mallocPacked(before int64, stream int) cuda.Ptr {
	x := r.lives.of(before)
	if x == nil {
		return 0
	}
	if x.home == nil && !r.newPack(before) {
		return 0
	}
	t := x.home
	p := &t.parts[x.part]
	x.home = nil
	if !r.unreserve(t, p) {
		return 0 // the job has taken it for another
	}
	at := t.base + cuda.Ptr(p.offset)
	if !r.process.SetApart(at, p.bytes, stream) {
		p.state = dead
		r.endEmpty(t)
		return 0
	}
	r.bear(t, p)
	return at
}

// takePart gives a part that was reserved to the allocation that the job has taken it for, which may
// be another than was expected.
func (r *Runtime) takePart(t *tensor, at cuda.Ptr, bytes int64, stream int) error {
	k := slices.IndexFunc(t.parts, func(p part) bool { return p.state == reserved && at == t.base+cuda.Ptr(p.offset) })
	if k < 0 || bytes > t.parts[k].bytes || stream != t.stream {
		return fmt.Errorf("%w: %#x", ErrNotOurs, uint64(at))
	}
	p := &t.parts[k]
	delete(r.reserved, at)
	before := r.repeats(bytes, stream)
	if x := r.lives.of(p.life); x != nil {
		x.home = nil
	}
	p.bytes = bytes
	r.bear(t, p)
	r.goOn(kind{WholePages(bytes), stream}, before)
	return nil
}

// bear begins the life of a part.
func (r *Runtime) bear(t *tensor, p *part) {
	p.state, p.life = alive, r.enter(t, t.base+cuda.Ptr(p.offset), p.bytes)
	t.alive++
	r.stats.PackedAllocs++
}

// reserve lets the job take a part of a pack for the repetition of its life, which comes
// after that of another.
func (r *Runtime) reserve(t *tensor, p *part, before int64) {
	k := r.lives.of(p.life).kind()
	others := 0
	for number := before + 1; number < p.life; number++ {
		if x := r.lives.of(number); !x.repeated && x.kind() == k {
			others++
		}
	}
	at := cuda.Range{Base: t.base + cuda.Ptr(p.offset), Bytes: p.bytes}
	if r.process.Reserve(at, k.size, k.stream, others) {
		p.state = reserved
		r.reserved[at.Base] = t
	}
}

// unreserve makes sure that the job does not take a part; false when it has, and [Runtime.Retake] is to come.
func (r *Runtime) unreserve(t *tensor, p *part) bool {
	if p.state != reserved {
		return true
	}
	at := t.base + cuda.Ptr(p.offset)
	if !r.process.Recall(at) {
		return false
	}
	delete(r.reserved, at)
	p.state = unborn
	return true
}

// endEmpty ends a pack of which no part is alive, unless the job has taken one.
func (r *Runtime) endEmpty(t *tensor) {
	if t.alive > 0 {
		return
	}
	taken := false
	for k := range t.parts {
		taken = !r.unreserve(t, &t.parts[k]) || taken
	}
	if !taken {
		r.end(t)
	}
}

// newPack makes a pack, of which the repetition of a life is the first part; false when nothing goes
// with it, or there is no room.
func (r *Runtime) newPack(before int64) bool {
	first := r.lives.of(before)
	if !r.packs(first) || !r.roomForPacks() {
		return false
	}
	var parts []part
	var total int64
	for number := before; number < r.lives.end(); number++ {
		x := r.lives.of(number)
		if x.born > first.born+packOps {
			break
		}
		if x.repeated && number > before || x.stream != first.stream || !r.packs(x) {
			continue
		}
		if max(x.died-first.died, first.died-x.died) <= packOps && total+x.bytes <= r.config.ChunkBytes {
			parts = append(parts, part{offset: total, bytes: x.bytes, life: number})
			total += (x.bytes + copyUnit - 1) / copyUnit * copyUnit
		}
	}
	if len(parts) < 2 || WholePages(total) > r.BeyondLiveBytes() {
		return false
	}
	t, ok := r.raise(total, first.stream)
	if !ok {
		return false
	}
	t.parts = parts
	for k := range parts {
		x := r.lives.of(parts[k].life)
		if x.home, x.part = t, k; k > 0 {
			r.reserve(t, &parts[k], before)
		}
	}
	for k := range parts {
		r.ask(r.lives.of(parts[k].life).kind(), before)
	}
	r.stats.Packs++
	return true
}

// roomForPacks says whether there is room enough for what is in packs and is not needed at the time:
// not where one operation names most of the budget, for it names whole packs, nor where most of all memory
// has been allocated at a time, for a pack is until its last part is freed.
func (r *Runtime) roomForPacks() bool {
	device := r.config.BudgetBytes - r.plainBytes
	return r.mostNamed <= device/4*3 && r.mostLive <= (device+r.config.HostBudgetBytes)/8*7
}

// freePart ends the life of a part, and with the last one of its pack that of the pack.
func (r *Runtime) freePart(t *tensor, at cuda.Ptr) {
	p := t.partAt(at)
	p.state = dead
	r.leave(at, p.bytes, p.life, true)
	if t.loose {
		r.loose.excess += WholePages(p.bytes)
	}
	t.alive--
	r.endEmpty(t)
}

// disband forgets what was to be part of a pack, which is dead.
func (r *Runtime) disband(t *tensor) {
	for _, p := range t.parts {
		if x := r.lives.of(p.life); p.state == unborn && x != nil {
			x.home = nil
		}
	}
}

// partAt is the live part that an address lies in, nil when it lies in none.
func (t *tensor) partAt(at cuda.Ptr) *part {
	for k := range t.parts {
		if p := &t.parts[k]; p.state == alive && at >= t.base+cuda.Ptr(p.offset) && at < t.base+cuda.Ptr(p.offset+p.bytes) {
			return p
		}
	}
	return nil
}

// asks says whether the repetition of a life is to be asked for: as the first part of a pack, or as one whose place
// is not reserved.
func (r *Runtime) asks(x *life) bool {
	if x.home == nil {
		return r.packs(x)
	}
	return x.home.parts[x.part].state != reserved
}

// goOn asks for the next allocation of a kind, when the one that was to be asked for has come.
func (r *Runtime) goOn(k kind, before int64) {
	if r.asked[k] <= before {
		r.ask(k, before)
	}
}

// ask makes sure that the job asks for the next allocation of a kind that is to be packed, after the
// one that repeats a life, unless the job has made it already.
func (r *Runtime) ask(k kind, before int64) {
	if before == noLife {
		return
	}
	if len(r.asked) > mostKinds {
		clear(r.asked)
	}
	others := 0
	end := min(before+askAhead, r.lives.end())
	for number := before + 1; number < end; number++ {
		x := r.lives.of(number)
		if x.repeated || x.kind() != k {
			continue
		}
		if r.asks(x) && r.process.Ask(k.size, k.stream, others) {
			r.asked[k] = number
			return
		}
		others++
	}
	r.asked[k] = end - 1 // nothing is to be asked for until then
}
