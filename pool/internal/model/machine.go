package model

import (
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/penstock-gpu/penstock/cuda"
)

// PageBytes is the granularity of physical memory.
const PageBytes = 2 << 20

// ErrFull is what Take fails with.
var ErrFull = errors.New("full")

// mapping is a handle in address space.
type mapping struct {
	base   cuda.Ptr
	handle cuda.Handle
	bytes  int64
	access bool
}

// Machine is a driver, a budget and streams in memory: it knows what every address
// is backed by, and refuses what a real driver refuses. What no driver is ever
// asked for in earnest makes it panic.
type Machine struct {
	Fail func(call string) bool // called with the lock

	mu              sync.Mutex
	capacity, taken int64
	next            cuda.Ptr
	nextHandle      cuda.Handle
	handles         map[cuda.Handle]int64
	released        map[cuda.Handle]int64 // still mapped somewhere
	maps            map[cuda.Handle]int
	reserved        map[cuda.Ptr]int64
	mappings        []mapping                // by address
	queued, done    map[uint64]int           // work by stream
	held            map[cuda.Handle][]*piece // see reference.go
}

// New returns a machine with so much device memory.
func New(capacity int64) *Machine {
	return &Machine{capacity: capacity, next: 1 << 40, handles: map[cuda.Handle]int64{}, released: map[cuda.Handle]int64{}, maps: map[cuda.Handle]int{},
		reserved: map[cuda.Ptr]int64{}, held: map[cuda.Handle][]*piece{}, queued: map[uint64]int{}, done: map[uint64]int{}}
}

func (m *Machine) call(name string) error {
	if m.Fail != nil && m.Fail(name) {
		return fmt.Errorf("%s fails", name)
	}
	return nil
}

func (m *Machine) BindThread() error  { return nil }
func (m *Machine) Granularity() int64 { return PageBytes }

func (m *Machine) Take(bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken+bytes > m.capacity {
		return ErrFull
	}
	m.taken += bytes
	return nil
}

func (m *Machine) Give(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken -= bytes
}

func (m *Machine) MemCreate(bytes int64, _ cuda.Location) (cuda.Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("create"); err != nil {
		return 0, err
	}
	if bytes <= 0 || bytes%PageBytes != 0 {
		return 0, fmt.Errorf("create of %d bytes", bytes)
	}
	m.nextHandle++
	m.handles[m.nextHandle] = bytes
	return m.nextHandle, nil
}

func (m *Machine) MemRelease(h cuda.Handle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.handles[h]
	if !ok {
		return fmt.Errorf("release of handle %d, which does not exist", h)
	}
	delete(m.handles, h)
	if m.maps[h] > 0 {
		m.released[h] = n
	}
	return nil
}

func (m *Machine) AddressReserve(bytes, _ int64, _ cuda.Ptr) (cuda.Ptr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("reserve"); err != nil {
		return 0, err
	}
	p := m.next
	m.next += cuda.Ptr(bytes) + PageBytes
	m.reserved[p] = bytes
	return p, nil
}

func (m *Machine) search(p cuda.Ptr) int {
	return sort.Search(len(m.mappings), func(i int) bool { return m.mappings[i].base+cuda.Ptr(m.mappings[i].bytes) > p })
}

func (m *Machine) AddressFree(p cuda.Ptr, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reserved[p] != bytes {
		panic(fmt.Sprintf("free of %d bytes of addresses at %#x, %d are reserved", bytes, p, m.reserved[p]))
	}
	if i := m.search(p); i < len(m.mappings) && m.mappings[i].base < p+cuda.Ptr(bytes) {
		panic(fmt.Sprintf("addresses at %#x are freed with memory mapped", p))
	}
	delete(m.reserved, p)
	return nil
}

func (m *Machine) Map(p cuda.Ptr, bytes int64, h cuda.Handle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("map"); err != nil {
		return err
	}
	i := m.search(p)
	if m.handles[h] != bytes || i < len(m.mappings) && m.mappings[i].base < p+cuda.Ptr(bytes) {
		panic(fmt.Sprintf("map of handle %d of %d bytes at %#x + %d", h, m.handles[h], p, bytes))
	}
	m.mappings = append(m.mappings, mapping{})
	copy(m.mappings[i+1:], m.mappings[i:])
	m.mappings[i] = mapping{base: p, handle: h, bytes: bytes}
	m.maps[h]++
	return nil
}

func (m *Machine) Unmap(p cuda.Ptr, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.search(p)
	if i == len(m.mappings) || m.mappings[i].base != p || m.mappings[i].bytes > bytes {
		panic(fmt.Sprintf("unmap of %#x + %d", p, bytes))
	}
	for bytes > 0 {
		x := m.mappings[i]
		if x.base != p || x.bytes > bytes {
			panic(fmt.Sprintf("unmap cuts a mapping at %#x", p))
		}
		if m.maps[x.handle]--; m.maps[x.handle] == 0 {
			delete(m.maps, x.handle)
			delete(m.released, x.handle)
		}
		m.mappings = append(m.mappings[:i], m.mappings[i+1:]...)
		p += cuda.Ptr(x.bytes)
		bytes -= x.bytes
	}
	return nil
}

func (m *Machine) SetAccess(p cuda.Ptr, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("access"); err != nil {
		return err
	}
	for i := m.search(p); bytes > 0; i++ {
		if i == len(m.mappings) || m.mappings[i].base != p || m.mappings[i].bytes > bytes {
			panic(fmt.Sprintf("access to what is not mapped whole, at %#x", p))
		}
		m.mappings[i].access = true
		p += cuda.Ptr(m.mappings[i].bytes)
		bytes -= m.mappings[i].bytes
	}
	return nil
}

// extent is physical memory.
type extent struct {
	handle cuda.Handle
	at     int64
	bytes  int64
}

// physical is what an address range is backed by; it must all be accessible.
func (m *Machine) physical(p cuda.Ptr, bytes int64) (all []extent) {
	for i := m.search(p); bytes > 0; i++ {
		if i == len(m.mappings) || m.mappings[i].base > p || !m.mappings[i].access {
			panic(fmt.Sprintf("%#x is not accessible", p))
		}
		x := m.mappings[i]
		at := int64(p - x.base)
		n := min(bytes, x.bytes-at)
		all = append(all, extent{x.handle, at, n})
		p += cuda.Ptr(n)
		bytes -= n
	}
	return all
}

// Left is what exists: bytes of physical memory, bytes taken of the budget,
// mappings, and reserved address ranges.
func (m *Machine) Left() (physical, taken int64, mappings, ranges int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.physicalBytes(), m.taken, len(m.mappings), len(m.reserved)
}

func (m *Machine) physicalBytes() (n int64) {
	for _, b := range m.handles {
		n += b
	}
	for _, b := range m.released {
		n += b
	}
	return n
}

type mark struct {
	stream uint64
	until  int
}

func (m *Machine) Fence(stream uint64) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("fence"); err != nil {
		return nil, err
	}
	return mark{stream, m.queued[stream]}, nil
}

func (m *Machine) Passed(f any) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done[f.(mark).stream] >= f.(mark).until
}

func (m *Machine) Wait(f any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := f.(mark)
	m.done[x.stream] = max(m.done[x.stream], x.until)
	return nil
}
