package sim

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// Options of New. The zero value is the profile's card without limits.
type Options struct {
	// CapacityBytes is the device memory; 0 is the profile's.
	CapacityBytes int64
	// ManagedLimitBytes caps the sum of live managed memory as cuda.Options does; 0 is no cap.
	ManagedLimitBytes int64
	// DirectMoves says that prefetches ask the unified-memory driver itself (its
	// ioctls), not through libcuda. Then moves both ways overlap: a move to the
	// host maps its pages for the CPU, one block after another, while moves to the
	// device go on. Measured on the H200 (bench/probe): 10 to 15 GB/s out beside
	// 33 in; through libcuda, whose own lock serializes them, 16 together.
	DirectMoves bool
}

// GPU is one simulated card with its driver. See the package comment.
type GPU struct {
	memory

	bus         [2]direction
	uvm         server
	mapper      server // maps host pages, where moves are direct
	directMoves bool
	faultThread server
	engines     [2]copyEngine
	streams     map[cuda.Stream]*stream
	events      map[cuda.Event]*eventState
	words       map[cuda.Ptr]*counter // written by StreamWriteValue32
	nextObject  uintptr
	roomWaiters []func()
	inFlight    []*slice // in order of their start
	held        int      // compute streams that wait
	accounted   time.Duration
	fault       *cuda.Error
}

// New makes an idle card with empty memory at time 0.
func New(p Profile, o Options) *GPU {
	g := &GPU{
		memory:      memory{profile: p, capacityBytes: o.CapacityBytes, limitBytes: o.ManagedLimitBytes, handles: map[cuda.Handle]*handle{}},
		directMoves: o.DirectMoves,
		words:       map[cuda.Ptr]*counter{},
		streams:     map[cuda.Stream]*stream{},
		events:      map[cuda.Event]*eventState{},
	}
	if g.capacityBytes == 0 {
		g.capacityBytes = p.MemoryBytes
	}
	for k := range g.nextAddress {
		g.nextAddress[k] = firstAddress + cuda.Ptr(k)*addressWindow
	}
	g.streams[0] = &stream{id: 0}
	return g
}

// Profile is the card's profile.
func (g *GPU) Profile() Profile { return g.profile }

// Err is the error that the card is stuck with, such as an illegal address in a
// kernel; nil when it is well. As on a real one, every later synchronisation returns it.
func (g *GPU) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sticky()
}

func (g *GPU) sticky() error {
	if g.fault == nil {
		return nil
	}
	return g.fault
}

// perByte is the time that bytes take at a rate.
func perByte(bytes int64, bytesPerSecond float64) time.Duration {
	return time.Duration(float64(bytes) / bytesPerSecond * 1e9)
}

// perGiB is the cost of bytes at so much per GiB.
func perGiB(bytes int64, cost time.Duration) time.Duration {
	return time.Duration(float64(bytes) / float64(gib) * float64(cost))
}

// perBlock is the cost of bytes at so much per 2 MiB.
func perBlock(bytes int64, cost time.Duration) time.Duration {
	return time.Duration(float64(bytes) / float64(blockBytes) * float64(cost))
}
