package analyse

import (
	"math/bits"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// buckets is how finely time is divided; when it is used up, buckets merge in pairs.
const buckets = 512

// bucket is what happened in one stretch of time.
type bucket struct {
	faults, cpuFaults   int64
	in, out             int64
	prefetched, evicted int64
	resident            int64 // at most, bytes
}

// timeline counts over time with a fixed number of buckets, each 1 ms at first.
type timeline struct {
	width time.Duration
	all   []bucket
}

func (t *timeline) at(when time.Duration) *bucket {
	if t.width == 0 {
		t.width = time.Millisecond
	}
	for when/t.width >= buckets {
		t.width *= 2
		half := t.all[:0]
		for i := 0; i < len(t.all); i += 2 {
			b := t.all[i]
			if i+1 < len(t.all) {
				c := t.all[i+1]
				b.faults += c.faults
				b.cpuFaults += c.cpuFaults
				b.in += c.in
				b.out += c.out
				b.prefetched += c.prefetched
				b.evicted += c.evicted
				b.resident = max(b.resident, c.resident)
			}
			half = append(half, b)
		}
		t.all = half
	}
	for int(when/t.width) >= len(t.all) {
		t.all = append(t.all, bucket{})
	}
	return &t.all[when/t.width]
}

const (
	heatColumns = 96
	heatRows    = 2048 // distinct stretches of addresses; then stretches merge in pairs
)

// heat counts faults by stretch of addresses and of time.
type heat struct {
	shift uint // of an address; 2 MiB at first
	width time.Duration
	rows  map[uint64]*[heatColumns]uint32

	lastKey uint64
	last    *[heatColumns]uint32
}

func (h *heat) add(address uint64, when time.Duration) {
	if h.rows == nil {
		h.shift, h.width, h.rows = 21, time.Millisecond, map[uint64]*[heatColumns]uint32{}
	}
	for when/h.width >= heatColumns {
		h.width *= 2
		for _, r := range h.rows {
			for i := range heatColumns {
				var n uint32
				if 2*i+1 < heatColumns {
					n = saturate(r[2*i], r[2*i+1])
				}
				r[i] = n
			}
		}
	}
	key := address >> h.shift
	if h.last == nil || key != h.lastKey {
		r := h.rows[key]
		if r == nil {
			if len(h.rows) >= heatRows {
				h.coarsen()
				key = address >> h.shift
			}
			if r = h.rows[key]; r == nil {
				r = new([heatColumns]uint32)
				h.rows[key] = r
			}
		}
		h.lastKey, h.last = key, r
	}
	h.last[when/h.width] = saturate(h.last[when/h.width], 1)
}

func saturate(a, b uint32) uint32 {
	if a+b < a {
		return ^uint32(0)
	}
	return a + b
}

// coarsen merges stretches of addresses until half of the rows are free.
func (h *heat) coarsen() {
	for len(h.rows) > heatRows/2 {
		h.shift++
		merged := make(map[uint64]*[heatColumns]uint32, heatRows)
		for k, r := range h.rows {
			if m := merged[k>>1]; m != nil {
				for i := range r {
					m[i] = saturate(m[i], r[i])
				}
			} else {
				merged[k>>1] = r
			}
		}
		h.rows = merged
	}
	h.last = nil
}

// keys are the stretches in order of address.
func (h *heat) keys() []uint64 {
	keys := make([]uint64, 0, len(h.rows))
	for k := range h.rows {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// batches counts faults that the driver serviced together.
type batches struct {
	open       [256]batch // by GPU
	count      int64
	sizes      [batchClasses]int64 // batches by log2 of their faults
	most       int64
	spread     [batchClasses]int64 // batches by log2 of the blocks they touch
	duplicates int64               // faults on the page of the one before, in the same batch
}

const batchClasses = 16

type batch struct {
	id           uint32
	faults, wide int64
	block, page  uint64
}

func (s *batches) add(e *trace.Event) {
	b := &s.open[e.GPU]
	if b.faults > 0 && b.id != e.Batch {
		s.end(b)
	}
	block, page := e.Address/blockBytes, e.Address/pageBytes
	if b.faults > 0 && page == b.page {
		s.duplicates++
	}
	if b.faults == 0 || block != b.block {
		b.wide++
	}
	b.id, b.block, b.page = e.Batch, block, page
	b.faults++
}

func (s *batches) end(b *batch) {
	s.count++
	s.most = max(s.most, b.faults)
	s.sizes[min(log2(b.faults), batchClasses-1)]++
	s.spread[min(log2(b.wide), batchClasses-1)]++
	*b = batch{}
}

func (s *batches) finish() {
	for i := range s.open {
		if s.open[i].faults > 0 {
			s.end(&s.open[i])
		}
	}
}

func log2(n int64) int { return max(0, bits.Len64(uint64(max(n, 1)))-1) }
