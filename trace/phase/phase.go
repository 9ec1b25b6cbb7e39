package phase

import "strings"

// Phase is a part of a training iteration.
type Phase uint8

// Phases. A job whose kernels' names tell nothing is all Unknown.
const (
	Unknown Phase = iota
	Forward
	Backward
	Optimizer

	Count
)

var names = [Count]string{"unknown", "forward", "backward", "optimizer"}

func (p Phase) String() string {
	if p < Count {
		return names[p]
	}
	return names[Unknown]
}

// Words in the names of kernels, in lower case, that tell the phase. A backward
// kernel may have "forward" in the names of its parameters' types, and not the
// other way round, so the order of the phases counts.
var words = []struct {
	phase Phase
	words []string
}{
	// Optimizers fused, by lists of tensors, and by one tensor at a time (Adam's lerp and addcdiv).
	{Optimizer, []string{"multi_tensor_apply", "multitensorapply", "adam", "lambstage", "adagrad", "rmsprop", "sgd", "lerp_scalar_kernel", "addcdiv"}},
	{Backward, []string{"backward", "_bwd", "bwd_", "dgrad", "wgrad", "bprop", "grad_input", "cutlassb_"}},
	{Forward, []string{"forward", "_fwd", "fwd_", "fprop", "cutlassf_"}},
}

// Of is the phase that a kernel's name tells, Unknown for the many that run in several.
func Of(name string) Phase {
	n := strings.ToLower(name)
	for _, p := range words {
		for _, word := range p.words {
			if strings.Contains(n, word) {
				return p.phase
			}
		}
	}
	return Unknown
}

// Tracker follows the phases of training from the kernels' names: forward until the
// first kernel of a backward pass, backward until the first of an optimizer, and
// forward again, in the next iteration, at the first of a forward pass or after a
// few that are neither. What comes before the first kernel that tells anything
// (making the weights, loading) is Unknown.
//
// Activation checkpointing runs forward kernels within the backward pass; they
// belong to it. Only where no optimizer is recognised, and nothing of the
// backward pass has come for long, is a forward kernel the next iteration's.
type Tracker struct {
	Now       Phase
	Iteration int // that have ended; counted by optimizer steps
	settle    int // launches since the last that told the present phase
}

const (
	afterOptimizer = 8   // launches that may come between two of an optimizer's
	afterBackward  = 256 // and between two of a backward pass, with recomputation between
)

// Launch takes what a launch's name tells.
func (p *Tracker) Launch(told Phase) {
	next := p.Now
	p.settle++
	switch {
	case told == p.Now:
		p.settle = 0
	case told == Optimizer, told == Backward:
		next = told
	case p.Now == Optimizer && (told == Forward || p.settle > afterOptimizer):
		next = Forward
	case told == Forward && (p.Now == Unknown || p.Now == Backward && p.settle > afterBackward):
		next = Forward
	}
	if next == p.Now {
		return
	}
	if p.Now == Optimizer || p.Now == Backward && next == Forward {
		p.Iteration++
	}
	p.Now, p.settle = next, 0
}

// Begin begins an iteration, for who knows better.
func (p *Tracker) Begin() {
	p.Now, p.settle = Forward, 0
}
