// Package segments is how memory is laid out at a moment, as whoever gives it out says: for pictures of it, such as PyTorch's
// memory snapshots. Segments do not overlap, and the blocks of each cover it in order of address: [Check] verifies that.
// What is mapped at several addresses is shown at those where it is allocated, and once. The JSON keys are those
// of penstock_snapshot (cabi/penstock.h).
package segments

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
)

// State is what a block is to its allocator, in PyTorch's words.
type State string

// States.
const (
	Allocated    State = "active_allocated"
	AwaitingFree State = "active_awaiting_free" // freed, and other streams are not done with it
	Inactive     State = "inactive"
)

// Block is a part of a segment: an allocation, or what lies between them.
type Block struct {
	Address   cuda.Ptr `json:"address"`
	Bytes     int64    `json:"size"`
	Requested int64    `json:"requested_size"` // 0 of what is inactive
	State     State    `json:"state"`
}

// Segment is memory of one stream in one piece. Its blocks cover it, by address.
type Segment struct {
	Address  cuda.Ptr  `json:"address"`
	Bytes    int64     `json:"total_size"`
	Stream   uint64    `json:"stream"` // its handle
	Small    bool      `json:"small"`  // it is for small requests alone
	Tensor   bool      `json:"tensor"` // it can leave the device, and is made for what is allocated in it
	Pool     [2]uint64 `json:"pool"`   // the private pool that has it; zero: none
	OnDevice int64     `json:"on_device_bytes"`
	Blocks   []Block   `json:"blocks"`
}

// Append puts a block behind the others; one that is inactive joins such a one before it.
func (s *Segment) Append(bytes, requested int64, state State) {
	at := s.End()
	s.Bytes += bytes
	if n := len(s.Blocks); n > 0 && state == Inactive && s.Blocks[n-1].State == Inactive {
		s.Blocks[n-1].Bytes += bytes
		return
	}
	s.Blocks = append(s.Blocks, Block{Address: at, Bytes: bytes, Requested: requested, State: state})
}

// FillTo makes what is missing up to an address one inactive block.
func (s *Segment) FillTo(end cuda.Ptr) {
	if missing := int64(end) - int64(s.End()); missing > 0 {
		s.Append(missing, 0, Inactive)
	}
}

// End is the first address behind it.
func (s *Segment) End() cuda.Ptr { return s.Address + cuda.Ptr(s.Bytes) }

// Sort puts segments in order of address.
func Sort(all []Segment) {
	slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Address, b.Address) })
}

// Check sorts segments and verifies the invariants, and that what is allocated in them adds up to so many bytes, as asked for.
func Check(all []Segment, live int64) error {
	Sort(all)
	end := cuda.Ptr(0)
	for _, s := range all {
		if s.Address < end {
			return fmt.Errorf("the segment at %#x begins before the one before it ends, at %#x", uint64(s.Address), uint64(end))
		}
		if s.OnDevice < 0 || s.OnDevice > s.Bytes {
			return fmt.Errorf("the segment at %#x has %d bytes, %d of them on the device", uint64(s.Address), s.Bytes, s.OnDevice)
		}
		end = s.Address
		for _, b := range s.Blocks {
			if b.Address != end || b.Bytes <= 0 || b.Requested > b.Bytes || (b.State == Inactive) != (b.Requested == 0) {
				return fmt.Errorf("the segment at %#x has the block %+v at %#x", uint64(s.Address), b, uint64(end))
			}
			if end += cuda.Ptr(b.Bytes); b.State == Allocated {
				live -= b.Requested
			}
		}
		if end != s.End() {
			return fmt.Errorf("the blocks of the segment at %#x end at %#x, and it at %#x", uint64(s.Address), uint64(end), uint64(s.End()))
		}
	}
	if live != 0 {
		return fmt.Errorf("%d live bytes are in no segment", live)
	}
	return nil
}
