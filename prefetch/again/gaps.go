package again

import "container/heap"

// gap is a stretch between two uses during which a tensor is not on the device.
type gap struct {
	tensor      int32
	after, back int // the uses
}

// far is the next use of what is not used again.
const far = 1 << 40

// gaps are those that evicting what is used farthest in the future opens in a budget, whole tensors and in
// positions. Tensors below smallBytes stay.
func (p *Planner) gaps(budgetBytes, smallBytes int64) []gap {
	n := len(p.Ops)
	births, deaths := make([][]int32, n+1), make([][]int32, n+1)
	for i, t := range p.Tensors {
		births[t.Birth] = append(births[t.Birth], int32(i))
		deaths[t.Death] = append(deaths[t.Death], int32(i))
	}
	stays := func(t int32) bool { return p.Tensors[t].Bytes < smallBytes || len(p.touches[t]) == 0 }
	var all []gap
	here := make([]bool, len(p.Tensors))
	used := make([]int, len(p.Tensors)) // last use so far
	seen := make([]int, len(p.Tensors)) // how many uses were
	for i := range used {
		used[i] = none
	}
	next := func(t int32) int {
		if seen[t] < len(p.touches[t]) {
			return int(p.touches[t][seen[t]])
		}
		return far
	}
	var idle farthest
	var bytes int64 // on the device
	for k := range n {
		for _, t := range deaths[k] {
			if here[t] || stays(t) && p.Tensors[t].Birth < k {
				bytes -= p.Tensors[t].Bytes
			}
			here[t] = false
		}
		for _, t := range births[k] {
			if stays(t) && p.Tensors[t].Death > k {
				bytes += p.Tensors[t].Bytes
			}
		}
		for _, x := range p.Ops[k].Operands {
			t := x.Tensor
			if seen[t]++; stays(t) {
				continue
			}
			if !here[t] {
				if used[t] != none {
					all = append(all, gap{t, used[t], k})
				}
				here[t] = true
				bytes += p.Tensors[t].Bytes
			}
			used[t] = k
		}
		for bytes > budgetBytes && len(idle) > 0 {
			// What was used since it was put there has another next use: it stands there again, or will.
			if u := heap.Pop(&idle).(use); here[u.tensor] && used[u.tensor] != k && u.next == next(u.tensor) {
				here[u.tensor] = false
				bytes -= p.Tensors[u.tensor].Bytes
			}
		}
		for _, x := range p.Ops[k].Operands {
			if here[x.Tensor] {
				heap.Push(&idle, use{x.Tensor, next(x.Tensor)})
			}
		}
	}
	return all
}

// use is when a tensor is used next.
type use struct {
	tensor int32
	next   int
}

// farthest is a heap of uses, the last one first.
type farthest []use

func (h farthest) Len() int { return len(h) }
func (h farthest) Less(i, j int) bool {
	return h[i].next > h[j].next || h[i].next == h[j].next && h[i].tensor < h[j].tensor
}
func (h farthest) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *farthest) Push(x any)   { *h = append(*h, x.(use)) }
func (h *farthest) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
