package evict

import "container/heap"

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
func (h *Heap[T]) Init() { heap.Init((*indices[T])(h)) }

// Push enters another victim.
func (h *Heap[T]) Push(v Victim[T]) {
	h.victims = append(h.victims, v)
	heap.Push((*indices[T])(h), int32(len(h.victims)-1))
}

// Len is how many victims are left.
func (h *Heap[T]) Len() int { return len(h.order) }

// First is the next victim, valid until the next Push. Only its Bytes may be changed.
func (h *Heap[T]) First() *Victim[T] { return &h.victims[h.order[0]] }

// Pop takes the next victim; it is valid until the next Push.
func (h *Heap[T]) Pop() *Victim[T] { return &h.victims[heap.Pop((*indices[T])(h)).(int32)] }

// indices is a Heap as package heap wants it.
type indices[T any] Heap[T]

func (h *indices[T]) Len() int { return len(h.order) }
func (h *indices[T]) Less(i, j int) bool {
	return h.policy.Before(&h.victims[h.order[i]].Candidate, &h.victims[h.order[j]].Candidate)
}
func (h *indices[T]) Swap(i, j int) { h.order[i], h.order[j] = h.order[j], h.order[i] }
func (h *indices[T]) Push(x any)    { h.order = append(h.order, x.(int32)) }
func (h *indices[T]) Pop() any {
	n := len(h.order) - 1
	i := h.order[n]
	h.order = h.order[:n]
	return i
}
