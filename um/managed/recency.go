package managed

// recency mirrors the order in which the driver would evict blocks: a block
// becomes the most recent when a migration to the device touches it, also when
// it was there already, and never by GPU access (nvidia-uvm, uvm_pmm_gpu.c:
// root_chunk_update_eviction_list). It is a list threaded through two arrays.
type recency struct {
	next, prev []int32 // block + 1 is its node; node 0 is the end of the list
}

func newRecency(blocks int32) *recency {
	return &recency{next: make([]int32, blocks+1), prev: make([]int32, blocks+1)}
}

func (q *recency) holds(b int32) bool {
	n := b + 1
	return q.next[n] != 0 || q.prev[n] != 0 || q.next[0] == n
}

func (q *recency) remove(b int32) {
	if !q.holds(b) {
		return
	}
	n := b + 1
	q.next[q.prev[n]], q.prev[q.next[n]] = q.next[n], q.prev[n]
	q.next[n], q.prev[n] = 0, 0
}

// touch makes a block the most recent.
func (q *recency) touch(b int32) {
	q.remove(b)
	n := b + 1
	last := q.prev[0]
	q.next[last], q.prev[n] = n, last
	q.next[n], q.prev[0] = 0, n
}

// oldest calls visit for each block, the next to be evicted first.
func (q *recency) oldest(visit func(b int32) bool) {
	for n := q.next[0]; n != 0; {
		next := q.next[n]
		if !visit(n - 1) {
			return
		}
		n = next
	}
}
