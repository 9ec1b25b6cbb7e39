package stitch

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// Measurement is what mapping operations cost, by the handle.
type Measurement struct {
	HandleBytes    int64         `json:"handle_bytes"`
	Handles        int           `json:"handles"`
	Create         time.Duration `json:"create_ns"`
	Reserve        time.Duration `json:"reserve_ns"` // once a range, not by the handle
	Map            time.Duration `json:"map_ns"`
	SetAccess      time.Duration `json:"set_access_ns"`      // once for the whole range
	SetAccessEach  time.Duration `json:"set_access_each_ns"` // a call for each handle, as GMLake has it
	Unmap          time.Duration `json:"unmap_ns"`
	Release        time.Duration `json:"release_ns"`
	StitchPer2MiB  time.Duration `json:"stitch_per_2mib_ns"` // map and access of memory that exists, for each 2 MiB of it
	StitchedHandle time.Duration `json:"stitch_per_handle_ns"`
}

// Measure times stitching total bytes of handles of one size: what a range over
// memory that exists already costs. now is the driver's clock.
func Measure(d Driver, handleBytes, totalBytes int64, now func() time.Duration) (m Measurement, err error) {
	if handleBytes <= 0 || handleBytes > totalBytes || handleBytes%d.Granularity() != 0 {
		return m, fmt.Errorf("%d bytes of handles of %d bytes cannot be measured: handles are multiples of %d bytes, and not larger than the whole", totalBytes, handleBytes, d.Granularity())
	}
	n := int(totalBytes / handleBytes)
	m.HandleBytes, m.Handles = handleBytes, n
	bytes := int64(n) * handleBytes
	var handles []cuda.Handle
	var ranges, mapped []cuda.Range
	defer func() { // also after a failure
		for _, r := range mapped {
			_ = d.Unmap(r.Base, r.Bytes)
		}
		for _, r := range ranges {
			_ = d.AddressFree(r.Base, r.Bytes)
		}
		for _, h := range handles {
			_ = d.MemRelease(h)
		}
	}()
	began := now()
	lap := func(by int) time.Duration {
		t := now() - began
		began = now()
		return t / time.Duration(by)
	}
	for range n {
		h, err := d.MemCreate(handleBytes, cuda.Device)
		if err != nil {
			return m, err
		}
		handles = append(handles, h)
	}
	m.Create = lap(n)
	for each := range 2 {
		base, err := d.AddressReserve(bytes, 0, 0)
		if err != nil {
			return m, err
		}
		ranges = append(ranges, cuda.Range{Base: base, Bytes: bytes})
		reserve := lap(1)
		for i, h := range handles {
			at := base + cuda.Ptr(int64(i)*handleBytes)
			if err := d.Map(at, handleBytes, h); err != nil {
				return m, err
			}
			mapped = append(mapped, cuda.Range{Base: at, Bytes: handleBytes})
		}
		mapping := lap(n)
		if each == 0 { // the memory's first place, as in an arena
			for _, r := range mapped {
				if err := d.SetAccess(r.Base, r.Bytes); err != nil {
					return m, err
				}
			}
			m.SetAccessEach = lap(n)
			continue
		}
		if err := d.SetAccess(base, bytes); err != nil {
			return m, err
		}
		m.Reserve, m.Map, m.SetAccess = reserve, mapping, lap(n)
	}
	for _, r := range mapped[n:] {
		if err := d.Unmap(r.Base, r.Bytes); err != nil {
			return m, err
		}
	}
	mapped = mapped[:n]
	m.Unmap = lap(n)
	for _, r := range mapped {
		if err := d.Unmap(r.Base, r.Bytes); err != nil {
			return m, err
		}
	}
	mapped = nil
	began = now()
	for len(handles) > 0 {
		h := handles[0]
		handles = handles[1:]
		if err := d.MemRelease(h); err != nil {
			return m, err
		}
	}
	m.Release = lap(n)
	m.StitchedHandle = m.Map + m.SetAccess + m.Reserve/time.Duration(n)
	m.StitchPer2MiB = m.StitchedHandle * pageBytes / time.Duration(handleBytes)
	return m, nil
}
