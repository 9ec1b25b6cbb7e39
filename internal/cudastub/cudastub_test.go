package cudastub

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

const mib = 1 << 20

var one = [3]uint32{1, 1, 1}

func words(p cuda.Ptr, n int) []uint32 {
	return unsafe.Slice((*uint32)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// rig is a driver with a reservation and a stream.
type rig struct {
	*testing.T
	d *Driver
	p cuda.Ptr
	s cuda.Stream
}

func newRig(t *testing.T, env ...string) *rig {
	d := Open(t, env...)
	r := &rig{T: t, d: d}
	var err error
	r.p, err = d.AddressReserve(64*mib, 0, 0)
	r.must(err)
	r.s, err = d.StreamCreate()
	r.must(err)
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// chunk maps new memory at an offset of the reservation.
func (r *rig) chunk(offset, bytes int64, l cuda.Location) cuda.Handle {
	r.Helper()
	h, err := r.d.MemCreate(bytes, l)
	r.must(err)
	r.must(r.d.Map(r.p+cuda.Ptr(offset), bytes, h))
	r.must(r.d.SetAccess(r.p+cuda.Ptr(offset), bytes))
	return h
}

func TestFixedAddresses(t *testing.T) {
	r := newRig(t)
	const hint = cuda.Ptr(0x5a00_0000_0000)
	p, err := r.d.AddressReserve(32*mib, 0, hint)
	r.must(err)
	if p != hint {
		t.Fatalf("asked for %#x, got %#x", uint64(hint), uint64(p))
	}
	q, err := r.d.AddressReserve(32*mib, 0, hint+16*mib) // taken: somewhere else
	r.must(err)
	if q < p+32*mib && p < q+32*mib {
		t.Errorf("reserved twice: %#x", uint64(q))
	}
	big, err := r.d.AddressReserve(2*mib, 1<<30, 0)
	r.must(err)
	if big%(1<<30) != 0 {
		t.Errorf("%#x is not aligned", uint64(big))
	}
	r.must(r.d.AddressFree(p, 32*mib))
	p, err = r.d.AddressReserve(32*mib, 0, hint)
	r.must(err)
	if p != hint {
		t.Errorf("free again, and still not given: %#x", uint64(p))
	}
	r.must(r.d.AddressFree(p, 32*mib)) // for when the test runs again
	if _, err := r.d.AddressReserve(2*mib, 3*mib, 0); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("an alignment of 3 MiB: %v", err)
	}
}

// A chunk's contents move with its handle, and its memory counts until the last mapping is gone.
func TestChunksAndAccounts(t *testing.T) {
	r := newRig(t, "STUB_TOTAL_BYTES=16777216")
	d := r.d
	h := r.chunk(0, 8*mib, cuda.Device)
	words(r.p, 4)[3] = 99
	r.chunk(8*mib, 8*mib, cuda.Device)
	if _, err := d.MemCreate(2*mib, cuda.Device); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("past the card's memory: %v", err)
	}
	host := r.chunk(32*mib, 4*mib, cuda.Host)
	if d.Count("physical_bytes") != 16*mib || d.Count("host_physical_bytes") != 4*mib || d.Count("device_peak_bytes") != 16*mib {
		t.Errorf("%d, %d, %d", d.Count("physical_bytes"), d.Count("host_physical_bytes"), d.Count("device_peak_bytes"))
	}
	if on := d.Resident(cuda.Range{Base: r.p, Bytes: 64 * mib}); on != 16*mib {
		t.Errorf("%d bytes of the reservation are on the device", on)
	}
	r.must(d.Unmap(r.p, 8*mib))
	r.must(d.Map(r.p+16*mib, 8*mib, h))
	r.must(d.SetAccess(r.p+16*mib, 8*mib))
	if words(r.p+16*mib, 4)[3] != 99 {
		t.Error("the contents did not move with the chunk")
	}
	if err := d.Map(r.p, 4*mib, h); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("half a chunk: %v", err)
	}
	r.must(d.MemRelease(h))
	if d.Count("physical_bytes") != 16*mib {
		t.Error("released memory went while it was mapped")
	}
	if err := d.Map(r.p, 8*mib, h); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("a released chunk: %v", err)
	}
	r.must(d.Unmap(r.p+16*mib, 8*mib))
	if d.Count("physical_bytes") != 8*mib || d.Count("physical_peak_bytes") != 16*mib {
		t.Errorf("%d bytes, at most %d", d.Count("physical_bytes"), d.Count("physical_peak_bytes"))
	}
	d.ResetCounts()
	if d.Count("physical_peak_bytes") != 8*mib || d.Count("device_peak_bytes") != 8*mib {
		t.Error("the peak is not the present")
	}
	r.must(d.MemRelease(host))
}

func TestHostMemoryIsRegisteredOnce(t *testing.T) {
	r := newRig(t)
	own := make([]byte, 1<<20)
	p := (cuda.Ptr(uintptr(unsafe.Pointer(&own[0]))) + 4095) / 4096 * 4096
	r.must(r.d.HostRegister(p+8192, 8192))
	for _, bytes := range []int64{16384, 12288} { // from before it, over it and into it
		if err := r.d.HostRegister(p, bytes); !errors.Is(err, cuda.ErrHostRegistered) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	r.must(r.d.HostRegister(p, 8192))
	if n := r.d.Count("registered_bytes"); n != 16384 {
		t.Errorf("%d bytes registered", n)
	}
	r.must(r.d.HostUnregister(p))
	r.must(r.d.HostUnregister(p + 8192))
	if err := r.d.HostUnregister(p); !errors.Is(err, cuda.ErrHostNotRegistered) {
		t.Errorf("a second time: %v", err)
	}
	if n := r.d.Count("registered_bytes"); n != 0 {
		t.Errorf("%d bytes registered at the end", n)
	}
}

func TestFailures(t *testing.T) {
	r := newRig(t, "STUB_FAIL=cuMemCreate:2")
	d := r.d
	create := func() error {
		_, err := d.MemCreate(2*mib, cuda.Device)
		return err
	}
	if a, b, c := create(), create(), create(); a != nil || !errors.Is(b, cuda.ErrOutOfMemory) || c != nil {
		t.Errorf("the second of three: %v, %v, %v", a, b, c)
	}
	d.Fail("cuMemCreate:2+")
	if a, b, c := create(), create(), create(); a != nil || b == nil || c == nil {
		t.Errorf("from the second on: %v, %v, %v", a, b, c)
	}
	d.Fail("cuMemMap,cuMemAddressReserve,cuStreamWriteValue32,cuMemcpyAsync,cuModuleLoad")
	h := must(r, func() (cuda.Handle, error) { return d.MemCreate(2*mib, cuda.Device) })
	_, reserve := d.AddressReserve(2*mib, 0, 0)
	_, module := d.LoadModule([]byte("x"))
	for what, err := range map[string]error{"map": d.Map(r.p, 2*mib, h), "reserve": reserve, "write": d.StreamWriteValue32(r.s, r.p, 1), "copy": d.CopyAsync(r.p, r.p, 4, r.s), "module": module} {
		if err == nil {
			t.Errorf("%s did not fail", what)
		}
	}
	d.Fail("copy:2")
	r.chunk(0, 2*mib, cuda.Device)
	r.must(d.CopyAsync(r.p, r.p+4096, 4096, r.s))
	r.must(d.StreamSynchronize(r.s))
	r.must(d.CopyAsync(r.p, r.p+4096, 4096, r.s))
	var failed *cuda.Error
	if err := d.StreamSynchronize(r.s); !errors.As(err, &failed) || failed.Code != 214 {
		t.Errorf("a copy that fails on the way: %v", err)
	}
	d.Fail("")
	r.must(create())
}

func must[T any](r *rig, f func() (T, error)) T {
	r.Helper()
	v, err := f()
	r.must(err)
	return v
}

// A kernel finds its tensors through tables in memory; one that finds an unmapped chunk fails its stream.
func TestKernelsWithTables(t *testing.T) {
	r := newRig(t)
	d := r.d
	r.chunk(0, 8*mib, cuda.Device)
	table := r.p + 4*mib
	add, fill := d.Function("table_add"), d.Function("make_table")
	r.must(d.Launch(fill, one, one, r.s, uint64(table), 3, uint64(r.p), mib))
	r.must(d.Launch(add, one, one, r.s, uint64(table), 3, 16, 5))
	r.must(d.StreamSynchronize(r.s))
	if words(r.p, 1)[0] != 5 || words(r.p+2*mib, 16)[15] != 5 || words(r.p+2*mib, 17)[16] != 0 {
		t.Error("the tables were not followed")
	}
	r.must(d.Launch(fill, one, one, r.s, uint64(table), 2, uint64(r.p+7*mib), mib)) // the second address is past the chunk
	r.must(d.Launch(add, one, one, r.s, uint64(table), 2, 16, 5))
	if err := d.StreamSynchronize(r.s); !errors.Is(err, cuda.ErrIllegalAddress) || d.Count("illegal") != 1 {
		t.Errorf("%v, %d illegal accesses", err, d.Count("illegal"))
	}
}

func TestScribbleAndSlowCopies(t *testing.T) {
	r := newRig(t, "STUB_SCRIBBLE=1", "STUB_COPY_MBPS=100")
	r.chunk(0, 4*mib, cuda.Device)
	if w := words(r.p, 1)[0]; w != 0xa5a5a5a5 {
		t.Errorf("new memory holds %#x", w)
	}
	began := time.Now()
	r.must(r.d.CopyAsync(r.p, r.p+2*mib, 2*mib, r.s))
	r.must(r.d.StreamSynchronize(r.s))
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("2 MiB at 100 MB/s took %v", took)
	}
}

// What safety means on the double: a chunk that is unmapped under a running
// kernel kills the process, and with STUB_ABORT so does a launch that names
// unmapped memory. Each happens in a process of its own.
func TestEarlyUnmapKills(t *testing.T) {
	if what := os.Getenv("CUDASTUB_DIE"); what != "" {
		r := newRig(t)
		r.chunk(0, 2*mib, cuda.Device)
		if what == "unmap" {
			r.must(r.d.Launch(r.d.Function("slow_add"), one, one, r.s, uint64(r.p), 1024, 1, 500_000))
			time.Sleep(10 * time.Millisecond)
		}
		r.must(r.d.Unmap(r.p, 2*mib))
		if what == "launch" {
			r.must(r.d.Launch(r.d.Function("touch_add"), one, one, r.s, uint64(r.p), 4, 1))
		}
		_ = r.d.StreamSynchronize(r.s)
		return
	}
	built := Open(t).Library()
	for what, want := range map[string]string{"unmap": "", "launch": "stub: a kernel reached [", "": "PASS"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestEarlyUnmapKills$", "-test.v")
		cmd.Env = append(os.Environ(), "CUDASTUB_DIE="+what, "STUB_ABORT=1", "TMPDIR="+t.TempDir(), built) // it dies before it could remove what it has made
		if what == "" {
			cmd.Args[1] = "-test.run=^TestFixedAddresses$"
		}
		out, err := cmd.CombinedOutput()
		if (err != nil) != (what != "") || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", what, err, out)
		}
	}
}

// libcuda holds its lock while a launch waits for room in its queue: a copy on
// another stream waits with it.
func TestAFullQueueBlocksOthers(t *testing.T) {
	for lock, blocked := range map[string]bool{"0": false, "1": true} {
		r := newRig(t, "STUB_API_LOCK="+lock, "STUB_QUEUE_DEPTH=2")
		d := r.d
		r.chunk(0, 2*mib, cuda.Device)
		other, err := d.StreamCreate()
		r.must(err)
		spin := d.Function("spin")
		const long = 900 * time.Millisecond
		r.must(d.Launch(spin, one, one, r.s, uint64(long.Microseconds())))
		r.must(d.Launch(spin, one, one, r.s, 0))
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := d.BindThread(); err != nil {
				done <- err
				return
			}
			done <- d.Launch(spin, one, one, r.s, 0) // the queue is full
		}()
		time.Sleep(long / 6)
		began := time.Now()
		r.must(d.CopyAsync(r.p, r.p+mib, 4096, other))
		if took := time.Since(began); (took > long/3) != blocked {
			t.Errorf("with STUB_API_LOCK=%s a copy on another stream took %v to submit", lock, took)
		}
		r.must(<-done)
		r.must(d.StreamSynchronize(r.s))
	}
}
