package faults

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Counters are the driver's own sums for one address space, kept beside the event
// queue: nothing is lost of them, and they are what the queue's sums are held against.
type Counters struct {
	kernel  kernel
	toolsFD int
	page    []byte
	base    Sums
}

// Sums are what the driver counts.
type Sums struct{ H2DBytes, D2HBytes, CPUFaults, GPUFaults int64 }

// Counters in the driver's page, by index.
const (
	counterH2DBytes  = 0
	counterD2HBytes  = 1
	counterCPUFaults = 2
	counterGPUFaults = 9

	ioctlEnableCounters = 60
)

// Counters starts counting for a queue's address space.
func (s *Queue) Counters() (_ *Counters, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("faults: counters of a closed source")
	}
	c := &Counters{kernel: s.kernel, toolsFD: -1}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	if c.toolsFD, err = s.kernel.openTools(); err != nil {
		return nil, openFailure(err, s.kernel.environment())
	}
	if c.page, err = anonymous(unix.Getpagesize()); err != nil {
		return nil, err
	}
	block := initBlock(c.page, 0, c.page, s.spaceFD)
	binary.LittleEndian.PutUint64(block, 0)
	binary.LittleEndian.PutUint32(block[40:], 1) // of all processors
	if err := s.kernel.ioctl(c.toolsFD, ioctlInit, block); err != nil || initStatus(block) != statusOK {
		return nil, refused("starting the driver's counters", initStatus(block), err)
	}
	mask := make([]byte, 16)
	binary.LittleEndian.PutUint64(mask, 1<<counterH2DBytes|1<<counterD2HBytes|1<<counterCPUFaults|1<<counterGPUFaults)
	if st, err := s.call(c.toolsFD, ioctlEnableCounters, mask, 8); err != nil || st != statusOK {
		return nil, refused("switching the driver's counters on", st, err)
	}
	c.base = c.read()
	return c, nil
}

func (c *Counters) read() Sums {
	at := func(i int) int64 { return int64(atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.page[8*i])))) }
	return Sums{H2DBytes: at(counterH2DBytes), D2HBytes: at(counterD2HBytes), CPUFaults: at(counterCPUFaults), GPUFaults: at(counterGPUFaults)}
}

// Read gives what was counted since the start.
func (c *Counters) Read() Sums {
	s := c.read()
	s.H2DBytes -= c.base.H2DBytes
	s.D2HBytes -= c.base.D2HBytes
	s.CPUFaults -= c.base.CPUFaults
	s.GPUFaults -= c.base.GPUFaults
	return s
}

// Finish sums what several address spaces have counted, and stops counting.
func Finish(all []*Counters) (s Sums) {
	for _, c := range all {
		one := c.Read()
		s.H2DBytes += one.H2DBytes
		s.D2HBytes += one.D2HBytes
		s.CPUFaults += one.CPUFaults
		s.GPUFaults += one.GPUFaults
		_ = c.Close()
	}
	return s
}

// Close stops counting.
func (c *Counters) Close() (first error) {
	if c.toolsFD >= 0 {
		first = c.kernel.close(c.toolsFD)
		c.toolsFD = -1
	}
	if c.page != nil {
		if err := unix.Munmap(c.page); first == nil {
			first = err
		}
		c.page = nil
	}
	return first
}
