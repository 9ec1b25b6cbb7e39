package again

import "sort"

// Class says whether an operation can be issued again.
type Class uint8

// The classes; a plan issues those up to Options.Most.
const (
	Never  Class = iota // it does not repeat, or reads what is not on the device
	Plain               // elementwise, normalisation, dropout, casts, copies and fills on the device
	Matrix              // matrix products, convolutions, attention
)

// Operand is a tensor that an operation names.
type Operand struct {
	Tensor        int32
	Reads, Writes bool
}

// Op is one operation of the job. It names no tensor twice.
type Op struct {
	Operands []Operand
	Seconds  float64
	Class    Class
}

// Tensor is one allocation, from its birth to its death: positions of the operations before which they happen.
// Death is the number of operations for what is never freed.
type Tensor struct {
	Bytes        int64
	Birth, Death int
	Workspace    bool // a library's, whose contents mean something from one launch to the next only
}

// Job is what is known of a program that repeats.
type Job struct {
	Ops        []Op
	Tensors    []Tensor
	Iterations []int // the operations with which iterations begin, and the end of the last
}

// mostMakers bounds how many operations made one version.
const mostMakers = 8

// workspaceReach is how many operations further on what one leaves in a workspace still means something.
const workspaceReach = 6

// InWorkspace says whether operation op finds in a workspace what operation writer, or -1 for none, left there.
func InWorkspace(writer, op int) bool {
	return writer >= 0 && op > writer && op-writer <= workspaceReach
}

// Planner makes plans for one job. It may be used from several goroutines.
type Planner struct {
	Job
	touches, writers [][]int32 // by tensor: operations, ascending
	began            []float64 // seconds before each operation, and the sum
	inPlace          []bool    // by operation: it works in place and has other outputs besides
}

// NewPlanner looks at a job, which stays as it is.
func NewPlanner(j Job) *Planner {
	p := &Planner{Job: j, touches: make([][]int32, len(j.Tensors)), writers: make([][]int32, len(j.Tensors)),
		began: make([]float64, len(j.Ops)+1), inPlace: make([]bool, len(j.Ops))}
	for k, o := range j.Ops {
		p.began[k+1] = p.began[k] + o.Seconds
		writes, both := 0, false
		for _, x := range o.Operands {
			p.touches[x.Tensor] = append(p.touches[x.Tensor], int32(k))
			if x.Writes {
				p.writers[x.Tensor] = append(p.writers[x.Tensor], int32(k))
			}
			if x.Writes && !j.Tensors[x.Tensor].Workspace {
				writes++
				both = both || x.Reads
			}
		}
		p.inPlace[k] = both && writes > 1
	}
	return p
}

// version is what a tensor holds from one of its writers on; none is -1, for what it held before all.
type version struct{ tensor, writer int32 }

const none = -1

// before is the version of a tensor that operation k finds.
func (p *Planner) before(tensor int32, k int) version {
	w := p.writers[tensor]
	i := sort.Search(len(w), func(i int) bool { return int(w[i]) >= k })
	if i == 0 {
		return version{tensor, none}
	}
	return version{tensor, w[i-1]}
}

// last says whether a version is the last of its tensor.
func (p *Planner) last(v version) bool {
	w := p.writers[v.tensor]
	return len(w) > 0 && w[len(w)-1] == v.writer
}

// written says whether a tensor is written in [from, to).
func (p *Planner) written(tensor int32, from, to int) bool {
	w := p.writers[tensor]
	i := sort.Search(len(w), func(i int) bool { return int(w[i]) >= from })
	return i < len(w) && int(w[i]) < to
}

// iteration is that of an operation; 0 is before the first.
func (p *Planner) iteration(k int) int { return sort.SearchInts(p.Iterations, k+1) }

// makers are the operations that give a version when they are issued in order, or nil when none do.
func (p *Planner) makers(v version, most Class) []int32 {
	t := &p.Tensors[v.tensor]
	iteration := p.iteration(t.Birth)
	if v.writer == none || t.Workspace || iteration == 0 || iteration != p.iteration(int(v.writer)) {
		return nil // it lives across iterations
	}
	w := p.writers[v.tensor]
	n := sort.Search(len(w), func(i int) bool { return w[i] > v.writer })
	if n > mostMakers {
		return nil
	}
	for _, k := range w[:n] {
		if p.Ops[k].Class == Never || p.Ops[k].Class > most || p.inPlace[k] {
			return nil
		}
	}
	for _, x := range p.Ops[w[0]].Operands {
		if x.Tensor == v.tensor && x.Reads {
			return nil // what nobody wrote
		}
	}
	return w[:n]
}

// left is the operation whose remains in a workspace operation k reads, or none.
func (p *Planner) left(workspace int32, k int) int32 {
	v := p.before(workspace, k)
	if !InWorkspace(int(v.writer), k) {
		return none
	}
	return v.writer
}
