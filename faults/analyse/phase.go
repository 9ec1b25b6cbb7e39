package analyse

import "strings"

// Words in the names of kernels, in lower case, that tell the phase. A backward
// kernel may have "forward" in the names of its parameters' types, and not the
// other way round, so the order of the phases counts.
var phaseWords = []struct {
	phase Phase
	words []string
}{
	// Optimizers fused, by lists of tensors, and by one tensor at a time (Adam's lerp and addcdiv).
	{Optimizer, []string{"multi_tensor_apply", "multitensorapply", "adam", "lambstage", "adagrad", "rmsprop", "sgd", "lerp_scalar_kernel", "addcdiv"}},
	{Backward, []string{"backward", "_bwd", "bwd_", "dgrad", "wgrad", "bprop", "grad_input", "cutlassb_"}},
	{Forward, []string{"forward", "_fwd", "fwd_", "fprop", "cutlassf_"}},
}

// phaseOf is the phase that a kernel's name tells, PhaseUnknown for the many that run in several.
func phaseOf(name string) Phase {
	n := strings.ToLower(name)
	for _, p := range phaseWords {
		for _, word := range p.words {
			if strings.Contains(n, word) {
				return p.phase
			}
		}
	}
	return PhaseUnknown
}

// phases follows the phases of training from the kernels' names: forward until the
// first kernel of a backward pass, backward until the first of an optimizer, and
// forward again, in the next iteration, at the first of a forward pass or after a
// few that are neither. What comes before the first kernel that tells anything
// (making the weights, loading) is PhaseUnknown.
//
// Activation checkpointing runs forward kernels within the backward pass; they
// belong to it. Only where no optimizer is recognised, and nothing of the
// backward pass has come for long, is a forward kernel the next iteration's.
type phases struct {
	now       Phase
	iteration int // counted by optimizer steps
	marks     int // iteration marks seen; they win
	settle    int // launches since the last that told the present phase
}

const (
	afterOptimizer = 8   // launches that may come between two of an optimizer's
	afterBackward  = 256 // and between two of a backward pass, with recomputation between
)

func (p *phases) launch(told Phase) {
	next := p.now
	p.settle++
	switch {
	case told == p.now:
		p.settle = 0
	case told == Optimizer, told == Backward:
		next = told
	case p.now == Optimizer && (told == Forward || p.settle > afterOptimizer):
		next = Forward
	case told == Forward && (p.now == PhaseUnknown || p.now == Backward && p.settle > afterBackward):
		next = Forward
	}
	if next == p.now {
		return
	}
	if p.now == Optimizer || p.now == Backward && next == Forward {
		p.iteration++
	}
	p.now, p.settle = next, 0
}

func (p *phases) mark() {
	p.marks++
	p.now, p.settle = Forward, 0
}
