package oracle

// queue is a binary heap of gaps or items by key, least key first, ties by
// the order of their ids so that every run is the same.
type queue struct{ entries []entry }

type entry struct {
	key   float64
	id    int32
	stamp int32 // the owner's own; lets stale entries be recognised
}

func (a entry) before(b entry) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	if a.stamp != b.stamp {
		return a.stamp < b.stamp
	}
	return a.id < b.id
}

func (q *queue) push(e entry) {
	q.entries = append(q.entries, e)
	at := len(q.entries) - 1
	for at > 0 {
		parent := (at - 1) / 2
		if !q.entries[at].before(q.entries[parent]) {
			break
		}
		q.entries[at], q.entries[parent] = q.entries[parent], q.entries[at]
		at = parent
	}
}

func (q *queue) top() (entry, bool) {
	if len(q.entries) == 0 {
		return entry{}, false
	}
	return q.entries[0], true
}

func (q *queue) pop() {
	last := len(q.entries) - 1
	q.entries[0] = q.entries[last]
	q.entries = q.entries[:last]
	at := 0
	for {
		child := 2*at + 1
		if child >= last {
			return
		}
		if child+1 < last && q.entries[child+1].before(q.entries[child]) {
			child++
		}
		if !q.entries[child].before(q.entries[at]) {
			return
		}
		q.entries[at], q.entries[child] = q.entries[child], q.entries[at]
		at = child
	}
}
