package explicit

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/internal/cudastub"
)

// carrier carries moves out on the test double of the driver, as a worker does.
type carrier struct {
	*testing.T
	d     *cudastub.Driver
	mover *Mover
	words cuda.Ptr // of the mover's tickets
	base  cuda.Ptr // of reserved addresses
	used  int64    // of them
}

const (
	carrierBytes = 256 << 20
	carriedChunk = 2 * PageBytes
)

func newCarrier(t *testing.T) *carrier {
	c := &carrier{T: t, d: cudastub.Open(t, "STUB_SCRIBBLE=1")}
	var err error
	if c.words, err = c.d.HostAlloc(64); err != nil {
		t.Fatal(err)
	}
	if c.mover, err = NewMover(c.d, c.words); err != nil {
		t.Fatal(err)
	}
	if c.base, err = c.d.AddressReserve(carrierBytes, PageBytes, 0); err != nil {
		t.Fatal(err)
	}
	return c
}

// checksums lets the mover take them.
func (c *carrier) checksums(verify bool) {
	c.Helper()
	k, err := kernels.Load(c.d)
	if err == nil {
		err = c.mover.Checksums(k, 2, verify)
	}
	if err != nil {
		c.Fatal(err)
	}
}

func (c *carrier) chunk() cuda.Range {
	r := cuda.Range{Base: c.base + cuda.Ptr(c.used), Bytes: carriedChunk}
	c.used += carriedChunk
	return r
}

// host is pinned memory in two extents, with a pattern.
func (c *carrier) host(seed uint32) []cuda.Range {
	c.Helper()
	var extents []cuda.Range
	for _, bytes := range []int64{PageBytes / 2, carriedChunk - PageBytes/2} {
		p, err := c.d.HostAlloc(bytes)
		if err != nil {
			c.Fatal(err)
		}
		for i, x := 0, wordsAt(p, bytes); i < len(x); i++ {
			x[i] = seed ^ uint32(i)
		}
		extents = append(extents, cuda.Range{Base: p, Bytes: bytes})
	}
	return extents
}

func wordsAt(p cuda.Ptr, bytes int64) []uint32 {
	return unsafe.Slice((*uint32)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), bytes/4)
}

// inHost are so many bytes of host memory in extents.
func inHost(extents []cuda.Range, bytes int64) (out []uint32) {
	for _, x := range extents {
		out = append(out, wordsAt(x.Base, x.Bytes)...)
	}
	return out[:bytes/4]
}

// begin begins a move, whose ticket is reached when this returns.
func (c *carrier) begin(m *Move) (ticket uint32) {
	c.Helper()
	ticket, err := c.mover.Begin(m)
	if err != nil {
		c.Fatal(err)
	}
	for began := time.Now(); ticket != 0 && wordsAt(c.words, 4)[0] != ticket; time.Sleep(10 * time.Microsecond) {
		if err := c.mover.Check(); err != nil || time.Since(began) > 20*time.Second {
			c.Fatalf("ticket %d is not reached: %v", ticket, err)
		}
	}
	return ticket
}

func (c *carrier) finish(m *Move) {
	c.Helper()
	if err := c.mover.Finish(m); err != nil {
		c.Fatal(err)
	}
}

// move carries a whole move out, what leaves with its copy.
func (c *carrier) move(m *Move) {
	c.Helper()
	c.begin(m)
	if m.Kind == MoveEvict {
		if c.mover.sumOf[m] != 0 {
			c.mover.Summed(m)
		}
		at := m.Chunk.Base
		for _, h := range m.Host {
			n := min(h.Bytes, m.Bytes-int64(at-m.Chunk.Base))
			if m.Clean || n == 0 {
				break
			}
			if err := c.d.CopyAsync(h.Base, at, n, c.mover.Stream()); err != nil {
				c.Fatal(err)
			}
			at += cuda.Ptr(n)
		}
		if err := c.d.StreamSynchronize(c.mover.Stream()); err != nil {
			c.Fatal(err)
		}
	}
	c.finish(m)
}

// owned is a tensor of the one chunk of a move, which messages name.
func owned(r cuda.Range) *tensor {
	return &tensor{base: r.Base, size: r.Bytes, bytes: r.Bytes, chunks: []chunk{{bytes: r.Bytes}}, lastName: "gemm"}
}

// TestMoverMoves: what comes in is what was on the host, and what leaves is what was on the device, also when it has
// changed, comes back on other physical memory, and uses less than its chunk.
func TestMoverMoves(t *testing.T) {
	c := newCarrier(t)
	const used = carriedChunk - 5*copyUnit
	r, host := c.chunk(), c.host(0x5eed)
	want := inHost(host, used)
	in := &Move{Kind: MoveFetch, Chunk: r, Bytes: used, Host: host}
	c.move(in)
	if got := wordsAt(r.Base, used); !slices.Equal(got, want) {
		t.Fatal("what came in is not what the host has")
	}
	if rest := wordsAt(r.Base, carriedChunk)[used/4]; rest != 0xa5a5a5a5 {
		t.Errorf("beyond what the allocation uses %#x was written", rest)
	}
	for i, x := 0, wordsAt(r.Base, used); i < len(x); i++ {
		x[i] += 3
		want[i] += 3
	}
	back := c.host(0)
	out := &Move{Kind: MoveEvict, Chunk: r, Handle: in.Handle, Bytes: used, Host: back}
	c.move(out)
	if !slices.Equal(inHost(back, used), want) {
		t.Error("what left is not what was on the device")
	}
	if n := c.d.Count("physical_bytes"); n != carriedChunk {
		t.Errorf("%d bytes of device memory, want that of the chunk that has left: it is for the next", n)
	}
	c.move(&Move{Kind: MoveTrim, Release: []cuda.Handle{in.Handle}})
	if n := c.d.Count("physical_bytes"); n != 0 {
		t.Errorf("%d bytes of device memory after its release", n)
	}
	again := &Move{Kind: MoveFetch, Chunk: r, Bytes: used, Host: back}
	c.move(again)
	if !slices.Equal(wordsAt(r.Base, used), want) {
		t.Error("what came back is not what left")
	}
	for _, call := range []Call{CallUnmap, CallRelease, CallCreate, CallMap, CallAccess, CallCopy} {
		if c.mover.Spent()[call] <= 0 {
			t.Errorf("no time was spent in %s", call)
		}
	}
	if err := c.mover.Close(); err != nil {
		t.Error(err)
	}
}

// TestMoverUndoesFirst: dead memory is unmapped and released before anything is created, so that it
// serves where the device is full, and a handle that is handed over is mapped instead of a new one.
func TestMoverUndoesFirst(t *testing.T) {
	c := newCarrier(t)
	dead, first := c.chunk(), &Move{Kind: MoveMap}
	first.Chunk, first.Bytes = dead, dead.Bytes
	if ticket := c.begin(first); ticket != 0 {
		t.Errorf("memory without contents has ticket %d", ticket)
	}
	wordsAt(dead.Base, 4)[0] = 77
	// Its physical memory goes to another chunk.
	next := &Move{Kind: MoveMap, Chunk: c.chunk(), Bytes: carriedChunk, Handle: first.Handle, Unmap: []Mapping{{dead, first.Handle}}}
	c.begin(next)
	if wordsAt(next.Chunk.Base, 4)[0] != 77 || c.d.Count("physical_peak_bytes") != carriedChunk {
		t.Errorf("%d bytes of device memory at most; the handle was not mapped", c.d.Count("physical_peak_bytes"))
	}
	// And is released for one of its own.
	last := &Move{Kind: MoveMap, Chunk: dead, Bytes: carriedChunk, Unmap: []Mapping{{next.Chunk, next.Handle}}, Release: []cuda.Handle{next.Handle}}
	c.begin(last)
	if wordsAt(dead.Base, 4)[0] != 0xa5a5a5a5 || c.d.Count("physical_peak_bytes") != carriedChunk {
		t.Errorf("%d bytes of device memory at most; the memory is not new", c.d.Count("physical_peak_bytes"))
	}
}

// TestMoverInPlace: host memory is mapped at a chunk's addresses with the contents in it, and released when they leave.
func TestMoverInPlace(t *testing.T) {
	c := newCarrier(t)
	r, host := c.chunk(), c.host(0xace)
	m := &Move{Kind: MovePlace, Chunk: r, Bytes: carriedChunk, Host: host}
	c.move(m)
	if !slices.Equal(wordsAt(r.Base, carriedChunk), inHost(host, carriedChunk)) {
		t.Error("what is in place is not what the host has")
	}
	if on, off := c.d.Count("physical_bytes"), c.d.Count("host_physical_bytes"); on != 0 || off != carriedChunk {
		t.Errorf("%d bytes on the device and %d on the host", on, off)
	}
	back := c.host(0)
	c.move(&Move{Kind: MoveEvict, Placed: true, Chunk: r, Handle: m.Handle, Bytes: carriedChunk, Host: back})
	if !slices.Equal(inHost(back, carriedChunk), inHost(host, carriedChunk)) {
		t.Error("what left its place is not what was there")
	}
	if n := c.d.Count("host_physical_bytes"); n != 0 {
		t.Errorf("%d bytes of host memory are still mapped", n)
	}
}

// TestMoverClean: what leaves as it came needs no copy, and that is said only of it.
func TestMoverClean(t *testing.T) {
	c := newCarrier(t)
	c.checksums(false)
	r, host := c.chunk(), c.host(1)
	m := &Move{Kind: MoveFetch, Chunk: r, Bytes: carriedChunk, Host: host, tensor: owned(r)}
	c.move(m)
	first := &Move{Kind: MoveEvict, Checksum: true, Chunk: r, Handle: m.Handle, Bytes: carriedChunk, Host: host, tensor: m.tensor}
	c.move(first)
	if !first.Summed || first.Clean {
		t.Fatalf("summed %t, clean %t: nothing was known to compare with", first.Summed, first.Clean)
	}
	m.Sum, m.Summed = first.Sum, true
	for _, test := range []struct {
		change uint32
		clean  bool
	}{{0, true}, {1, false}} {
		c.move(m)
		wordsAt(r.Base, carriedChunk)[carriedChunk/8] += test.change
		out := &Move{Kind: MoveEvict, Checksum: true, Compare: true, Sum: first.Sum, Chunk: r, Handle: m.Handle, Bytes: carriedChunk, Host: host, tensor: m.tensor}
		c.move(out)
		if out.Clean != test.clean || (out.Sum == first.Sum) != test.clean {
			t.Errorf("changed by %d: clean is %t", test.change, out.Clean)
		}
	}
	// A move of which no checksum is asked for needs none.
	c.move(m)
	if ticket := c.begin(&Move{Kind: MoveEvict, Chunk: r, Bytes: carriedChunk, Host: host}); ticket != 0 {
		t.Errorf("a checksum was taken that nobody asked for: ticket %d", ticket)
	}
}

// TestMoverVerifies: what comes back different from what left is an error that names it, and checksums are given back.
func TestMoverVerifies(t *testing.T) {
	c := newCarrier(t)
	c.checksums(true)
	r, host := c.chunk(), c.host(1)
	m := &Move{Kind: MoveFetch, Chunk: r, Bytes: carriedChunk, Host: host, tensor: owned(r)}
	var out *Move
	for range 3 { // more moves than checksums there is room for at a time
		c.move(m)
		out = &Move{Kind: MoveEvict, Chunk: r, Handle: m.Handle, Bytes: carriedChunk, Host: host, tensor: m.tensor}
		c.move(out)
		m.Sum, m.Summed = out.Sum, out.Summed
	}
	wordsAt(host[1].Base, 4)[0]++
	c.begin(m)
	if err := c.mover.Finish(m); !errors.Is(err, ErrMismatch) {
		t.Errorf("a wrong byte came back, and the error is %v", err)
	}
	for range 2 {
		c.begin(&Move{Kind: MoveEvict, Chunk: r, Bytes: carriedChunk, tensor: m.tensor})
	}
	if _, err := c.mover.Begin(&Move{Kind: MoveEvict, Chunk: r, Bytes: carriedChunk, tensor: m.tensor}); err == nil {
		t.Error("a checksum was taken where there is no room for it")
	}
}

// TestMoverFails: what the driver refuses is an error that says what was to be done; only memory of the device that
// it does not have is one that the engine can live with.
func TestMoverFails(t *testing.T) {
	for _, test := range []struct {
		fail     string
		make     func(c *carrier, mapped *Move) *Move
		finish   bool
		noMemory bool
	}{
		{"cuMemUnmap:1", func(c *carrier, x *Move) *Move { return &Move{Kind: MoveTrim, Unmap: []Mapping{{x.Chunk, x.Handle}}} }, false, false},
		{"", func(c *carrier, x *Move) *Move { return &Move{Kind: MoveTrim, Release: []cuda.Handle{1 << 20}} }, false, false},
		{"cuMemCreate:1", func(c *carrier, x *Move) *Move { return &Move{Kind: MoveMap, Chunk: c.chunk()} }, false, true},
		{"cuMemCreate:1", func(c *carrier, x *Move) *Move { return &Move{Kind: MovePlace, Chunk: c.chunk()} }, false, false},
		{"cuMemMap:1", func(c *carrier, x *Move) *Move { return &Move{Kind: MoveMap, Chunk: c.chunk()} }, false, false},
		{"cuMemSetAccess:1", func(c *carrier, x *Move) *Move { return &Move{Kind: MoveMap, Chunk: c.chunk()} }, false, false},
		{"cuMemcpyAsync:2", func(c *carrier, x *Move) *Move {
			return &Move{Kind: MoveFetch, Chunk: c.chunk(), Bytes: carriedChunk, Host: c.host(1)}
		}, false, false},
		{"cuStreamWriteValue32:1", func(c *carrier, x *Move) *Move {
			return &Move{Kind: MoveFetch, Chunk: c.chunk(), Bytes: carriedChunk, Host: c.host(1)}
		}, false, false},
		{"cuMemUnmap:1", func(c *carrier, x *Move) *Move { return &Move{Kind: MoveEvict, Chunk: x.Chunk, Bytes: carriedChunk} }, true, false},
		{"", func(c *carrier, x *Move) *Move {
			return &Move{Kind: MoveEvict, Placed: true, Chunk: x.Chunk, Bytes: carriedChunk, Handle: 1 << 20}
		}, true, false},
	} {
		c := newCarrier(t)
		x := &Move{Kind: MoveMap, Chunk: c.chunk(), Bytes: carriedChunk}
		c.move(x)
		m := test.make(c, x)
		c.d.Fail(test.fail)
		_, err := c.mover.Begin(m)
		if test.finish && err == nil {
			err = c.mover.Finish(m)
		} else if test.finish {
			t.Errorf("%s: it could not begin: %v", test.fail, err)
		}
		var driver *cuda.Error
		if !errors.As(err, &driver) || errors.Is(err, ErrNoMemory) != test.noMemory {
			t.Errorf("%s: %v", test.fail, err)
		}
		c.d.Fail("")
		if test.noMemory && c.d.Count("physical_bytes") != carriedChunk {
			t.Errorf("%s: %d bytes of device memory are left of it", test.fail, c.d.Count("physical_bytes"))
		}
	}
}

// TestMoverNoticesAFailedCopy: a copy that fails on its way ends the stream, which is noticed though no call failed.
func TestMoverNoticesAFailedCopy(t *testing.T) {
	c := newCarrier(t)
	if err := c.mover.Check(); err != nil {
		t.Fatal(err)
	}
	c.d.Fail("copy:1")
	// It may fail before Begin has queued all that follows it.
	_, err := c.mover.Begin(&Move{Kind: MoveFetch, Chunk: c.chunk(), Bytes: carriedChunk, Host: c.host(1)})
	var driver *cuda.Error
	for began := time.Now(); err == nil && time.Since(began) < 20*time.Second; err = c.mover.Check() {
		time.Sleep(10 * time.Microsecond)
	}
	if !errors.As(err, &driver) || !driver.EndsContext() {
		t.Errorf("the failed copy is %v", err)
	}
	if wordsAt(c.words, 4)[0] != 0 {
		t.Error("a copy that failed is said to have been made")
	}
}

// TestIsolate: launches get memory to write to in the place of what they were to read.
func TestIsolate(t *testing.T) {
	workspace := cuda.Range{Base: 1 << 44, Bytes: 3 * copyUnit}
	first, second := &cuda.RecordedLaunch{}, &cuda.RecordedLaunch{Addresses: []uint32{0}, Params: binary.LittleEndian.AppendUint64(nil, 1<<44+512)}
	before := []Temp{{At: cuda.Range{Base: 1 << 45, Bytes: copyUnit}, Offset: 2 * copyUnit}}
	m := &Move{Launches: []*cuda.RecordedLaunch{first, second}, Temps: [][]Temp{before, nil}}
	m.Isolate([]Overwritten{{workspace, true}})
	want := Temp{At: workspace, Offset: 3 * copyUnit, Scratch: true}
	if !slices.Equal(m.Temps[0], before) || !slices.Equal(m.Temps[1], []Temp{want}) {
		t.Errorf("%+v, want %+v", m.Temps, want)
	}
	if n := m.TempsBytes(); n != 6*copyUnit {
		t.Errorf("they need %d bytes", n)
	}
	m.Temps = make([][]Temp, 2)
	if m.Isolate([]Overwritten{{workspace, false}}); !m.Temps[1][0].Copy || m.Temps[1][0].Scratch {
		t.Errorf("what is read there is not copied: %+v", m.Temps)
	}
}
