package again

import "math"

// network is a directed graph with capacities, of which a minimum cut is wanted. Capacities are whole numbers,
// so that the cut is exact.
type network struct {
	edges []edge    // an edge and the one back stand beside each other
	from  [][]int32 // by node: its edges
	level []int32
	tried []int32
}

type edge struct {
	to       int32
	capacity int64
}

// unbounded is a capacity that no cut goes through while there is another.
const unbounded = math.MaxInt64 / 1024

func (n *network) node() int32 {
	n.from = append(n.from, nil)
	return int32(len(n.from) - 1)
}

func (n *network) add(from, to int32, capacity int64) {
	n.from[from] = append(n.from[from], int32(len(n.edges)))
	n.edges = append(n.edges, edge{to, capacity})
	n.from[to] = append(n.from[to], int32(len(n.edges)))
	n.edges = append(n.edges, edge{from, 0})
}

// cut finds the minimum cut between two nodes by Dinic's algorithm. It returns what flows, and of every node whether it
// is on the source's side, which is the smallest that there is.
func (n *network) cut(source, sink int32) (flow int64, side []bool) {
	n.level, n.tried = make([]int32, len(n.from)), make([]int32, len(n.from))
	var queue []int32
	for n.layer(source, &queue); n.level[sink] > 0; n.layer(source, &queue) {
		clear(n.tried)
		for {
			pushed := n.push(source, sink, math.MaxInt64)
			if pushed == 0 {
				break
			}
			flow += pushed
		}
	}
	side = make([]bool, len(n.from))
	for i, l := range n.level {
		side[i] = l > 0
	}
	return flow, side
}

// layer numbers the nodes by how many edges with capacity left are between them and the source, from 1; 0 is out of reach.
func (n *network) layer(source int32, queue *[]int32) {
	clear(n.level)
	n.level[source] = 1
	*queue = append((*queue)[:0], source)
	for at := 0; at < len(*queue); at++ {
		u := (*queue)[at]
		for _, i := range n.from[u] {
			if e := n.edges[i]; e.capacity > 0 && n.level[e.to] == 0 {
				n.level[e.to] = n.level[u] + 1
				*queue = append(*queue, e.to)
			}
		}
	}
}

// push sends as much as one path of the layers carries, up to most.
func (n *network) push(u, sink int32, most int64) int64 {
	if u == sink {
		return most
	}
	for ; int(n.tried[u]) < len(n.from[u]); n.tried[u]++ {
		i := n.from[u][n.tried[u]]
		e := n.edges[i]
		if e.capacity == 0 || n.level[e.to] != n.level[u]+1 {
			continue
		}
		if pushed := n.push(e.to, sink, min(most, e.capacity)); pushed > 0 {
			n.edges[i].capacity -= pushed
			n.edges[i^1].capacity += pushed
			return pushed
		}
	}
	return 0
}
