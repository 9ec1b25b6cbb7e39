package swapped

import (
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
)

// This file is for workspaces of products: memory that their launches use, and in which nothing that is there before or after means
// anything. Many leave it as it was, so that trials (trial.go) do not tell; issued again, they and the job's would disturb
// each other there.

const (
	// workspaceOf is how many of the last productsSeen launches of products, of two functions at least, must have named an address for
	// it to be a workspace: an operand is named by few.
	workspaceOf, productsSeen = 10, 32
	// workspaceLaunches is how many of these launches, and nothing else, must have named memory for it to be a workspace.
	workspaceLaunches = 16
)

// products are the addresses in allocations that the last launches of products named.
type products struct {
	last [productsSeen]struct {
		function cuda.Function
		named    []named
		outside  []cuda.Ptr // what may be addresses in plain memory
	}
	newest int
	by     map[named]map[cuda.Function]int // launches
}

// named is an address in one life of an allocation: another one that gets the same range is no workspace for that.
type named struct {
	instance correlate.InstanceID
	at       cuda.Ptr
}

// named is what has an address now.
func (e *Engine) named(p cuda.Ptr) named { return named{e.runtime.InstanceOf(e.runtime.SlotAt(p)), p} }

// launch enters one of a function, in the place of the oldest.
func (s *products) launch(f cuda.Function) {
	s.newest = (s.newest + 1) % productsSeen
	x := &s.last[s.newest]
	for _, p := range x.named {
		if s.by[p][x.function]--; s.by[p][x.function] == 0 {
			delete(s.by[p], x.function)
		}
		if len(s.by[p]) == 0 {
			delete(s.by, p)
		}
	}
	x.function, x.named, x.outside = f, x.named[:0], x.outside[:0]
}

// name enters what the newest launch names, once for it.
func (s *products) name(p named) {
	x := &s.last[s.newest]
	if slices.Contains(x.named, p) {
		return
	}
	x.named = append(x.named, p)
	if s.by[p] == nil {
		s.by[p] = map[cuda.Function]int{}
	}
	s.by[p][x.function]++
}

// workspace says whether enough of them named it.
func (s *products) workspace(p named) bool {
	n := 0
	for _, launches := range s.by[p] {
		n += launches
	}
	return n >= workspaceOf && len(s.by[p]) > 1
}

// nameOutside enters what may be an address outside all allocations of the engine's, which the newest launch has among its parameters.
func (s *products) nameOutside(p cuda.Ptr) {
	x := &s.last[s.newest]
	x.outside = append(x.outside, p)
}

// namedOutside is what each of the last launches named so.
func (s *products) namedOutside() (all [][]cuda.Ptr) {
	for i := range s.last {
		all = append(all, slices.Clone(s.last[i].outside))
	}
	return all
}

// severalName says whether several launches named a block of plain memory: then it may be a workspace of theirs, and they may be at it.
func severalName(outside [][]cuda.Ptr, block cuda.Range) bool {
	n := 0
	for _, of := range outside {
		if slices.ContainsFunc(of, func(p cuda.Ptr) bool { return p >= block.Base && p < block.End() }) {
			n++
		}
	}
	return n > 1
}
