package hostpool

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hostmem"
)

// next is the segment to be grown next. Under mu.
func (p *Pool) next() Extent {
	return Extent{Base: p.memory.base() + cuda.Ptr(p.grown), Bytes: min(p.config.SegmentBytes, p.config.BudgetBytes-p.grown)}
}

// wants says whether the pool should grow. After a failure only somebody who has
// begun to wait since makes it try again. Under mu.
func (p *Pool) wants() bool {
	if p.grown == p.config.BudgetBytes || p.failure != nil && (p.waiting == 0 || p.asked != p.failures) {
		return false
	}
	return p.grown < max(p.expected, min(p.inUse+p.promised+p.config.AheadBytes, p.config.BudgetBytes))
}

// extend makes a segment available, or records why there is none. Under mu.
func (p *Pool) extend(segment Extent, err error) {
	if p.failure = err; err != nil {
		p.failures++
	} else {
		p.grown += segment.Bytes
		// It cannot be refused: it is new.
		_ = p.free.give(segment, p.grown)
	}
	p.changed.Broadcast()
}

// grow is the pool's thread.
func (p *Pool) grow() {
	defer close(p.stopped)
	runtime.LockOSThread() // never unlocked: the context stays with the thread, which ends
	bound := p.driver.BindThread()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !p.closed && !p.wants() {
			p.changed.Wait()
		}
		if p.closed {
			return
		}
		segment, began := p.next(), time.Now()
		p.mu.Unlock()
		err := bound
		if err == nil {
			err = p.pin(segment)
		}
		took := time.Since(began)
		if err != nil {
			p.log.Warn("the pool of pinned host memory cannot grow", zap.Int64("by_bytes", segment.Bytes), zap.Error(err))
		} else {
			p.log.Debug("pinned host memory grown", zap.Int64("by_bytes", segment.Bytes), zap.Duration("took", took))
		}
		p.mu.Lock()
		p.growing += took
		p.extend(segment, err)
	}
}

// pin makes memory of a segment's addresses and registers it.
func (p *Pool) pin(segment Extent) error {
	m, err := hostmem.Available()
	if err != nil {
		return err
	}
	if m.AvailableBytes < segment.Bytes+leftToOthers {
		return fmt.Errorf("%s leaves %s", m.LimitedBy, size(m.AvailableBytes))
	}
	if err := p.memory.populate(segment, runtime.GOMAXPROCS(0)); err != nil {
		return err
	}
	if err := p.driver.HostRegister(segment.Base, segment.Bytes); err != nil {
		p.memory.drop(segment)
		return err
	}
	return nil
}

// Close unregisters and frees all memory, in use or not: no copy may be under
// way. The calling thread must be bound to the device.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.changed.Broadcast()
	p.mu.Unlock()
	<-p.stopped
	var first error
	for at := int64(0); at < p.grown; at += p.config.SegmentBytes {
		// At the end of the process the driver has done it itself.
		err := p.driver.HostUnregister(p.memory.base() + cuda.Ptr(at))
		if err != nil && first == nil && !errors.Is(err, cuda.ErrDeinitialized) {
			first = err
		}
	}
	if first != nil {
		return first // memory that a device may still write to is not given to others
	}
	return p.memory.release()
}
