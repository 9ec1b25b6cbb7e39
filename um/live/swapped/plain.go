package swapped

import (
	"sync"
	"sync/atomic"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/pool/stitch"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// plainMemory is memory that stays on the device: segments that the engine makes, and what the pool maps.
type plainMemory struct {
	driver  cuda.Driver
	hook    Hook
	follows bool // what is mapped, as anything may be made again in this job

	verifying atomic.Uintptr           // the stream on which some is copied to verify; 0: none
	mu        sync.Mutex               // guards what follows, and comes last but one
	handles   map[cuda.Ptr]cuda.Handle // of segments
	mapped    map[cuda.Ptr]int64       // what is mapped, in bytes, where that is followed
	spanMu    sync.Mutex               // guards span; the last of all locks
	span      [2]cuda.Ptr              // the addresses lie from the first to before the second
}

// segment makes one.
func (m *plainMemory) segment(size int64) (p cuda.Ptr, err error) {
	d := m.driver
	h, err := d.MemCreate(size, cuda.Device)
	if err != nil {
		return 0, err
	}
	if p, err = d.AddressReserve(size, explicit.PageBytes, plainHint); err != nil {
		_ = d.MemRelease(h) // the first error counts
		return 0, err
	}
	if err = m.mapAt(p, size, h); err == nil {
		if err = d.SetAccess(p, size); err == nil {
			m.mu.Lock()
			m.handles[p] = h
			m.mu.Unlock()
			return p, nil
		}
		_ = m.unmap(p, size)
	}
	_ = d.MemRelease(h)
	_ = d.AddressFree(p, size)
	return 0, err
}

// forget gives the handle of a segment, which is being given back.
func (m *plainMemory) forget(p cuda.Ptr) cuda.Handle {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.handles[p]
	delete(m.handles, p)
	return h
}

// mapAt maps plain memory.
func (m *plainMemory) mapAt(p cuda.Ptr, bytes int64, h cuda.Handle) error {
	if err := m.driver.Map(p, bytes, h); err != nil || !m.follows {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mapped[p] = bytes
	return nil
}

// unmap unmaps plain memory, when nothing is being copied from there to verify.
func (m *plainMemory) unmap(p cuda.Ptr, bytes int64) error {
	if !m.follows {
		return m.driver.Unmap(p, bytes)
	}
	m.mu.Lock()
	for base := range m.mapped {
		if base >= p && base < p+cuda.Ptr(bytes) {
			delete(m.mapped, base)
		}
	}
	m.mu.Unlock()
	if s := m.verifying.Load(); s != 0 {
		if err := m.driver.StreamSynchronize(cuda.Stream(s)); err != nil {
			return err
		}
	}
	return m.driver.Unmap(p, bytes)
}

// holds says whether a range is in what is mapped of plain memory. mu is held.
func (m *plainMemory) holds(r cuda.Range) bool {
	for bytes := r.Bytes; bytes > 0; {
		found := int64(0)
		for base, n := range m.mapped {
			if at := r.End() - cuda.Ptr(bytes); at >= base && at < base+cuda.Ptr(n) {
				found = int64(base + cuda.Ptr(n) - at)
				break
			}
		}
		if found == 0 {
			return false
		}
		bytes -= found
	}
	return true
}

// publish tells the launch hook of addresses of plain memory, and notes between which all of them lie.
func (m *plainMemory) publish(r cuda.Range) {
	m.spanMu.Lock()
	if m.span[1] == 0 {
		m.span[0] = r.Base
	}
	m.span = [2]cuda.Ptr{min(m.span[0], r.Base), max(m.span[1], r.End())}
	m.spanMu.Unlock()
	m.hook.PublishPlain(r)
}

// addresses are those between which all of it lies.
func (m *plainMemory) addresses() kernels.Span {
	m.spanMu.Lock()
	defer m.spanMu.Unlock()
	return kernels.Span{Lo: m.span[0], Hi: m.span[1]}
}

// plainDriver tells the launch hook which addresses are those of plain memory, where
// an operation may find addresses of tensors.
type plainDriver struct {
	stitch.Driver
	m *plainMemory
}

func (d plainDriver) AddressReserve(bytes, align int64, hint cuda.Ptr) (cuda.Ptr, error) {
	if hint == 0 {
		hint = plainHint
	}
	p, err := d.Driver.AddressReserve(bytes, align, hint)
	if err == nil {
		d.m.publish(cuda.Range{Base: p, Bytes: bytes})
	}
	return p, err
}

func (d plainDriver) Map(p cuda.Ptr, bytes int64, h cuda.Handle) error {
	return d.m.mapAt(p, bytes, h)
}

func (d plainDriver) Unmap(p cuda.Ptr, bytes int64) error { return d.m.unmap(p, bytes) }

func (d plainDriver) AddressFree(p cuda.Ptr, bytes int64) error {
	d.m.hook.WithdrawPlain(cuda.Range{Base: p, Bytes: bytes})
	return d.Driver.AddressFree(p, bytes)
}
