package sim

import (
	"sort"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// handle is physical memory. It lives until it is released and mapped nowhere.
type handle struct {
	bytes    int64
	location cuda.Location
	maps     int
	released bool
}

// mapping is a handle mapped in a reservation.
type mapping struct {
	cuda.Range
	h          *handle
	accessible bool
}

// reservation is reserved address space; its mappings are in address order.
type reservation struct {
	cuda.Range
	maps []*mapping
}

// Granularity is 2 MiB.
func (t *Thread) Granularity() int64 { return blockBytes }

func (g *memory) vmm(l cuda.Location) *VMM {
	switch {
	case l == cuda.Host:
		return &g.profile.HostNUMA
	case g.stats.Kernels > 0:
		return &g.profile.DeviceInJob
	}
	return &g.profile.Device
}

// MemCreate takes physical memory. On the device it evicts managed chunks when it must.
func (t *Thread) MemCreate(bytes int64, l cuda.Location) (cuda.Handle, error) {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes <= 0 || bytes%blockBytes != 0 {
		return 0, fail(invalidValue, "cuMemCreate", "%d bytes is not a multiple of %d", bytes, blockBytes)
	}
	t.inTurn(takes(g.vmm(l).Create.At(bytes)))
	if l == cuda.Device {
		if err := t.makeRoom(bytes, "cuMemCreate"); err != nil {
			return 0, err
		}
		g.handleBytes += bytes
	}
	g.nextHandle++
	g.handles[g.nextHandle] = &handle{bytes: bytes, location: l}
	return g.nextHandle, nil
}

// MemRelease gives the handle up; its memory is freed once it is mapped nowhere.
func (t *Thread) MemRelease(h cuda.Handle) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.handles[h]
	if o == nil {
		return fail(invalidValue, "cuMemRelease", "handle %d does not exist", h)
	}
	t.inTurn(takes(g.vmm(o.location).Release.At(o.bytes)))
	delete(g.handles, h)
	o.released = true
	t.reap(o)
	return nil
}

func (t *Thread) reap(h *handle) {
	if h.released && h.maps == 0 && h.location == cuda.Device {
		t.g.handleBytes -= h.bytes
		t.clear(h.bytes)
	}
}

// clear has the engine that copies to the device overwrite memory that the thread has given back.
func (t *Thread) clear(bytes int64) {
	g := t.g
	if g.profile.ClearBytesPerSecond == 0 {
		return
	}
	g.schedule(t.now, func() {
		g.serve(&g.engines[cuda.Device].server, func(finish func()) {
			g.after(g.profile.ClearSetup+perByte(bytes, g.profile.ClearBytesPerSecond), finish)
		})
	})
}

// AddressReserve reserves address space. The hint is taken when it is free.
func (t *Thread) AddressReserve(bytes, align int64, hint cuda.Ptr) (cuda.Ptr, error) {
	const call = "cuMemAddressReserve"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.ReserveCall)
	if bytes <= 0 || bytes%blockBytes != 0 {
		return 0, fail(invalidValue, call, "%d bytes is not a multiple of %d", bytes, blockBytes)
	}
	if align < 0 || align&(align-1) != 0 {
		return 0, fail(invalidValue, call, "alignment %d is not a power of two", align)
	}
	align = max(align, blockBytes)
	r := cuda.Range{Base: hint, Bytes: bytes}
	if kindOf(hint) != reservedAddress || hint%cuda.Ptr(align) != 0 || g.overlapsReservation(r) {
		r.Base = g.place(reservedAddress, bytes, align)
	} else {
		g.nextAddress[reservedAddress] = max(g.nextAddress[reservedAddress], r.End())
	}
	i := g.findReservation(r.Base)
	g.reserved = append(g.reserved, nil)
	copy(g.reserved[i+1:], g.reserved[i:])
	g.reserved[i] = &reservation{Range: r}
	return r.Base, nil
}

func (g *memory) findReservation(p cuda.Ptr) int {
	return sort.Search(len(g.reserved), func(i int) bool { return g.reserved[i].End() > p })
}

func (g *memory) overlapsReservation(r cuda.Range) bool {
	i := g.findReservation(r.Base)
	return i < len(g.reserved) && g.reserved[i].Base < r.End()
}

// AddressFree gives address space back. Nothing may be mapped in it.
func (t *Thread) AddressFree(p cuda.Ptr, bytes int64) error {
	const call = "cuMemAddressFree"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.spend(g.profile.ReserveCall)
	i := g.findReservation(p)
	if i == len(g.reserved) || g.reserved[i].Base != p || g.reserved[i].Bytes != bytes {
		return fail(invalidValue, call, "%#x + %d bytes is not a reservation", uint64(p), bytes)
	}
	if n := len(g.reserved[i].maps); n > 0 {
		return fail(invalidValue, call, "%d handles are still mapped at %#x + %d bytes", n, uint64(p), bytes)
	}
	g.reserved = remove(g.reserved, i)
	return nil
}

// reservationOf is the reservation that holds a range; nil when none does.
func (g *memory) reservationOf(r cuda.Range) *reservation {
	i := g.findReservation(r.Base)
	if i == len(g.reserved) || g.reserved[i].Base > r.Base || g.reserved[i].End() < r.End() {
		return nil
	}
	return g.reserved[i]
}

func (v *reservation) find(p cuda.Ptr) int {
	return sort.Search(len(v.maps), func(i int) bool { return v.maps[i].End() > p })
}

// cover is the run of mappings that a range touches; ok when they cover it without a hole.
func (v *reservation) cover(r cuda.Range) (maps []*mapping, ok bool) {
	first := v.find(r.Base)
	at, i := r.Base, first
	for ; i < len(v.maps) && at < r.End() && v.maps[i].Base <= at; i++ {
		at = v.maps[i].End()
	}
	return v.maps[first:i], at >= r.End()
}

// Map maps a whole handle. It cannot be accessed before SetAccess.
func (t *Thread) Map(p cuda.Ptr, bytes int64, h cuda.Handle) error {
	const call = "cuMemMap"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.handles[h]
	if o == nil {
		return fail(invalidValue, call, "handle %d does not exist", h)
	}
	t.inTurn(takes(g.vmm(o.location).Map.At(bytes)))
	r := cuda.Range{Base: p, Bytes: bytes}
	v := g.reservationOf(r)
	switch {
	case bytes != o.bytes || p%cuda.Ptr(blockBytes) != 0:
		return fail(invalidValue, call, "%#x + %d bytes for a handle of %d bytes: map all of it at a multiple of %d", uint64(p), bytes, o.bytes, blockBytes)
	case v == nil:
		return fail(invalidValue, call, "%#x + %d bytes is not reserved", uint64(p), bytes)
	}
	i := v.find(p)
	if i < len(v.maps) && v.maps[i].Base < r.End() {
		return fail(alreadyMapped, call, "something is mapped at %#x", uint64(v.maps[i].Base))
	}
	v.maps = append(v.maps, nil)
	copy(v.maps[i+1:], v.maps[i:])
	v.maps[i] = &mapping{Range: r, h: o}
	o.maps++
	return nil
}

// whole finds the mappings that a range covers exactly.
func (g *memory) whole(call string, p cuda.Ptr, bytes int64) (*reservation, []*mapping, error) {
	r := cuda.Range{Base: p, Bytes: bytes}
	v := g.reservationOf(r)
	if v == nil || bytes <= 0 {
		return nil, nil, fail(invalidValue, call, "%#x + %d bytes is not reserved", uint64(p), bytes)
	}
	maps, ok := v.cover(r)
	if !ok || maps[0].Base != p || maps[len(maps)-1].End() != r.End() {
		return nil, nil, fail(notMapped, call, "%#x + %d bytes is not covered by whole mappings", uint64(p), bytes)
	}
	return v, maps, nil
}

// Unmap takes whole mappings away.
func (t *Thread) Unmap(p cuda.Ptr, bytes int64) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	v, maps, err := g.whole("cuMemUnmap", p, bytes)
	if err != nil {
		return err
	}
	for _, m := range maps {
		t.inTurn(takes(g.vmm(m.h.location).Unmap.At(m.Bytes)))
		m.h.maps--
		t.reap(m.h)
	}
	i, n := v.find(p), len(maps)
	v.maps = append(v.maps[:i], v.maps[i+n:]...)
	return nil
}

// SetAccess makes whole mappings accessible to the device. Its cost follows the
// number of handles, and it waits for copies to the host.
func (t *Thread) SetAccess(p cuda.Ptr, bytes int64) error {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	_, maps, err := g.whole("cuMemSetAccess", p, bytes)
	if err != nil {
		return err
	}
	var extra time.Duration
	if len(maps) > 1 {
		extra = g.profile.SetAccessManyExtra
	}
	for _, m := range maps {
		m.accessible = true
		t.inTurn(func(at time.Duration) time.Duration {
			return g.waitToMap(at) + g.vmm(m.h.location).SetAccess.At(m.Bytes) + extra
		})
	}
	return nil
}

// mapped says whether all of a range is mapped and accessible, and how much of it is host memory.
func (g *memory) mapped(r cuda.Range) (host int64, ok bool) {
	v := g.reservationOf(r)
	if v == nil {
		return 0, false
	}
	maps, ok := v.cover(r)
	for _, m := range maps {
		ok = ok && m.accessible
		if m.h.location == cuda.Host {
			host += int64(min(m.End(), r.End()) - max(m.Base, r.Base))
		}
	}
	return host, ok
}
