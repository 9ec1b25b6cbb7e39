package hostpool

import "github.com/penstock-gpu/penstock/cuda"

// space is the pool's range of addresses and what makes memory of them.
type space interface {
	// base is a multiple of Granularity.
	base() cuda.Ptr
	// populate makes an extent's pages exist, with that many threads, or fails and leaves none.
	populate(e Extent, threads int) error
	// drop gives an extent's pages back.
	drop(e Extent)
	// release gives the addresses back.
	release() error
}

// imaginary is the space of a simulated GPU: addresses that are always the same, and no memory.
type imaginary struct{}

func (imaginary) base() cuda.Ptr             { return 0x7000_0000_0000 }
func (imaginary) populate(Extent, int) error { return nil }
func (imaginary) drop(Extent)                {}
func (imaginary) release() error             { return nil }
