package swapped

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// This file is for what the engine needs to make tensors again: memory to verify in that it can.

const (
	clonesPart  = 4 // the part of the memory to verify in that there is for copies of small memory besides
	mostMakings = 5 // of a tensor without a copy, before it is given up
)

// verifier has the memory.
type verifier struct {
	scratch cuda.Range   // to verify in
	bytes   int64        // all of it, from the scratch on
	temps   cuda.Range   // for what is made on the way when a tensor is made
	grown   []cuda.Range // memory that temps lies in or lay in, where it was too small: makings may be under way in each
	clones  clones
}

// openVerifier takes memory of the budget, before anything else does, and answers what may be verified there at most: 0 where
// nothing is to be made again.
func (e *Engine) openVerifier(size int64) (scratchBytes int64, err error) {
	proc := e.proc
	clonesSize, tempsSize := explicit.WholePages(size/clonesPart), explicit.TempsBytes(size)
	all := size + tempsSize + clonesSize
	if size == 0 {
		return 0, nil
	}
	base, err := e.plain.segment(all)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("memory to verify in that tensors can be made again: %w", err)
	}
	proc.PlainBytes.Add(all)
	e.verifier = &verifier{scratch: cuda.Range{Base: base, Bytes: size}, temps: cuda.Range{Base: base + cuda.Ptr(size), Bytes: tempsSize}}
	e.verifier.bytes = all
	e.verifier.clones = clones{left: cuda.Range{Base: base + cuda.Ptr(size+tempsSize), Bytes: clonesSize}, free: map[int64][]cuda.Ptr{}}
	return size, nil
}

// closeVerifier gives the memory back, as nothing is made again any more. The caller holds the lock.
func (p *worker) closeVerifier() (err error) {
	e, proc := p.e, p.e.proc
	e.endVerifier = false
	memory := append(e.verifier.grown, cuda.Range{Base: e.verifier.scratch.Base, Bytes: e.verifier.bytes})
	e.verifier = nil
	for function, f := range e.accesses.functions {
		if f != nil {
			e.hook.EndRecord(function)
		}
	}
	p.timed(portFinish, func() {
		for _, r := range memory {
			h := e.plain.forget(r.Base)
			unmapped := e.plain.unmap(r.Base, r.Bytes)
			if unmapped == nil {
				unmapped = errors.Join(proc.Driver.MemRelease(h), proc.Driver.AddressFree(r.Base, r.Bytes))
			}
			err = errors.Join(err, unmapped)
		}
		e.plain.verifying.Store(0)
	})
	for _, r := range memory {
		proc.PlainBytes.Add(-r.Bytes)
	}
	e.PlainChanged()
	return err
}

// errOverwrites is that the driver has no memory for what a launch writes to.
var errOverwrites = errors.New("a launch writes to what it was to read, as was found out since, and there is no memory for it to write to instead")

// grow has as much memory as is needed for what launches make on the way, and answers how much was taken for that, of the budget or beyond it: what
// was dropped without a copy has to be made, even where it is found out only now that a launch needs more for that.
func (v *verifier) grow(e *Engine, needed int64) (taken int64, err error) {
	if needed <= v.temps.Bytes {
		return 0, nil
	}
	size := explicit.WholePages(needed)
	base, err := e.plain.segment(size)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errOverwrites, err)
	}
	v.temps = cuda.Range{Base: base, Bytes: size}
	v.grown = append(v.grown, v.temps)
	return size, nil
}

// errNotGuarded is what a launch reads that the engine can neither guard nor copy.
var errNotGuarded = errors.New("it reads memory that can be neither guarded nor copied")

// errPoolBusy is that somebody has the pool of plain memory, perhaps waiting for this thread to make room.
var errPoolBusy = errors.New("the pool of plain memory is in use")

// verify begins to verify a recipe. outside is m.Outside(), byTrial is of which launches trials tell what they write to, and uses are those of plain
// memory by products, where one is among the launches.
func (p *worker) verify(m *explicit.Move, outside []cuda.Ptr, byTrial []bool, uses [][]cuda.Ptr) (ticket uint32, err error) {
	v := p.e.verifier
	launches := slices.Clone(m.Launches)
	for i, l := range launches {
		for _, offset := range p.e.hiddenAddresses(l) {
			at := l.Address(offset)
			_, ok, err := p.plainAt(at)
			if err != nil {
				return 0, err
			}
			if !ok || !byTrial[i] || at < lowAddresses {
				return 0, fmt.Errorf("%w: a parameter may hold %#x", errNotGuarded, uint64(at))
			}
			l = l.WithAddress(offset)
			outside = append(outside, at)
		}
		launches[i] = l
	}
	slices.Sort(outside)
	for _, at := range slices.Compact(outside) {
		from, to, err := p.clone(at, firstToName(launches, at), uses)
		if err != nil {
			return 0, err
		}
		m.Clones = append(m.Clones, to)
		for i := range launches {
			launches[i] = launches[i].Redirected(from, to.Base)
		}
	}
	m.Launches = launches
	return p.mover.Verify(m, v.scratch.Base)
}

// firstToName is the seq of the first of some launches that has an address.
func firstToName(launches []*cuda.RecordedLaunch, p cuda.Ptr) uint64 {
	i := slices.IndexFunc(launches, func(l *cuda.RecordedLaunch) bool {
		return slices.ContainsFunc(l.Addresses, func(at uint32) bool { return l.Address(at) == p })
	})
	return launches[max(i, 0)].Seq
}

// remake makes again what has no copy and was not the same: the last time it failed for a reason that may have passed.
func (p *worker) remake(f *flight) error {
	e, m := p.e, f.move
	if f.makings++; f.makings == mostMakings {
		return fmt.Errorf("%w: %s was dropped, to be made again by %s, and is not what it was (%d times; %v was dropped): start the job from its last checkpoint, with --replay off",
			explicit.ErrMismatch, m.What(), m.By, f.makings, m.Sum)
	}
	e.runtime.Doubted(m)
	e.proc.Log.Warn("what was made again is not what was dropped: it is made once more", zap.String("kernel", m.By))
	var err error
	p.timed(portBegin, func() { f.ticket, err = p.maker.Make(m, e.verifier.temps.Base) })
	return err
}
