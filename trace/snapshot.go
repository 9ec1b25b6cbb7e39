package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/pickle"
)

// snapshot imports what torch.cuda.memory._dump_snapshot writes: a pickled
// dictionary with the segments of the caching allocator as they were at that
// moment, and before that the newest of what happened (device_traces, one list a
// device). What was alive when the recording began is found by going backwards
// from there. Of several devices, the one on which most happened is taken.
//
// Sizes are as requested. An allocation lives until the allocator may give its
// memory out again (free_completed), as other streams may use it until then.
func (l *loader) snapshot(in io.Reader) error {
	damaged := func(offset int64, cause error, format string, args ...any) error {
		return &DamageError{Path: l.path, Offset: offset, Problem: "PyTorch memory snapshot: " + fmt.Sprintf(format, args...), Err: cause}
	}
	// Half of the limit is for the values of the pickle, half for the events.
	v, err := pickle.Read(in, l.limitBytes/2)
	var bad *pickle.Error
	if errors.As(err, &bad) {
		return damaged(bad.Offset, truncation(bad.Err), "%s", bad.Problem)
	} else if err != nil {
		return damaged(0, nil, "%v", err)
	}
	root, ok := v.(*pickle.Dict)
	if !ok || root.Get("segments") == nil {
		return fmt.Errorf("%s: %w: it is a pickle, but no memory snapshot (a dictionary with segments and device_traces): write one with torch.cuda.memory._dump_snapshot", l.path, ErrNotTrace)
	}
	s := snapshot{loader: l, addresses: map[uint64]uint64{}}
	device, entries := busiestDevice(root)
	segments, problem := s.segmentsOf(root, device)
	if problem == "" {
		problem = s.readEntries(entries)
	}
	if problem != "" {
		return damaged(0, nil, "%s", problem)
	}
	if len(s.entries) == 0 && len(s.blocks) == 0 {
		return fmt.Errorf("%s: the memory snapshot has neither allocations nor a history: call torch.cuda.memory._record_memory_history() before the work that it is to show", l.path)
	}
	l.trace.Header.Source = fmt.Sprintf("PyTorch memory snapshot, device %d", device)
	return s.build(segments)
}

// snapshot is the state of one import.
type snapshot struct {
	*loader
	entries   []snapshotEntry
	blocks    []snapshotBlock   // alive at the end
	addresses map[uint64]uint64 // address to id, of what is alive
	ids       uint64
	walked    int64 // values looked at, so that lists inside themselves end
}

type snapshotEntry struct {
	action              string
	address             uint64
	bytes, microseconds int64
	stream              uint64
}

type snapshotBlock struct {
	address uint64
	bytes   int64
	stream  uint64
}

// busiestDevice picks the device with the longest history, or with the first
// segment where there is none.
func busiestDevice(root *pickle.Dict) (device int, entries *pickle.List) {
	entries = &pickle.List{}
	traces, _ := root.Get("device_traces").(*pickle.List)
	if traces != nil {
		for i, t := range traces.Items {
			if list, ok := t.(*pickle.List); ok && len(list.Items) > len(entries.Items) {
				device, entries = i, list
			}
		}
	}
	if len(entries.Items) == 0 {
		if segments, ok := root.Get("segments").(*pickle.List); ok && len(segments.Items) > 0 {
			if first, ok := segments.Items[0].(*pickle.Dict); ok {
				if n, ok := first.Get("device").(int64); ok && n >= 0 && n < 1<<16 {
					device = int(n)
				}
			}
		}
	}
	return device, entries
}

// walk says whether one more value may be looked at.
func (s *snapshot) walk() bool {
	s.walked++
	return s.walked <= s.limitBytes/64
}

const tooMuch = "it refers to the same values again and again"

// segmentsOf adds up the reserved bytes and collects the blocks that are alive.
func (s *snapshot) segmentsOf(root *pickle.Dict, device int) (reserved int64, problem string) {
	segments, ok := root.Get("segments").(*pickle.List)
	if !ok {
		return 0, "its segments are no list"
	}
	for _, v := range segments.Items {
		segment, ok := v.(*pickle.Dict)
		if !ok || !s.walk() {
			return 0, "a segment is no dictionary, or there are too many"
		}
		if n, ok := segment.Get("device").(int64); ok && n != int64(device) {
			continue
		}
		total, okTotal := number(segment.Get("total_size"))
		address, okAddress := address64(segment.Get("address"))
		blocks, okBlocks := segment.Get("blocks").(*pickle.List)
		if !okTotal || !okBlocks {
			return 0, "a segment has no total_size or no blocks"
		}
		reserved = addBytes(reserved, total)
		stream, _ := address64(segment.Get("stream"))
		for _, v := range blocks.Items {
			block, ok := v.(*pickle.Dict)
			if !ok || !s.walk() {
				return 0, tooMuch
			}
			size, okSize := number(block.Get("size"))
			if !okSize {
				return 0, "a block has no size"
			}
			at := address
			if a, ok := address64(block.Get("address")); ok { // older ones have none
				at, okAddress = a, true
			}
			address += uint64(size)
			state, _ := block.Get("state").(string)
			if state == "inactive" || state == "" {
				continue
			}
			if !okAddress {
				return 0, "a block has no address"
			}
			if n, ok := number(block.Get("requested_size")); ok && n <= size {
				size = n
			}
			if s.charge(64) {
				return 0, tooMuch
			}
			s.blocks = append(s.blocks, snapshotBlock{at, size, stream})
		}
	}
	return reserved, ""
}

// charge takes memory and says whether it was too much.
func (s *snapshot) charge(bytes int64) bool {
	s.usedBytes += bytes
	return s.usedBytes > s.limitBytes/2
}

func (s *snapshot) readEntries(list *pickle.List) (problem string) {
	for i, v := range list.Items {
		d, ok := v.(*pickle.Dict)
		if !ok || !s.walk() || s.charge(80) {
			return fmt.Sprintf("entry %d of the history is no dictionary, or there are too many", i)
		}
		e := snapshotEntry{}
		if e.action, ok = d.Get("action").(string); !ok {
			return fmt.Sprintf("entry %d of the history has no action", i)
		}
		switch e.action {
		case "alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap":
		default:
			continue // free_requested, snapshot, oom, annotations
		}
		var okAddress, okSize bool
		e.address, okAddress = address64(d.Get("addr"))
		e.bytes, okSize = number(d.Get("size"))
		if !okAddress || !okSize {
			return fmt.Sprintf("entry %d of the history (%s) has no addr or no size", i, e.action)
		}
		e.stream, _ = address64(d.Get("stream"))
		e.microseconds, _ = number(d.Get("time_us"))
		s.entries = append(s.entries, e)
	}
	return ""
}

// number is a size or a time: an integer that is not negative and not absurd.
func number(v any) (int64, bool) {
	n, ok := v.(int64)
	return n, ok && n >= 0 && n <= maxLiveBytes
}

// address64 is an address or a stream.
func address64(v any) (uint64, bool) {
	switch n := v.(type) {
	case int64:
		return uint64(n), true
	case uint64:
		return n, true
	}
	return 0, false
}

// build makes events: first what was alive before the history begins, then the history.
func (s *snapshot) build(reservedAtEnd int64) error {
	before, reserved := s.rewind(reservedAtEnd)
	s.reserve(reserved)
	for _, b := range before {
		if err := s.alloc(b.address, b.bytes, b.stream, 0); err != nil {
			return err
		}
	}
	var begun int64
	for i := range s.entries {
		e := &s.entries[i]
		if i == 0 {
			begun = e.microseconds
		}
		at := time.Duration(min(max(e.microseconds-begun, 0), math.MaxInt64/1000)) * time.Microsecond
		var err error
		switch e.action {
		case "alloc":
			if s.addresses[e.address] != 0 {
				err = s.free(e.address, at) // its free is lost
			}
			if err == nil {
				err = s.alloc(e.address, e.bytes, e.stream, at)
			}
		case "free_completed":
			err = s.free(e.address, at)
		case "segment_alloc", "segment_map":
			reserved = addBytes(reserved, e.bytes)
			s.reserve(reserved)
		case "segment_free", "segment_unmap":
			reserved = max(0, reserved-e.bytes)
			s.reserve(reserved)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rewind finds what was alive, and how much was reserved, before the history.
func (s *snapshot) rewind(reserved int64) ([]snapshotBlock, int64) {
	alive := make(map[uint64]snapshotBlock, len(s.blocks))
	for _, b := range s.blocks {
		alive[b.address] = b
	}
	for i := len(s.entries) - 1; i >= 0; i-- {
		switch e := &s.entries[i]; e.action {
		case "alloc":
			delete(alive, e.address)
		case "free_completed":
			alive[e.address] = snapshotBlock{e.address, e.bytes, e.stream}
		case "segment_alloc", "segment_map":
			reserved = max(0, reserved-e.bytes)
		case "segment_free", "segment_unmap":
			reserved = addBytes(reserved, e.bytes)
		}
	}
	blocks := make([]snapshotBlock, 0, len(alive))
	for _, b := range alive {
		blocks = append(blocks, b)
	}
	slices.SortFunc(blocks, func(a, b snapshotBlock) int { return cmp.Compare(a.address, b.address) })
	return blocks, reserved
}

func (s *snapshot) alloc(address uint64, bytes int64, stream uint64, at time.Duration) error {
	s.ids++
	s.addresses[address] = s.ids
	return s.add(Event{Kind: KindAlloc, Alloc: s.ids, Bytes: bytes, Address: address, Stream: stream, Time: at})
}

// free ends what is alive at an address; what is not, never was in the history.
func (s *snapshot) free(address uint64, at time.Duration) error {
	id, ok := s.addresses[address]
	if !ok {
		return nil
	}
	delete(s.addresses, address)
	return s.add(Event{Kind: KindFree, Alloc: id, Time: at})
}

// reserve notes how much the allocator had reserved from here on.
func (l *loader) reserve(bytes int64) {
	at := len(l.trace.Events)
	if n := len(l.trace.Reserved); n > 0 && l.trace.Reserved[n-1].Event == at {
		l.trace.Reserved[n-1].Bytes = bytes
	} else {
		l.trace.Reserved = append(l.trace.Reserved, Reserved{at, bytes})
	}
	l.trace.Header.ReportedReservedBytes = max(l.trace.Header.ReportedReservedBytes, bytes)
}
