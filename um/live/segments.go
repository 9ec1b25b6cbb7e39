package live

import (
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

// Segments are all memory of the engine's that is allocated or kept for allocations, by address.
func (l *Live) Segments() []segments.Segment {
	l.plainMu.Lock() // so that what is a tensor's and a private pool's is both throughout
	defer l.plainMu.Unlock()
	all := l.plain.Segments()
	private := map[cuda.Ptr]segments.Segment{}
	for _, x := range l.privates {
		for _, s := range x.pool.Segments() {
			s.Pool = x.id
			private[s.Address] = s
		}
	}
	tensors := l.tensorSegments()
	for i := range tensors {
		holdPrivate(&tensors[i], private)
	}
	for _, s := range private { // those that are no tensors
		all = append(all, s)
	}
	for i := range all {
		all[i].OnDevice = all[i].Bytes
	}
	all = append(all, tensors...)
	segments.Sort(all)
	return all
}

// tensorSegments are the engine's tensors, with the handles of their streams.
func (l *Live) tensorSegments() (all []segments.Segment) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.Engine.CatchUp() // with what the front has served
	if l.Tensors == nil {
		return nil
	}
	all = l.Tensors.Segments()
	for i := range all {
		all[i].Stream = l.Streams.Handle(int(all[i].Stream))
	}
	return all
}

// holdPrivate puts the blocks of private pools' segments into a tensor in the place of the allocations that they are to the engine.
func holdPrivate(t *segments.Segment, private map[cuda.Ptr]segments.Segment) {
	for i := 0; i < len(t.Blocks); i++ {
		b := t.Blocks[i]
		s, ok := private[b.Address]
		if !ok || b.State != segments.Allocated {
			continue
		}
		delete(private, b.Address)
		t.Pool, t.Stream = s.Pool, s.Stream
		s.FillTo(b.Address + cuda.Ptr(b.Bytes))
		t.Blocks = slices.Replace(t.Blocks, i, i+1, s.Blocks...)
		i += len(s.Blocks) - 1
	}
}

// SizeOf is how much was asked for of the live allocation that begins at an address; 0 when none does.
func (l *Live) SizeOf(p cuda.Ptr) int64 {
	for _, s := range l.Segments() {
		for _, b := range s.Blocks {
			if b.Address == p && b.State == segments.Allocated {
				return b.Requested
			}
		}
	}
	return 0
}
