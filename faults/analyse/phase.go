package analyse

import "strings"

// phaseOf is the phase that a kernel's name tells, PhaseUnknown for the many that run in several.
func phaseOf(name string) Phase {
	n := strings.ToLower(name)
	for _, word := range []string{"multi_tensor_apply", "multitensorapply", "adam", "lamb", "adagrad", "rmsprop", "sgd"} {
		if strings.Contains(n, word) {
			return Optimizer
		}
	}
	for _, word := range []string{"backward", "_bwd", "bwd_", "dgrad", "wgrad", "bprop"} {
		if strings.Contains(n, word) {
			return Backward
		}
	}
	return PhaseUnknown
}

// phases follows the phases of training from the kernels' names: forward until the
// first kernel of a backward pass, backward until the first of an optimizer, and
// forward again, in the next iteration, at the first that is neither.
type phases struct {
	now       Phase
	known     bool // a name has told something
	iteration int  // counted by optimizer steps
	marks     int  // iteration marks seen; they win
	settle    int  // kernels that are neither since the last of the optimizer
}

// afterOptimizer is how many kernels may come between two of an optimizer's.
const afterOptimizer = 8

func (p *phases) launch(told Phase) Phase {
	switch told {
	case Optimizer:
		p.now, p.known, p.settle = Optimizer, true, 0
	case Backward:
		if p.now == Optimizer {
			p.iteration++
		}
		p.now, p.known = Backward, true
	default:
		if p.now == Optimizer {
			if p.settle++; p.settle > afterOptimizer {
				p.now = Forward
				p.iteration++
			}
		} else if p.now == PhaseUnknown && p.known {
			p.now = Forward
		}
	}
	return p.now
}

func (p *phases) mark() {
	p.marks++
	p.now, p.settle = Forward, 0
}
