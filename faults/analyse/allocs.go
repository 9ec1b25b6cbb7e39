package analyse

import (
	"fmt"

	"github.com/google/btree"

	"github.com/penstock-gpu/penstock/trace"
)

const (
	maxLive    = 1 << 20 // allocations that are live at a time
	maxDead    = 1 << 14 // that are remembered after their death: work on them may still run
	lookAtDead = 16      // of them at an address
	maxRows    = 1 << 16 // of the table of allocations
)

// allocRow is what is counted for allocations that are the same from one
// iteration to the next: of the same place in the program, or of the same size
// at the same address.
type allocRow struct {
	site      string
	address   uint64 // of the last one
	bytes     int64
	count     int64
	faults    CauseCounts
	in, out   int64 // bytes migrated
	wasted    int64 // came by prefetch and left without a launch that names it
	refetches int64
	distance  int64 // launches between leaving and coming back, summed
}

// alloc is one allocation.
type alloc struct {
	id      uint64
	address uint64
	bytes   int64
	row     *allocRow
	dead    bool
	named   int64 // number of the last launch that named it
}

func (a *alloc) holds(address uint64) bool { return address-a.address < uint64(a.bytes) }

type rowKey struct {
	site    string
	address uint64
	bytes   int64
}

// allocs finds allocations by id and address.
type allocs struct {
	byID          map[uint64]*alloc
	liveByAddress *btree.BTreeG[*alloc]
	deadByAddress *btree.BTreeG[*alloc]
	dead          []*alloc // a ring
	deadNext      int
	rows          map[rowKey]*allocRow
	others        *allocRow
	unknown       *allocRow
	refused       int64 // allocations beyond the limit
	last          *alloc
	overflowed    bool
}

func byAddress(a, b *alloc) bool {
	return a.address < b.address || a.address == b.address && a.id < b.id
}

func newAllocs() allocs {
	return allocs{
		byID: map[uint64]*alloc{}, rows: map[rowKey]*allocRow{}, unknown: &allocRow{site: "(no allocation known)"},
		liveByAddress: btree.NewG(32, byAddress), deadByAddress: btree.NewG(32, byAddress),
	}
}

// add notes a new allocation; nil when there is no room for it, or it is none.
func (s *allocs) add(e *trace.Event) *alloc {
	if len(s.byID) >= maxLive+maxDead || e.Bytes <= 0 || e.Address+uint64(e.Bytes) < e.Address {
		s.refused++
		return nil
	}
	if old := s.byID[e.Alloc]; old != nil {
		s.forget(old)
	}
	a := &alloc{id: e.Alloc, address: e.Address, bytes: e.Bytes, row: s.row(e)}
	a.row.count++
	a.row.address = e.Address
	s.byID[a.id] = a
	s.liveByAddress.ReplaceOrInsert(a)
	return a
}

func (s *allocs) row(e *trace.Event) *allocRow {
	k := rowKey{site: clip(e.Name), bytes: e.Bytes}
	if k.site == "" {
		k.address = e.Address
	}
	r := s.rows[k]
	if r != nil {
		return r
	}
	if len(s.rows) >= maxRows {
		s.overflowed = true
		if s.others == nil {
			s.others = &allocRow{site: "(others)"}
		}
		return s.others
	}
	r = &allocRow{site: k.site, bytes: e.Bytes}
	s.rows[k] = r
	return r
}

// free ends an allocation; its id stays known for a while.
func (s *allocs) free(id uint64) *alloc {
	a := s.byID[id]
	if a == nil || a.dead {
		return nil
	}
	a.dead = true
	s.liveByAddress.Delete(a)
	s.deadByAddress.ReplaceOrInsert(a)
	if s.last == a {
		s.last = nil
	}
	if len(s.dead) < maxDead {
		s.dead = append(s.dead, a)
		return a
	}
	oldest := s.dead[s.deadNext]
	s.deadByAddress.Delete(oldest)
	if s.byID[oldest.id] == oldest {
		delete(s.byID, oldest.id)
	}
	s.dead[s.deadNext] = a
	s.deadNext = (s.deadNext + 1) % maxDead
	return a
}

func (s *allocs) forget(a *alloc) {
	s.liveByAddress.Delete(a)
	s.deadByAddress.Delete(a)
	delete(s.byID, a.id)
	if s.last == a {
		s.last = nil
	}
}

// at is the live allocation that an address lies in, or else the youngest dead one.
func (s *allocs) at(address uint64) *alloc {
	if s.last != nil && s.last.holds(address) {
		return s.last
	}
	var found *alloc
	s.liveByAddress.DescendLessOrEqual(&alloc{address: address, id: ^uint64(0)}, func(a *alloc) bool {
		if a.holds(address) {
			found = a
		}
		return false
	})
	if found != nil {
		s.last = found
		return found
	}
	// A program frees memory as soon as the last kernel that uses it is launched.
	looked := 0
	s.deadByAddress.DescendLessOrEqual(&alloc{address: address, id: ^uint64(0)}, func(a *alloc) bool {
		if a.holds(address) && (found == nil || a.id > found.id) {
			found = a
		}
		looked++
		return looked < lookAtDead
	})
	return found
}

// named is the allocation among those of an operation that an address lies in, even if it has been freed since.
func (s *allocs) named(x *op, address uint64) *alloc {
	for _, id := range x.accesses {
		if a := s.byID[id]; a != nil && a.holds(address) {
			return a
		}
	}
	return nil
}

func (r *allocRow) name() string {
	if r.site != "" {
		return r.site
	}
	return fmt.Sprintf("%#x", r.address)
}
