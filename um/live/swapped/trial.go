package swapped

import (
	"slices"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// This file is for what launches write to of kernels of which the name does not tell it: matrix products, convolutions, attention.
//
// Any word of their parameters that lies in memory that is known is taken for an address. What was just allocated is taken for
// what the launch makes, until trials say more: when a recipe is verified with such a launch, all that it reads is copied first, and it is given the copies, so
// that it can write to nothing of the job's. What it made must be what it was, and the copies must be as before: where one is
// not, the words that point there are remembered, and what they point to is the engine's own memory in later launches, with zeros, as a
// workspace. Several words may point there, for allocations can share a range: those are not suspected that pointed to what was only read in
// other trials. What is a workspace to one product is one to all. After enoughTrials in a row that found nothing new, launches of the function
// are given what the job has to read, and the launch hook is told what they write to. Launches with operands that may be workspaces
// (explicit.Runtime.Operand) are not recorded: semaphores there, copied while the job's kernels are at them, would be waited for for ever.

const enoughTrials = 4

// trial is what trials have told of a function.
type trial struct {
	passed int      // in a row
	made   []uint32 // offsets of words that pointed to what was made, in all of them
	writes []uint32 // of all words that pointed to what was written to
	reads  []uint32 // of all words that pointed to what was as before
	seen   []uint32 // of all words that were addresses of tensors
}

// again begins trials anew. What a launch makes is found by its being new, until one has passed.
func (t *trial) again() {
	t.writes = slices.DeleteFunc(t.writes, func(x uint32) bool { return slices.Contains(t.made, x) })
	t.made, t.passed = nil, 0
}

// over says whether there need be no more.
func (t *trial) over() bool { return t.passed >= enoughTrials }

// byTrial says what a launch does with what it names, by what is known so far, and how it can be issued again. What the hook lets pass
// as reading a tensor is reading it here.
func (c *accesses) byTrial(e *Engine, rec *hook.Record, o *um.Op, f *recorded, l *cuda.RecordedLaunch) {
	if rec.Flags&(hook.FlagInspect|hook.FlagOpaque) != 0 || len(rec.Slots) > explicit.MostTrialInputs {
		return
	}
	c.tried[l.Function] = f
	ranges := make([]cuda.Range, len(rec.Slots))
	for i, s := range rec.Slots {
		ranges[i] = e.runtime.SlotRange(s)
	}
	at := make([][]uint32, len(rec.Slots)) // offsets of the words that point there
	tell := false
	if f.product {
		c.products.launch(l.Function)
	}
	addressWords(l, func(offset uint32, p cuda.Ptr) bool {
		i := slices.IndexFunc(ranges, func(r cuda.Range) bool { return p >= r.Base && p < r.End() })
		switch {
		case i >= 0 && !e.runtime.Lives(rec.Slots[i]): // a dead range that the job may take again
			l.Stale = append(l.Stale, offset)
		case i >= 0:
			at[i] = append(at[i], offset)
			l.Addresses = append(l.Addresses, offset)
			if !f.product {
				break
			}
			x := named{e.runtime.InstanceOf(rec.Slots[i]), p}
			c.products.name(x)
			if c.products.workspace(x) && e.runtime.MayBeWorkspace(rec.Slots[i]) {
				c.workspaces[x] = true
			}
			if c.workspaces[x] && !slices.Contains(f.writes, offset) {
				f.writes = append(f.writes, offset)
				tell = true
			}
		case f.product:
			c.products.nameOutside(p)
		}
		return true
	})
	if tell && f.told {
		c.tell(e, f)
	}
	if f.over() && slices.ContainsFunc(slices.Concat(at...), func(x uint32) bool { return !slices.Contains(f.seen, x) }) {
		// A word is an address that never was one: what is there may be written to.
		c.restart(e, f)
		c.of = slices.Repeat([]um.Access{um.AccessUnknown}, len(rec.Slots))
		o.Access = c.of
		return
	}
	told := rec.Flags&hook.FlagAccess != 0
	c.of = c.of[:0]
	makes, mixed, doubtful := -1, false, false
	for i, s := range rec.Slots {
		access := um.AccessUnknown
		switch fresh := e.runtime.Untouched(s); {
		case told && i >= rec.Written() && !tell:
			access = um.AccessReads
		case f.passed > 0 && makes < 0 && shared(at[i], f.made) && (fresh || told):
			access, makes = um.AccessWrites, i
		case shared(at[i], f.writes), e.runtime.NamedByProducts(s, workspaceLaunches):
			access = um.AccessScratch
		case fresh && makes < 0 && f.passed == 0:
			access, makes = um.AccessWrites, i
		case fresh:
			access = um.AccessScratch
		}
		// Allocations that share a range: as a workspace it would not hold what else is read there.
		mixed = mixed || access == um.AccessScratch && shared(at[i], f.writes) && slices.ContainsFunc(at[i], func(x uint32) bool { return !slices.Contains(f.writes, x) })
		doubtful = doubtful || f.product && len(at[i]) > 0 && access != um.AccessWrites && access != um.AccessScratch && !e.runtime.Operand(s)
		if access == um.AccessWrites || access == um.AccessScratch {
			for _, x := range at[i] {
				if slices.Contains(f.writes, x) {
					o.Written = append(o.Written, l.Address(x))
				}
			}
		}
		c.of = append(c.of, access)
	}
	o.Access, o.Trying = c.of, !f.over()
	if makes >= 0 && !mixed && !doubtful {
		o.Again = l
	}
}

// shared says whether two lists share an offset.
func shared(a, b []uint32) bool {
	return slices.ContainsFunc(a, func(x uint32) bool { return slices.Contains(b, x) })
}

// ofTrials says of each of a move's launches whether trials tell what it writes to: all words that lie in memory are addresses then.
func (c *accesses) ofTrials(m *explicit.Move) []bool {
	is := make([]bool, len(m.Launches))
	for i, l := range m.Launches {
		is[i] = c.tried[l.Function] != nil
	}
	return is
}

// isProduct says whether a launch is one of a product.
func (c *accesses) isProduct(l *cuda.RecordedLaunch) bool {
	f := c.tried[l.Function]
	return f != nil && f.product
}

// trials says whether a verification is one of functions of which it is not known yet what they write to.
func (c *accesses) trials(m *explicit.Move) bool {
	return slices.ContainsFunc(m.Launches, func(l *cuda.RecordedLaunch) bool {
		f := c.tried[l.Function]
		return f != nil && !f.over()
	})
}

// overwrites are what launches of a move write to and only read by what was known when they were recorded: it was found
// out since. Issued with what the job has, they would change that.
func (c *accesses) overwrites(e *Engine, m *explicit.Move) (all []explicit.Overwritten) {
	inputs := m.Reads()
	for _, l := range m.Launches {
		f := c.tried[l.Function]
		if f == nil {
			continue
		}
		for _, at := range f.writes {
			if !slices.Contains(l.Addresses, at) {
				continue
			}
			p := l.Address(at)
			i := slices.IndexFunc(inputs, func(r cuda.Range) bool { return p >= r.Base && p < r.End() })
			if i < 0 {
				continue
			}
			k := slices.IndexFunc(all, func(x explicit.Overwritten) bool { return x.Range == inputs[i] })
			if k < 0 {
				k = len(all)
				all = append(all, explicit.Overwritten{Range: inputs[i], Workspace: true})
			}
			all[k].Workspace = all[k].Workspace && c.workspaces[e.named(p)]
		}
	}
	return all
}

// judge learns from a trial, and says whether nothing was found that was not known.
func (c *accesses) judge(e *Engine, m *explicit.Move) bool {
	pointing := func(l *cuda.RecordedLaunch, r cuda.Range) (all []uint32) {
		for _, at := range l.Addresses {
			if p := l.Address(at); p >= r.Base && p < r.End() {
				all = append(all, at)
			}
		}
		return all
	}
	for _, l := range m.Launches {
		f := c.tried[l.Function]
		if f == nil {
			continue
		}
		for _, r := range m.Inputs {
			if !slices.Contains(m.Changed, r) {
				add(&f.reads, pointing(l, r))
			}
		}
		for _, r := range m.Changed {
			words := f.suspects(pointing(l, r))
			if len(words) == 0 {
				continue
			}
			c.restart(e, f)
			f.note(nil, words)
			if f.product && !slices.ContainsFunc(words, func(at uint32) bool { return l.Address(at) != l.Address(words[0]) }) {
				c.workspaces[e.named(l.Address(words[0]))] = true
			}
		}
	}
	if len(m.Changed) > 0 {
		return false
	}
	for i, l := range m.Launches {
		f := c.tried[l.Function]
		if f == nil || f.over() {
			continue
		}
		made := pointing(l, m.Chunk)
		if len(made) == 0 {
			continue // it made what was made of on the way
		}
		writes := slices.Clone(made)
		add(&f.seen, made)
		for _, x := range m.Temps[i] {
			words := pointing(l, x.At)
			add(&f.seen, words)
			if x.Scratch {
				writes = append(writes, words...)
			}
		}
		for _, r := range m.Inputs {
			add(&f.seen, pointing(l, r))
		}
		f.note(made, writes)
		if f.passed++; f.over() && !f.told {
			e.proc.Log.Debug("it is known what launches write to", zap.String("kernel", m.By), zap.Uint32s("offsets", f.writes))
			c.tell(e, f)
		}
	}
	return true
}

// restart has a function tried anew. The launch hook is not to know of it what may not be so.
func (c *accesses) restart(e *Engine, f *recorded) {
	f.again()
	if f.told {
		f.told = false
		e.hook.SetRecord(f.id, nil)
	}
}

// tell has the launch hook know what the launches of a function write to, where it can.
func (c *accesses) tell(e *Engine, f *recorded) {
	words := f.writes
	if f.told = len(words) <= hook.MostWritten; !f.told {
		words = nil
	}
	e.hook.SetRecord(f.id, words)
}

// suspects are those of some words one of which points to what was written to that may be the one.
func (t *trial) suspects(words []uint32) []uint32 {
	some := slices.DeleteFunc(slices.Clone(words), func(x uint32) bool { return slices.Contains(t.reads, x) || slices.Contains(t.writes, x) })
	if len(some) == 0 {
		return words
	}
	return some
}

// add enters offsets into a list that has each once.
func add(list *[]uint32, offsets []uint32) {
	for _, x := range offsets {
		if !slices.Contains(*list, x) {
			*list = append(*list, x)
		}
	}
}

// note enters what the words of one launch pointed to.
func (t *trial) note(made, writes []uint32) {
	if t.passed == 0 {
		t.made = made
	} else if made != nil {
		t.made = slices.DeleteFunc(t.made, func(x uint32) bool { return !slices.Contains(made, x) })
	}
	add(&t.writes, writes)
}
