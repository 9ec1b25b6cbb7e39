package stitch

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// Driver is what the pool needs of a cuda.Driver: physical memory and mappings.
type Driver interface {
	BindThread() error
	MemCreate(bytes int64, l cuda.Location) (cuda.Handle, error)
	MemRelease(h cuda.Handle) error
	AddressReserve(bytes, align int64, hint cuda.Ptr) (cuda.Ptr, error)
	AddressFree(p cuda.Ptr, bytes int64) error
	Map(p cuda.Ptr, bytes int64, h cuda.Handle) error
	Unmap(p cuda.Ptr, bytes int64) error
	SetAccess(p cuda.Ptr, bytes int64) error
	Granularity() int64
}

// Budget is the physical memory that a pool may take. It may be shared.
type Budget interface {
	// Take asks for device memory. Its error is what Malloc fails with when nothing else helps.
	Take(bytes int64) error
	Give(bytes int64)
}

// Fences order the reuse of memory after work on a stream.
type Fences interface {
	// Fence marks the present end of a stream's queue.
	Fence(stream uint64) (fence any, err error)
	// Passed says whether the stream has got there, and forgets the fence if so.
	Passed(fence any) bool
	// Wait waits until it has, and forgets the fence.
	Wait(fence any) error
}

// Strategy says when scattered memory is stitched.
type Strategy int

// The strategies. GMLake's defragLevel is 0 for Eager and 1 for Lazy.
const (
	Eager Strategy = iota // before new physical memory is created
	Lazy                  // only when no more physical memory is to be had
	Never
)

// Config holds the limits of a pool. The zero value has the defaults, which
// options/table.go documents.
type Config struct {
	Strategy Strategy
	// MinBytes is the smallest request that is stitched (GMLake's fragLimit).
	MinBytes int64
	// ReuseRatio is how much larger than a request an existing stitched range may be
	// to serve it (GMLake's reuseLimit). It costs addresses, not memory.
	ReuseRatio float64
	// SpaceBytes bounds the address space of stitched ranges (GMLake's autoGC): the
	// least recently used that is free goes first.
	SpaceBytes int64
	// ReserveBytes is the address space of an arena; the device's memory or more.
	ReserveBytes int64
}

const (
	pageBytes  = 2 << 20 // least physical unit
	blockBytes = 512     // granularity of blocks, as in PyTorch's allocator
	smallBytes = 1 << 20 // largest request that lies among small ones

	defaultMinBytes   = 8 << 20
	defaultReuseRatio = 10
	defaultSpaceBytes = 256 << 30
	defaultReserve    = 1 << 40
)

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.MinBytes, defaultMinBytes)
	set(&c.SpaceBytes, defaultSpaceBytes)
	set(&c.ReserveBytes, defaultReserve)
	if c.ReuseRatio == 0 {
		c.ReuseRatio = defaultReuseRatio
	}
	c.ReserveBytes = roundUp(c.ReserveBytes, pageBytes)
	return c
}

func (c Config) validate() error {
	switch {
	case c.Strategy < Eager || c.Strategy > Never:
		return fmt.Errorf("stitch strategy %d is unknown", c.Strategy)
	case c.MinBytes < 0 || c.SpaceBytes < 0 || c.ReserveBytes < 0:
		return fmt.Errorf("a limit of the pool cannot be negative")
	case c.ReuseRatio != 0 && !(c.ReuseRatio >= 1):
		return fmt.Errorf("a stitched range cannot serve requests larger than itself: the reuse ratio of %v is below 1", c.ReuseRatio)
	}
	return nil
}

func roundUp(x, to int64) int64   { return (x + to - 1) / to * to }
func roundDown(x, to int64) int64 { return x / to * to }

// chunkBytes is the size of the physical handles that a growth by so many bytes is
// made of. Every operation on mappings costs by the handle and not by the byte
// (set access: 27 us for 2 MiB, 25 us for 32 MiB), but what is to be stitched or planned has to be
// free by whole handles, and of one that holds a bit of something lasting the rest is lost.
// A thirty-second of the request or less, and at most 4 MiB, is a compromise between the two: in
// recorded jobs 64 MiB loses up to 1.7 % of the memory, 8 MiB 0.9, and 4 MiB 0.6.
func chunkBytes(growth int64) int64 {
	n := int64(pageBytes)
	for n < maxChunkBytes && n*64 <= growth {
		n *= 2
	}
	return n
}

const maxChunkBytes = 4 << 20
