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
	// PyTorch's older elementwise kernel, norms, dropout and concatenations.
	plainByTrial = regexp.MustCompile(`18elementwise_kernelILi128E|layer_norm_kernelI|RMSNorm|rms_norm|fused_dropout_kernel|CatArrayBatchedCopy`)
	// What takes indices or sequences' lengths from memory, or asserts something of what it reads: issued again with other contents it
	// would reach for memory that nobody has, or end the context.
	believes = regexp.MustCompile(`(?i)gather|index_kernel|index_elementwise|embedding|take_put|nll_loss|binary_cross_entropy|multinomial|assert|bucketize|varlen|paged|^_ZN5flash\d`)
	matrix   = regexp.MustCompile(`(?i)nvjet|cutlass|xmma|gemm|cudnn|cublas|fmha|sdpa|cask|flash_fwd|conv`)
)

// Operands is where a kernel's parameters have the addresses of its operands. It writes to one of them only, and reaches nothing
// else that it writes to.
type Operands struct {
	Written    int // the parameter that begins with the address of what it writes to
	Parameters []ParameterAddresses
}

// ParameterAddresses is a parameter that begins with addresses.
type ParameterAddresses struct{ Index, Addresses int }

// firstWords are parameters of which each begins with one address.
func firstWords(n int) (all []ParameterAddresses) {
	for i := range n {
		all = append(all, ParameterAddresses{i, 1})
	}
	return all
}

var (
	// (n, functor, array of addresses, ...), of ATen's CUDALoops.cuh; the output's is the first. The older elementwise_kernel has the
	// addresses somewhere in its functor.
	elementwise = regexp.MustCompile(`(?:2[0-9]vectorized_elementwise_kernelI|27unrolled_elementwise_kernelI).*5[aA]rrayIPcL[a-z]([1-9])E`)
	// (input, output, mean, invstd, weight, bias, ...), of ATen's Normalization.cuh; in channels_last (input, z, mean, inv_std, weight, shift, output, ...).
	batchNorm             = regexp.MustCompile(`33batch_norm_transform_input_kernelI`)
	batchNormChannelsLast = regexp.MustCompile(`batch_norm_transform_input_channels_last_kernelI`)
)

// OperandsOf says, by a kernel's mangled name, where the addresses of its operands are, if it is one that writes to one of them only;
// ok is false when the name tells no such thing.
func OperandsOf(name string) (o Operands, ok bool) {
	if strings.Contains(name, "multi_outputs") || unrepeatable.MatchString(name) || believes.MatchString(name) {
		return o, false
	}
	if m := elementwise.FindStringSubmatch(name); m != nil {
		return Operands{2, []ParameterAddresses{{2, int(m[1][0] - '0')}}}, true
	}
	switch {
	case batchNorm.MatchString(name):
		return Operands{1, firstWords(6)}, true
	case batchNormChannelsLast.MatchString(name):
		return Operands{6, firstWords(7)}, true
	}
	return o, false
}

// ByTrial says whether what a kernel writes to is worth trying out, as its name does not tell it, and whether it takes long: a matrix product, a
// convolution, attention.
func ByTrial(name string) (tried, long bool) {
	long = matrix.MatchString(name)
	return (long || plainByTrial.MatchString(name)) && !unrepeatable.MatchString(name) && !believes.MatchString(name), long
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
