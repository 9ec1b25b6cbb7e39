package explicit

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for tensors that are made again on the device, from what is there, instead of being moved over the bus.
//
// The launches for that are its recipe (recipe.go). It is verified before the tensor leaves, or before something does that
// it is made of: the launches are issued into memory of the engine's, and the checksum of what they make there is kept.
// From then on what they read is guarded (guard.go), so that they would make the same at any time. Of small memory, which
// is not the engine's to guard, they get copies of their own ([Move.Clones]), and they are verified with these.
//
// Recipes that are like others which always were right are not verified (proven.go), and how much is made again is tried out (level.go).
//
// A tensor is dropped when it is to leave and has that checksum: its memory goes without a copy. So it is not believed of
// any kernel what it reads or writes, and a recipe that something has made wrong is found out before it is relied on. To
// make a tensor again is to map memory for it, to issue the launches on a stream of the engine's, and to compare the
// checksum before anybody may use it. Nothing that the job computes depends on that being right: what is not the same
// never reaches it.
//
// A function is trusted when what it makes has been the same often enough. Before that, and with [um.ReplayInsured]
// always, what is dropped is copied out as well, and the copy comes in where what is made is not the same.

// remake is how a tensor can be made again, from when that is looked at until it has been made, or is not to be any more.
type remake struct {
	launches []*cuda.RecordedLaunch // with the addresses of clones
	temps    [][]Temp
	clones   []cuda.Range
	inputs   []*tensor      // guarded
	sum      kernels.Sum128 // of what the launches make; where that is not verified, of what was dropped
	alike    likeness
	proven   bool // it is not verified
	ready    bool // that is known
	moving   bool // a move reads the inputs
	over     bool // it is not needed any more
}

const (
	// tempsPart is the part of Config.ScratchBytes that there is for temps when a tensor is made.
	tempsPart = 2
	// trustAfter is Config.TrustAfter by default.
	trustAfter = 64
	// wrongPart is the part of its verifications that a function may fail at most: each costs time. What was written to in
	// the meantime fails rightly.
	wrongPart = 8
	// mostWrong is Config.MostWrong by default.
	mostWrong = 1
	// mostRefused is how many more of its verifications may be refused than were right: it reads what cannot be guarded.
	mostRefused = 32
	// mostInRow is how many tensors in a row may have been dropped of which each is made of the next one: when the first is used all
	// are made, and there has to be room for them at a time.
	mostInRow = 8
)

// recipes is the floor of what is made again, and of what is made of what: a tensor that others are to be made of outlives its end.
type recipes struct {
	operations
	again  again
	levels levels
}

// again is what was learned of launches that are made again, by function.
type again struct {
	same, wrong map[uint32]int // verified, and found to make something else
	refused     map[uint32]int // that could not be verified
	banned      map[uint32]bool
	names       map[uint32]string
	proofs      proofs
	checks      int
	mostWrong   int    // Config.MostWrong
	remakes     int    // of tensors that there are
	guards      uint64 // changes of what is to be made of what, and of what is away
	visits      uint64 // searches of that
	// made and fetched are the bytes that had come in when it was last looked at whether it is worth it.
	made, fetched int64
}

func newAgain(mostWrong int) again {
	return again{same: map[uint32]int{}, wrong: map[uint32]int{}, refused: map[uint32]int{}, banned: map[uint32]bool{}, names: map[uint32]string{}, proofs: proofs{}, mostWrong: mostWrong}
}

const (
	// trialBudgets is how many times the budget comes in before it is looked at whether making again is worth what it takes.
	trialBudgets = 12
	// leastMade is the part of what comes in that must be made again for that.
	leastMade = 32
)

// worthReplay ends making again where next to nothing is: the memory that verifies is better the job's.
func (r *recipes) worthReplay() {
	a := &r.again
	made, fetched := r.stats.MadeBytes-a.made, r.stats.FetchedBytes-a.fetched
	if r.config.Replay == um.ReplayOff || made+fetched < trialBudgets*r.config.BudgetBytes {
		return
	}
	if made*leastMade >= made+fetched {
		a.made, a.fetched = r.stats.MadeBytes, r.stats.FetchedBytes
		return
	}
	if r.config.Replay = um.ReplayOff; a.remakes == 0 {
		r.process.EndReplay()
		return
	}
	for _, t := range r.Slots.All() {
		if t != nil && !t.away() {
			r.release(t)
		}
	}
}

// trusted says whether a tensor may be dropped without a copy of it.
func (r *recipes) trusted(t *tensor) bool {
	return r.config.Replay == um.ReplayOn &&
		!slices.ContainsFunc(t.recipe.steps, func(s step) bool { return r.again.same[s.function] < r.config.TrustAfter })
}

// distrusts says whether a function has been wrong too often.
func (a *again) distrusts(f uint32) bool {
	return a.banned[f] || a.wrong[f]*wrongPart > a.same[f]+wrongPart*a.mostWrong || a.refused[f] > a.same[f]+mostRefused
}

// functions are how many were tried, how many of these have been right often enough, and the names of those that are not used any more.
func (a *again) functions(trustAfter int) (recorded, trusted int, banned []string) {
	tried := map[uint32]bool{}
	for _, by := range []map[uint32]int{a.same, a.wrong, a.refused} {
		for f := range by {
			tried[f] = true
		}
	}
	for f := range tried {
		switch {
		case a.distrusts(f):
			banned = append(banned, fmt.Sprintf("%s (%d right, %d wrong, %d not verified)", a.names[f], a.same[f], a.wrong[f], a.refused[f]))
		case a.same[f] >= trustAfter:
			trusted++
		}
	}
	slices.Sort(banned)
	return len(tried), trusted, banned
}

// worthMaking says whether a tensor is better made again than moved, and can be verified now: what it is made of is on the device, or has been dropped,
// in a short row, where the recipe is proven.
func (r *recipes) worthMaking(t *tensor) bool {
	if t.remake != nil || !r.makeable(t) || !t.whole() || !r.fits(t) || r.disproven(t) {
		return false
	}
	// A trial reads what may turn out to be a workspace: nothing must be at work there, or the launch may wait for ever for what it finds.
	tries := slices.ContainsFunc(t.recipe.steps, func(s step) bool { return s.trying })
	for _, u := range t.inputs() {
		here := u.whole() || u.away() && r.depth(u) < mostInRow/2 && r.proven(t) // what is proven is not made now
		if !here || u.writing > 0 || u.filling(r.History.Now()) || tries && u.Busy() {
			return false
		}
	}
	return true
}

// verifiable says whether the memory to verify in is large enough for a tensor.
func (r *recipes) verifiable(t *tensor) bool {
	return t.used(&t.chunks[0])+t.recipe.temps <= r.config.ScratchBytes
}

// fits says whether there is memory to verify a tensor in, if it has to be, and to make it in.
func (r *recipes) fits(t *tensor) bool {
	return t.recipe.temps <= r.config.ScratchBytes/tempsPart && (r.verifiable(t) || r.proven(t))
}

// verifyFirst is the move that verifies a recipe before a tensor leaves: its own, or that of one that is made of it and could not
// be verified afterwards. It is nil when there is none.
func (r *recipes) verifyFirst(t *tensor) *Move {
	if r.config.Replay == um.ReplayOff {
		return nil
	}
	if rm := t.remake; rm != nil && rm.ready && rm.proven && !rm.moving && !r.proven(t) {
		r.release(t) // an operation of which it is not known what it does has named it since
	}
	if r.worthMaking(t) {
		return r.verification(t)
	}
	for _, user := range t.users {
		if r.worthMaking(user) && (t.remake == nil || r.height(user)+1+r.depth(t) < mostInRow) { // else it could not be dropped itself
			if m := r.verification(user); m != nil {
				return m
			}
		}
	}
	return nil
}

// verification is the move that verifies a tensor's recipe. What it is made of is guarded from now on; nil when something may be
// writing there.
func (r *recipes) verification(t *tensor) *Move {
	rm := &remake{inputs: t.inputs()}
	r.again.remakes++
	for i, u := range rm.inputs {
		if !r.guard(u, t) {
			rm.inputs = rm.inputs[:i]
			r.giveUp(t, rm)
			return nil
		}
	}
	t.remake = rm
	c := &t.chunks[0]
	here := !slices.ContainsFunc(rm.inputs, func(u *tensor) bool { return !u.whole() })
	rm.alike, rm.proven = t.likeness(), r.proven(t) && !(here && r.checkNow() && r.verifiable(t))
	m := &Move{Kind: MoveVerify, Chunk: t.rangeOf(c), Bytes: t.used(c), Proven: rm.proven, tensor: t}
	m.reads(rm)
	m.Inputs = m.Reads()
	r.ofRecipe(m)
	for i := range t.recipe.steps {
		m.Launches, m.Temps = append(m.Launches, t.recipe.steps[i].launch), append(m.Temps, t.recipe.steps[i].temps)
	}
	return m
}

// verified notes what a recipe makes.
func (r *recipes) verified(m *Move) {
	rm := m.remake
	rm.launches, rm.temps, rm.clones, rm.sum, rm.ready = m.Launches, m.Temps, m.Clones, m.Sum, true
	if !m.Proven {
		r.stats.Verified++
	}
	r.landed(m)
	r.plan.resume()
	r.plan.changed = true // less may have to be copied
}

// drops says whether a tensor that is to leave is dropped.
func (r *recipes) drops(t *tensor) bool {
	rm := t.remake
	if rm == nil || !rm.ready || r.inRow(t) >= mostInRow || rm.proven && !r.trusted(t) || r.disproven(t) {
		return false
	}
	needs := t.size
	for _, u := range rm.inputs {
		for _, x := range u.closure(nil) {
			needs += x.size
		}
	}
	// An operation that may write there waits for it beside what it names.
	return !r.trusted(t) || r.mostNamed+needs <= r.config.BudgetBytes-r.PlainBytes
}

// inRow is how many tensors beside this one are in a row of which each may be made of the next one.
func (r *recipes) inRow(t *tensor) int { return r.height(t) + r.depth(t) }

// height is how many tensors in a row are to be made again from this one. Many are made of the same: each is looked at once between changes.
func (r *recipes) height(t *tensor) int {
	if t.heightOf != r.again.guards {
		t.heightOf, t.heightIs = r.again.guards, 0
		for _, x := range t.readers {
			t.heightIs = max(t.heightIs, 1+r.height(x))
		}
	}
	return t.heightIs
}

// depth is how many tensors in a row that have been dropped have to be made before this one.
func (r *recipes) depth(t *tensor) int {
	if t.depthOf != r.again.guards {
		t.depthOf, t.depthIs = r.again.guards, 0
		if t.remake != nil {
			for _, u := range t.remake.inputs {
				if u.away() {
					t.depthIs = max(t.depthIs, 1+r.depth(u))
				}
			}
		}
	}
	return t.depthIs
}

// away says whether a tensor has been dropped, without a copy, or is being dropped or made again.
func (t *tensor) away() bool {
	c := &t.chunks[0]
	return t.remake != nil && c.host == nil && (c.where == dropped || c.where == leaving || c.where == arriving)
}

// ScratchFor is the ScratchBytes that suit a configuration: for the largest chunk, and in a large budget for larger tensors as well.
func ScratchFor(c Config) int64 {
	const part, enough, most = 28, 256 << 20, 4
	return min(max(2*c.chunkBytes(), min(c.BudgetBytes/part, enough)), c.BudgetBytes/most) / PageBytes * PageBytes
}

// TempsBytes is how much scratch memory [Mover.Make] needs, where [Mover.Verify] has so much.
func TempsBytes(scratch int64) int64 { return scratch / tempsPart / PageBytes * PageBytes }

// Copied says whether a move copies the contents, in or out.
func (m *Move) Copied() bool { return len(m.Host) > 0 }

// Outside are the addresses in the parameters of a move's launches that are neither in what they make nor in what is guarded for them,
// nor in what they make on the way.
func (m *Move) Outside() (all []cuda.Ptr) {
	within := func(p cuda.Ptr, t *tensor) bool { return p >= t.base && p < t.base+cuda.Ptr(t.size) }
	for i := range m.Launches {
		l := m.Launches[i]
		for _, at := range l.Addresses {
			p := l.Address(at)
			if slices.ContainsFunc(m.Temps[i], func(x Temp) bool { return p >= x.At.Base && p < x.At.End() }) {
				continue
			}
			if p != 0 && !within(p, m.tensor) && !slices.ContainsFunc(m.remake.inputs, func(t *tensor) bool { return within(p, t) }) {
				all = append(all, p)
			}
		}
	}
	return all
}

// Reads are the tensors that a move's launches read.
func (m *Move) Reads() (all []cuda.Range) {
	if m.remake == nil {
		return nil
	}
	for _, u := range m.remake.inputs {
		all = append(all, cuda.Range{Base: u.base, Bytes: u.size})
	}
	return all
}

// reads has what a move reads stay until it has landed.
func (m *Move) reads(rm *remake) {
	m.remake, rm.moving = rm, true
	for _, u := range rm.inputs {
		u.pins++
	}
}

// landed ends what reads began.
func (r *recipes) landed(m *Move) {
	rm := m.remake
	if rm == nil {
		return
	}
	m.remake, rm.moving = nil, false
	for _, u := range rm.inputs {
		u.pins--
	}
	if rm.over {
		r.giveUp(m.tensor, rm)
	}
}

// release ends a tensor's being made again.
func (r *recipes) release(t *tensor) {
	rm := t.remake
	if rm == nil {
		return
	}
	t.remake, rm.over = nil, true
	r.again.guards++
	if !rm.moving {
		r.giveUp(t, rm)
	}
}

// giveUp gives back what was kept for making a tensor.
func (r *recipes) giveUp(t *tensor, rm *remake) {
	for _, u := range rm.inputs {
		r.unguard(u, t)
	}
	if len(rm.clones) > 0 {
		r.process.GiveClones(rm.clones)
	}
	rm.inputs, rm.clones = nil, nil
	if r.again.remakes--; r.again.remakes == 0 && r.config.Replay == um.ReplayOff {
		r.process.EndReplay()
	}
	r.aimAll()
}

// judge hears whether a tensor that leaves is what its recipe makes.
func (r *recipes) judge(m *Move, same bool) {
	if m.Untried {
		if rm := m.tensor.remake; m.Proven && rm != nil { // it is not any more: those that are alike have to be verified
			r.again.proofs.forget(rm.alike)
		}
		r.giveUpRecipe(m.tensor, m.tensor.recipe.written) // nothing was found that had written to it since
		return
	}
	count := r.again.same
	if rm := m.tensor.remake; rm != nil && !(same && rm.proven) {
		now := m.tensor.likeness()                            // what has named it since it was verified did not write to it, or did
		if m.Kind == MoveVerify || !same && now != rm.alike { // what it makes is not known, or what came since is at fault
			r.again.proofs.forget(rm.alike)
		}
		if m.Kind == MoveEvict {
			r.again.proofs.note(now, same)
		}
		if same && now != rm.alike {
			r.again.proofs.note(rm.alike, true)
		}
	}
	if same {
		r.stats.Dropped++
		r.stats.DroppedBytes += m.Bytes
	} else {
		switch r.stats.Wrong++; {
		case m.Kind == MoveVerify:
			count = r.again.refused
		case m.tensor.blameless():
			count = nil
		default:
			count = r.again.wrong
		}
		r.giveUpRecipe(m.tensor, r.History.Now())
	}
	for _, f := range m.functions {
		if count != nil {
			count[f]++
		}
	}
}

// giveUpRecipe has a tensor not made again, which was last written to at a position, as far as is known.
func (r *recipes) giveUpRecipe(t *tensor, written int64) {
	t.recipe = recipe{over: true, wrong: true, touched: true, written: written}
	r.release(t)
}

// first is what has to come before a tensor can: itself, or something away that it is made of; nil while that is on its way.
func (r *recipes) first(t *tensor) *tensor {
	for t.remake != nil && t.chunks[0].where == dropped {
		var away *tensor
		coming := false
		for _, u := range t.remake.inputs {
			if u.absent > 0 {
				away = u
				break
			}
			coming = coming || !u.readable()
		}
		switch {
		case away != nil:
			t = away
		case coming:
			return nil
		default:
			return t
		}
	}
	return t
}

// makes says whether a tensor that is away can be made now.
func (t *tensor) makes() bool {
	rm, c := t.remake, &t.chunks[0]
	return rm != nil && rm.ready && !rm.moving && c.summed && c.sum == rm.sum && !slices.ContainsFunc(rm.inputs, func(u *tensor) bool { return !u.readable() })
}

// cameBack notes that a tensor need not be made again any more: it was, rightly, or its copy has come.
func (r *recipes) cameBack(m *Move) {
	if len(m.Launches) > 0 {
		r.stats.Made++
		r.stats.MadeBytes += m.Bytes
		r.landed(m)
	}
	r.release(m.tensor)
}

// Doubted reports that what a move was to make again was not what was dropped, and has no copy: nothing more is dropped that the
// same functions make.
func (r *recipes) Doubted(m *Move) {
	for _, f := range m.functions {
		r.again.banned[f] = true
	}
}

// makeInstead has a move in make what a tensor had again.
func (r *recipes) makeInstead(m *Move) {
	m.Launches, m.Temps = m.tensor.remake.launches, m.tensor.remake.temps
	m.reads(m.tensor.remake)
	r.ofRecipe(m)
}

// ofRecipe notes which functions its launches are of.
func (r *recipes) ofRecipe(m *Move) {
	for i := range m.tensor.recipe.steps {
		s := &m.tensor.recipe.steps[i]
		r.again.names[s.function] = s.name
		m.functions, m.By = append(m.functions, s.function), s.name
	}
}
