package hostpool

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hostmem"
	"github.com/penstock-gpu/penstock/internal/size"
)

// next is the segment to be grown next. Under mu.
func (p *Pool) next() Extent {
	return Extent{Base: p.free.end(), Bytes: min(p.segment, p.config.BudgetBytes-p.grown)}
}

// wants says whether the pool should grow. Under mu.
func (p *Pool) wants() bool {
	if p.grown == p.config.BudgetBytes {
		return false
	}
	return p.grown < max(p.expected, min(p.inUse+p.promised+p.config.AheadBytes, p.config.BudgetBytes))
}

// extend makes a segment available, or records why there is none: then a smaller one is tried after a pause, for
// what others have taken they may give back. Under mu.
func (p *Pool) extend(segment Extent, err error) {
	if p.failure = err; err != nil {
		p.failures++
		p.segment = max(roundUp(segment.Bytes/2), Granularity)
		p.pause = min(max(2*p.pause, firstPause), longestPause)
		p.retry = time.Now().Add(p.pause)
	} else {
		p.grown += segment.Bytes
		p.free.grow(segment.Bytes)
		p.segment = min(2*p.segment, p.config.SegmentBytes)
		p.pause = 0
	}
	p.changed.Broadcast()
}

// rest waits until something changes, or growing is to be tried again. Under mu.
func (p *Pool) rest() {
	if p.failure != nil && p.wants() {
		again := time.AfterFunc(time.Until(p.retry), func() {
			p.mu.Lock() // else it could come between the look at the time and the wait
			defer p.mu.Unlock()
			p.changed.Broadcast()
		})
		defer again.Stop()
	}
	p.changed.Wait()
}

// mayGrow says whether growing has not failed just now. Under mu.
func (p *Pool) mayGrow() bool { return p.failure == nil || !time.Now().Before(p.retry) }

// grow is the pool's thread.
func (p *Pool) grow() {
	defer close(p.stopped)
	runtime.LockOSThread() // never unlocked: the context stays with the thread, which ends
	bound := p.driver.BindThread()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !p.closed && !(p.wants() && p.mayGrow()) {
			p.rest()
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
		p.mu.Lock()
		switch {
		case err == nil:
			p.log.Debug("pinned host memory grown", zap.Int64("by_bytes", segment.Bytes), zap.Duration("took", took))
		case p.failure == nil:
			p.log.Warn("the pool of pinned host memory cannot grow: it is tried again, with less", zap.Int64("by_bytes", segment.Bytes), zap.Error(err))
		default:
			p.log.Debug("the pool of pinned host memory still cannot grow", zap.Int64("by_bytes", segment.Bytes), zap.Error(err))
		}
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
		return fmt.Errorf("%s leaves %s", m.LimitedBy, size.Text(m.AvailableBytes))
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
	at := p.free.origin
	for _, end := range p.free.ends {
		// At the end of the process the driver has done it itself.
		err := p.driver.HostUnregister(at)
		if err != nil && first == nil && !errors.Is(err, cuda.ErrDeinitialized) {
			first = err
		}
		at = end
	}
	if first != nil {
		return first // memory that a device may still write to is not given to others
	}
	return p.memory.release()
}
