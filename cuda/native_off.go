//go:build !cgo || !linux

package cuda

// Open reports that this build has no driver binding.
func Open(Options) (Driver, error) { return nil, errNoBinding }

// Probe reports the same.
func Probe(Options) (Survey, error) { return Survey{}, errNoBinding }

var errNoBinding = &OpenError{Reason: ErrUnavailable, What: "this build has no CUDA driver binding",
	Do: "build on Linux with CGO_ENABLED=1, or use `penstock simulate`"}
