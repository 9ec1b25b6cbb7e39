package explicit

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
)

// This file is for what a mover does with launches that are issued again: it verifies a recipe, tries one out with copies of what it reads,
// and makes memory.

// issued is one of the launches with memory of the engine's in the place of what the job has freed.
func (m *Move) issued(i int, temps cuda.Ptr) *cuda.RecordedLaunch {
	l := m.Launches[i]
	for _, x := range m.Temps[i] {
		l = l.Redirected(x.At, temps+cuda.Ptr(x.Offset))
	}
	return l
}

// Verify carries a MoveVerify out, in scratch memory of Config.ScratchBytes, which is done when the word has reached the ticket; one that is proven
// has none where there is nothing to copy.
func (v *Mover) Verify(m *Move, scratch cuda.Ptr) (ticket uint32, err error) {
	if m.Proven {
		if len(m.Clones) == 0 {
			return 0, nil
		}
		return v.marks.next(v.driver, v.stream)
	}
	from := cuda.Range{Base: m.Chunk.Base, Bytes: m.Bytes}
	temps := scratch + cuda.Ptr(wholeUnits(m.Bytes))
	if err := v.prepare(m, temps); err != nil {
		return 0, err
	}
	copies, err := v.isolate(m, temps+cuda.Ptr(m.TempsBytes()))
	defer func() {
		if err != nil {
			v.tried = nil
		}
	}()
	if err != nil {
		return 0, err
	}
	for i := range m.Launches {
		l := m.issued(i, temps).Redirected(from, scratch)
		for k, to := range copies {
			l = l.Redirected(m.Inputs[k], to)
		}
		if err := v.driver.LaunchAgain(l, v.stream); err != nil {
			return 0, fmt.Errorf("a launch that is verified: %w", err)
		}
	}
	if err := v.sumAt(m, scratch); err != nil {
		return 0, err
	}
	for k, to := range copies {
		for i, at := range []cuda.Ptr{m.Inputs[k].Base, to} {
			if err := v.kernels.Checksum(cuda.Range{Base: at, Bytes: m.Inputs[k].Bytes}, v.trial[2*k+i], v.stream); err != nil {
				return 0, err
			}
		}
	}
	return v.marks.next(v.driver, v.stream)
}

// isolate queues copies of what a trial's launches read, and answers where these are; none of a move that is no trial.
func (v *Mover) isolate(m *Move, at cuda.Ptr) (copies []cuda.Ptr, err error) {
	if !m.Isolated {
		return nil, nil
	}
	v.tried = m
	for _, r := range m.Inputs {
		if err := v.driver.CopyAsync(at, r.Base, r.Bytes, v.stream); err != nil {
			return nil, fmt.Errorf("copying what a trial reads: %w", err)
		}
		copies = append(copies, at)
		at += cuda.Ptr(wholeUnits(r.Bytes))
	}
	return copies, nil
}

// Overwritten is what launches of a move write to and were to read.
type Overwritten struct {
	cuda.Range
	Workspace bool // what is there means nothing to them
}

// Isolate has the launches of a move write to memory of the engine's in the place of ranges that they name: zeros for a workspace, else a copy.
func (m *Move) Isolate(ranges []Overwritten) {
	offset, temps := m.TempsBytes(), slices.Clone(m.Temps)
	for _, r := range ranges {
		for i, l := range m.Launches {
			if slices.ContainsFunc(l.Addresses, func(at uint32) bool { p := l.Address(at); return p >= r.Base && p < r.End() }) {
				temps[i] = append(slices.Clone(temps[i]), Temp{At: r.Range, Offset: offset, Scratch: r.Workspace, Copy: !r.Workspace})
			}
		}
		offset += wholeUnits(r.Bytes)
	}
	m.Temps = temps
}

// MayTry says whether a trial can be begun, in scratch memory of a size: none is under way, and there is room for copies of all that it reads.
func (v *Mover) MayTry(m *Move, scratchBytes int64) bool {
	bytes := wholeUnits(m.Bytes) + m.TempsBytes()
	for _, r := range m.Inputs {
		bytes += wholeUnits(r.Bytes)
	}
	return v.tried == nil && len(m.Inputs) <= MostTrialInputs && bytes <= scratchBytes
}

// Tried notes which inputs a trial's launches have written to, once its ticket has been reached.
func (v *Mover) Tried(m *Move) {
	for k, r := range m.Inputs {
		if v.kernels.Sum(r.Bytes, v.trial[2*k]) != v.kernels.Sum(r.Bytes, v.trial[2*k+1]) {
			m.Changed = append(m.Changed, r)
		}
	}
	v.tried = nil
}

// prepare clears the scratch memory that a move's launches are given, and copies what they are given copies of.
func (v *Mover) prepare(m *Move, temps cuda.Ptr) error {
	for _, all := range m.Temps {
		for _, x := range all {
			if x.Copy {
				if err := v.driver.CopyAsync(temps+cuda.Ptr(x.Offset), x.At.Base, x.At.Bytes, v.stream); err != nil {
					return fmt.Errorf("copying what launches are not to write to: %w", err)
				}
			}
			if !x.Scratch {
				continue
			}
			if err := v.driver.ZeroAsync(temps+cuda.Ptr(x.Offset), x.At.Bytes, v.stream); err != nil {
				return fmt.Errorf("clearing scratch memory: %w", err)
			}
		}
	}
	return nil
}

// TempsBytes is how much memory a move's launches need for what they name of memory that the engine has to provide.
func (m *Move) TempsBytes() (n int64) {
	for _, all := range m.Temps {
		for _, x := range all {
			n = max(n, x.Offset+wholeUnits(x.At.Bytes))
		}
	}
	return n
}

// Make queues the launches that make a move's contents again, with scratch memory for what they make on the way, and their checksum, which has been taken when the word has reached the
// ticket. A launch that is refused is an error.
func (v *Mover) Make(m *Move, scratch cuda.Ptr) (ticket uint32, err error) {
	if err := v.prepare(m, scratch); err != nil {
		return 0, err
	}
	for i := range m.Launches {
		if err := v.driver.LaunchAgain(m.issued(i, scratch), v.stream); err != nil {
			return 0, fmt.Errorf("a launch that is issued again: %w", err)
		}
	}
	if err := v.sum(m); err != nil {
		return 0, err
	}
	return v.marks.next(v.driver, v.stream)
}

// Made says whether what a move made is what left, once the ticket of its making has been reached.
func (v *Mover) Made(m *Move) bool { return v.found(m) == m.Sum }
