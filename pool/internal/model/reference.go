package model

import (
	"fmt"
	"math/rand/v2"
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
)

// piece is physical memory that an allocation holds or held.
type piece struct {
	at, end int64
	live    bool
	uses    map[uint64]int // by stream: the work that may touch it
}

// Queue queues work on a stream.
func (m *Machine) Queue(stream uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queued[stream]++
}

// Finish finishes some of what is queued on a stream.
func (m *Machine) Finish(stream uint64, rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.queued[stream] - m.done[stream]; n > 0 {
		m.done[stream] += 1 + rng.IntN(n)
	}
}

// Claim checks that memory may be given to a stream, and notes that it is.
func (m *Machine) Claim(p cuda.Ptr, bytes int64, stream uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.physical(p, bytes) {
		list := m.held[e.handle]
		i := sort.Search(len(list), func(i int) bool { return list[i].end > e.at })
		j := i
		for ; j < len(list) && list[j].at < e.at+e.bytes; j++ {
			s := list[j]
			if s.live {
				return fmt.Errorf("handle %d [%d,%d) is given out twice: [%d,%d) is live", e.handle, e.at, e.at+e.bytes, s.at, s.end)
			}
			for other, until := range s.uses {
				if other != stream && m.done[other] < until {
					return fmt.Errorf("handle %d [%d,%d) is given to stream %d while stream %d is at %d of %d", e.handle, e.at, e.at+e.bytes, stream, other, m.done[other], until)
				}
			}
		}
		// What is covered in part lives on beside the new one.
		var with []*piece
		for _, s := range list[i:j] {
			if s.at < e.at {
				with = append(with, &piece{at: s.at, end: e.at, uses: s.uses})
			}
		}
		with = append(with, &piece{at: e.at, end: e.at + e.bytes, live: true, uses: map[uint64]int{}})
		for _, s := range list[i:j] {
			if s.end > e.at+e.bytes {
				with = append(with, &piece{at: e.at + e.bytes, end: s.end, uses: s.uses})
			}
		}
		m.held[e.handle] = append(list[:i:i], append(with, list[j:]...)...)
	}
	return nil
}

// Release notes that memory is no longer used after what is queued on the streams.
func (m *Machine) Release(p cuda.Ptr, bytes int64, streams []uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.physical(p, bytes) {
		list := m.held[e.handle]
		i := sort.Search(len(list), func(i int) bool { return list[i].end > e.at })
		if i == len(list) || !list[i].live || list[i].at != e.at || list[i].end != e.at+e.bytes {
			return fmt.Errorf("handle %d [%d,%d) is not what was given out", e.handle, e.at, e.at+e.bytes)
		}
		list[i].live = false
		for _, s := range streams {
			list[i].uses[s] = m.queued[s]
		}
	}
	return nil
}
