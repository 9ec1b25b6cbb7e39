package kernels

import (
	"fmt"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// blocksPerMultiprocessor blocks of blockThreads fill a multiprocessor.
const blocksPerMultiprocessor = 8

// unknownMultiprocessors stands in where the driver does not say.
const unknownMultiprocessors = 108

// bytesPerBlock is what a block is worth starting for: each writes its sums over the bus.
const bytesPerBlock = 256 << 10

const sumBytes = 16 // of one block

// Kernels is Penstock's device code on one card. Its methods may be called from
// several threads, each bound to the device.
type Kernels struct {
	driver    cuda.Driver
	module    cuda.Module
	checksum  cuda.Function
	scan      cuda.Function
	collect   cuda.Function
	maxBlocks int64
}

// Load compiles the device code for the card of d, and compares what it computes
// with the Go functions on a little memory: an engine that decides by them
// must not run on a card or compiler that gets them wrong.
func Load(d cuda.Driver) (*Kernels, error) {
	k := &Kernels{driver: d}
	var err error
	if k.module, err = d.LoadModule([]byte(ptx())); err != nil {
		return nil, fmt.Errorf("the driver does not take Penstock's device code: %w", err)
	}
	for name, f := range map[string]*cuda.Function{checksumName: &k.checksum, scanName: &k.scan, collectName: &k.collect} {
		if err == nil {
			*f, err = d.ModuleFunction(k.module, name)
		}
	}
	if err == nil {
		n := d.Info().Multiprocessors
		if n <= 0 {
			n = unknownMultiprocessors
		}
		k.maxBlocks = int64(n) * blocksPerMultiprocessor
		err = k.Check(16 * bytesPerBlock)
	}
	if err != nil {
		_ = d.UnloadModule(k.module)
		return nil, err
	}
	return k, nil
}

// Unload drops the device code. Nothing of it may run any more.
func (k *Kernels) Unload() error { return k.driver.UnloadModule(k.module) }

func (k *Kernels) blocks(bytes int64) uint32 {
	return uint32(min(k.maxBlocks, (bytes+bytesPerBlock-1)/bytesPerBlock))
}

func badRange(r cuda.Range, align cuda.Ptr) error {
	if r.Bytes <= 0 || r.Base == 0 || r.Base%align != 0 {
		return fmt.Errorf("range of %d bytes at %#x: it must have bytes and begin at a multiple of %d", r.Bytes, uint64(r.Base), align)
	}
	return nil
}

// SumBytes is the memory that a checksum writes to: pinned, at a multiple of 16.
func (k *Kernels) SumBytes() int64 { return k.maxBlocks * sumBytes }

// Checksum queues the checksum of a range, which begins at a multiple of 16.
// Once the stream has passed it, Sum reads it from out.
func (k *Kernels) Checksum(r cuda.Range, out cuda.Ptr, s cuda.Stream) error {
	if err := badRange(r, 16); err != nil {
		return fmt.Errorf("checksum of a %w", err)
	}
	return k.driver.Launch(k.checksum, [3]uint32{k.blocks(r.Bytes), 1, 1}, [3]uint32{blockThreads, 1, 1}, s,
		uint64(r.Base), uint64(r.Bytes/16), uint64(r.Bytes%16), uint64(out))
}

// Sum adds up what the checksum of a range of bytes left at out. The stream of
// that checksum has passed it.
func (k *Kernels) Sum(bytes int64, out cuda.Ptr) Sum128 {
	var s Sum128
	for pairs := words(out, 2*int64(k.blocks(bytes))); len(pairs) > 0; pairs = pairs[2:] {
		s[0] += pairs[0]
		s[1] += pairs[1]
	}
	return s
}

// words is pinned memory, as the host sees it.
func words(p cuda.Ptr, n int64) []uint64 {
	return unsafe.Slice((*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}
