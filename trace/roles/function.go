package roles

import (
	"regexp"
	"strings"
)

// Function is what a kernel's mangled name says of it.
type Function struct {
	Repeats bool // not known to give other results when it runs again, nor to reach memory that its parameters do not name
	Matrix  bool // a matrix product, a convolution or attention; else plain

	output outputs
}

// outputs is where a function has its outputs, as far as its name says.
type outputs uint8

const (
	outputUnknown    outputs = iota
	outputFirst              // and nowhere else
	outputMayBeFirst         // the first, if any was touched before
	outputAll                // everything is read and written
)

var (
	// Atomic additions in any order, random numbers from a state in memory, selections of the
	// library of scans and sorts, and tables of pointers (grouped products).
	unrepeatable = regexp.MustCompile(`(?i)embedding_backward|scatter|index_put|bprop|fmha_cutlassB|nll_loss_backward|multi_tensor|` +
		`radix|onesweep|DeviceScan|DeviceReduce|DeviceSelect|unique|GroupProblemShape|grouped|compute_grad_weight|random_from_to|atomic|max_pool_backward`)
	matrix = regexp.MustCompile(`(?i)nvjet|cutlass|xmma|gemm|cudnn|cublas|fmha|sdpa|cask|conv`)
)

// A kernel that writes to one operand only, whose address is the first in one of its parameters.
var writesOneParameter = []struct {
	pattern *regexp.Regexp
	index   int
}{
	// (n, functor, array of addresses, ...), of ATen's CUDALoops.cuh. The older elementwise_kernel has the addresses somewhere in its functor.
	{regexp.MustCompile(`2[0-9]vectorized_elementwise_kernelI|27unrolled_elementwise_kernelI`), 2},
	// (input, output, ...), of ATen's Normalization.cuh; in channels_last (input, z, mean, inv_std, weight, shift, output, ...).
	{regexp.MustCompile(`33batch_norm_transform_input_kernelI`), 1},
	{regexp.MustCompile(`batch_norm_transform_input_channels_last_kernelI`), 6},
}

// WritesOneParameter says, by a kernel's mangled name, which parameter begins with the address of the only operand that it
// writes to; -1 when the name tells no such thing. These kernels read nothing else that they write, and reach nothing that
// their parameters do not name.
func WritesOneParameter(name string) int {
	for _, w := range writesOneParameter {
		if w.pattern.MatchString(name) && !strings.Contains(name, "multi_outputs") && !unrepeatable.MatchString(name) {
			return w.index
		}
	}
	return -1
}

// OfFunction says what a kernel's name tells.
func OfFunction(name string) Function {
	f := Function{Repeats: !unrepeatable.MatchString(name), Matrix: matrix.MatchString(name)}
	switch {
	case strings.Contains(name, "multi_tensor"):
		f.output = outputAll
	case strings.Contains(name, "vectorized_elementwise_kernel"),
		strings.Contains(name, "unrolled_elementwise_kernel") && !strings.Contains(name, "multi_outputs"):
		f.output = outputFirst
	case strings.Contains(name, "18elementwise_kernelILi"), strings.Contains(name, "elementwise_kernelILi128"):
		f.output = outputMayBeFirst
	}
	return f
}
