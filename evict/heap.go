package evict

import "github.com/penstock-gpu/penstock/internal/heap"

// Victim is a candidate and what it describes.
type Victim[T any] struct {
	Of T
	Candidate
}

// Heap gives victims in the order of a policy. It moves indices about: victims are
// large.
type Heap[T any] struct {
	policy  Policy
	victims []Victim[T]
	order   []int32
}

// Reset empties the heap, keeping its memory.
func (h *Heap[T]) Reset(p Policy) {
	*h = Heap[T]{policy: p, victims: h.victims[:0], order: h.order[:0]}
}

// Add enters a victim before Init; Push does after it.
func (h *Heap[T]) Add(v Victim[T]) {
	h.victims = append(h.victims, v)
	h.order = append(h.order, int32(len(h.victims)-1))
}

// Init puts what was added in order.
func (h *Heap[T]) Init() { heap.Init(h.order, h.before) }

func (h *Heap[T]) before(a, b int32) bool {
	return h.policy.Before(&h.victims[a].Candidate, &h.victims[b].Candidate)
}

// Push enters another victim.
func (h *Heap[T]) Push(v Victim[T]) {
	h.victims = append(h.victims, v)
	h.order = heap.Push(h.order, int32(len(h.victims)-1), h.before)
}

// Len is how many victims are left.
func (h *Heap[T]) Len() int { return len(h.order) }

// First is the next victim, valid until the next Push. Only its Bytes may be changed.
func (h *Heap[T]) First() *Victim[T] { return &h.victims[h.order[0]] }

// Pop takes the next victim; it is valid until the next Push.
func (h *Heap[T]) Pop() *Victim[T] {
	var first int32
	first, h.order = heap.Pop(h.order, h.before)
	return &h.victims[first]
}
