//go:build cgo && linux

package cuda

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// stub compiles testdata/stub.c with the given macros and returns the library
// and a function that returns the calls made since it was last called.
func stub(t *testing.T, defines ...string) (library string, calls func() []string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed: no stub driver")
	}
	dir := t.TempDir()
	library, log := filepath.Join(dir, "libstub.so"), filepath.Join(dir, "log")
	args := []string{"-shared", "-fPIC", "-w", "-O0", "-o", library, "-DLOG=\"" + log + "\""}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command(gcc, append(args, "testdata/stub.c")...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library, func() []string {
		b, _ := os.ReadFile(log)
		os.Remove(log)
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

func open(t *testing.T, o Options, defines ...string) (*Native, func() []string) {
	t.Helper()
	library, calls := stub(t, defines...)
	o.Library = library
	n, err := OpenNative(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	calls()
	return n, calls
}

func expect(t *testing.T, calls func() []string, want ...string) {
	t.Helper()
	if got := calls(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("driver saw\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check1(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenFailures(t *testing.T) {
	tests := []struct {
		name    string
		defines []string
		ordinal int
		reason  error
		text    string
	}{
		{"no device", []string{"INIT_RESULT=100"}, 0, ErrNoDevice, "CUDA_VISIBLE_DEVICES"},
		{"no devices counted", []string{"DEVICES=0"}, 0, ErrNoDevice, "penstock simulate"},
		{"ordinal too large", []string{"DEVICES=2"}, 2, ErrNoDevice, "device 2 does not exist: this process sees 2"},
		{"negative ordinal", nil, -1, ErrNoDevice, "choose a device from 0 to 0"},
		{"toolkit stub", []string{"INIT_RESULT=34"}, 0, ErrNoLibrary, "stub"},
		{"version mismatch", []string{"INIT_RESULT=803"}, 0, ErrUnavailable, "different versions"},
		{"anything else", []string{"INIT_RESULT=999"}, 0, ErrUnavailable, "CUDA_ERROR_UNKNOWN"},
		{"old driver", []string{"VERSION=11080"}, 0, ErrDriverTooOld, "offers CUDA 11.8: install driver 525"},
		{"required function missing", []string{"cuEventQuery=hidden"}, 0, ErrDriverTooOld, "no function cuEventQuery"},
		{"not a driver", []string{"cuInit=a", "NO_VERSION"}, 0, ErrUnavailable, "not a CUDA driver library"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			library, _ := stub(t, tt.defines...)
			d, err := Open(Options{Library: library, Ordinal: tt.ordinal})
			if d != nil || !errors.Is(err, tt.reason) {
				t.Fatalf("got driver %v, error %v, want %v", d, err, tt.reason)
			}
			var o *OpenError
			if !errors.As(err, &o) || o.Do == "" {
				t.Errorf("%v does not say what to do", err)
			}
			if !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q does not contain %q in one line", err, tt.text)
			}
		})
	}
}

func TestOpenWithoutLibrary(t *testing.T) {
	_, err := Open(Options{Library: filepath.Join(t.TempDir(), "libcuda.so.1")})
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "not found: install the NVIDIA driver, or use `penstock simulate`") {
		t.Errorf("got %v", err)
	}
}

func TestInfo(t *testing.T) {
	n, _ := open(t, Options{Ordinal: 1}, "DEVICES=2")
	i := n.Info()
	if i.Name != "Stub 1" || i.Ordinal != 1 || i.TotalBytes != 16<<30 || i.ComputeMajor != 9 || i.CUDAVersion != 13000 || i.Multiprocessors != 132 ||
		i.UUID != "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" || i.SimulatedHardware {
		t.Errorf("%+v", i)
	}
	if n.Granularity() != 2<<20 {
		t.Errorf("granularity %d", n.Granularity())
	}
	if a, b := n.Now(), n.Now(); b < a || a < 0 {
		t.Errorf("clock went from %v to %v", a, b)
	}
}

func TestCapabilities(t *testing.T) {
	// What the kernel module of this machine forbids is not this table's business.
	if v := driverMajor(KernelDriverVersion()); v != 0 && v < 580 {
		t.Skip("an NVIDIA kernel module older than 580 is loaded")
	}
	all := Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true, VirtualMemory: true, PrefetchBatch: true,
		DiscardBatch: true, StreamMemOps: true, FunctionParamInfo: true, HostNUMA: true, Kernels: true}
	tests := []struct {
		name    string
		defines []string
		change  func(c *Capabilities)
	}{
		{"everything", nil, func(*Capabilities) {}},
		{"no batch functions", []string{"NO_BATCH"}, func(c *Capabilities) { c.PrefetchBatch, c.DiscardBatch = false, false }},
		{"12.9 has no batches", []string{"VERSION=12090"}, func(c *Capabilities) { c.PrefetchBatch, c.DiscardBatch = false, false }},
		{"no concurrent access", []string{"CONCURRENT=0"}, func(c *Capabilities) {
			c.ConcurrentManagedAccess, c.PrefetchBatch, c.DiscardBatch = false, false, false
		}},
		{"no managed memory", []string{"NO_MANAGED"}, func(c *Capabilities) {
			c.ManagedMemory, c.ConcurrentManagedAccess, c.PrefetchBatch, c.DiscardBatch = false, false, false, false
		}},
		{"no virtual memory", []string{"NO_VMM"}, func(c *Capabilities) { c.VirtualMemory, c.HostNUMA = false, false }},
		{"half of the memory operations", []string{"NO_WRITE_VALUE"}, func(c *Capabilities) { c.StreamMemOps = false }},
		{"no kernels of our own", []string{"cuLaunchKernel=hidden"}, func(c *Capabilities) { c.Kernels = false }},
		{"no parameter info", []string{"cuFuncGetParamInfo=hidden"}, func(c *Capabilities) { c.FunctionParamInfo = false }},
		{"old prefetch only", []string{"NO_V2"}, func(*Capabilities) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, _ := open(t, Options{}, tt.defines...)
			want := all
			tt.change(&want)
			if got := n.Capabilities(); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestProbeTakesNoContext(t *testing.T) {
	library, calls := stub(t, "DEVICES=3")
	s, err := Probe(Options{Library: library, Ordinal: 2})
	if err != nil || s.Devices != 3 || s.Info.Name != "Stub 2" || !s.Capabilities.VirtualMemory {
		t.Errorf("%+v, %v", s, err)
	}
	expect(t, calls, "")
	if _, err := Probe(Options{Library: library, Ordinal: 3}); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a device too many: %v", err)
	}
}

func TestOpenTakesAndGivesBackTheContext(t *testing.T) {
	library, calls := stub(t)
	n, err := OpenNative(Options{Library: library})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, calls, "retain 0")
	check1(t, n.Close())
	expect(t, calls, "release 0")
}

func TestMissingFunctionsAnswer(t *testing.T) {
	n, calls := open(t, Options{}, "NO_MANAGED", "NO_BATCH", "NO_VMM", "cuMemHostRegister_v2=hidden")
	if _, err := n.MemAllocManaged(1); !errors.Is(err, ErrNotSupported) {
		t.Errorf("MemAllocManaged: %v", err)
	}
	if n.ManagedBytes() != 0 {
		t.Errorf("%d bytes stay reserved after a refusal", n.ManagedBytes())
	}
	if _, err := n.MemCreate(2<<20, Device); !errors.Is(err, ErrNotSupported) {
		t.Errorf("MemCreate: %v", err)
	}
	r := []Range{{0x1000, 1}}
	if err := n.Discard(r, 7); !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "580") {
		t.Errorf("Discard: %v", err)
	}
	if err := n.DiscardAndPrefetch(r, Device, 7); !errors.Is(err, ErrNotSupported) {
		t.Errorf("DiscardAndPrefetch: %v", err)
	}
	if err := n.HostRegister(0x1000, 4096); !errors.Is(err, ErrNotSupported) {
		t.Errorf("HostRegister: %v", err)
	}
	expect(t, calls, "")
}

func TestBindThread(t *testing.T) {
	n, calls := open(t, Options{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, err := n.MemInfo(); !errors.Is(err, ErrInvalidContext) {
		t.Fatalf("without a context: %v", err)
	}
	check1(t, n.BindThread())
	check1(t, n.BindThread())
	expect(t, calls, "current 0xc0") // the second call finds it current
	free, total, err := n.MemInfo()
	if free != 3 || total != 5 || err != nil {
		t.Errorf("MemInfo %d %d %v", free, total, err)
	}
}

func TestPrefetch(t *testing.T) {
	ranges := []Range{{0x200001, 100}, {0x400002, 1000}}
	t.Run("batch", func(t *testing.T) {
		n, calls := open(t, Options{}, "DEVICES=2")
		if !n.Capabilities().PrefetchBatch {
			t.Skip("the loaded kernel module forbids batches")
		}
		check1(t, n.Prefetch(ranges, Device, 9))
		check1(t, n.Prefetch(ranges, Host, 9))
		expect(t, calls, "batch 2 sum 1103 1:0 9", "batch 2 sum 1103 2:0 9")
		check1(t, n.Prefetch(ranges[:1], Host, 9))
		expect(t, calls, "prefetch2 0x200001 100 2:0 0 9")
		check1(t, n.Prefetch(ranges, Device, 0)) // no batch on the default stream
		expect(t, calls, "prefetch2 0x200001 100 1:0 0 0", "prefetch2 0x400002 1000 1:0 0 0")
		check1(t, n.Prefetch(nil, Device, 9))
		expect(t, calls, "")
	})
	t.Run("second device, no batch", func(t *testing.T) {
		n, calls := open(t, Options{Ordinal: 1}, "DEVICES=2", "NO_BATCH")
		check1(t, n.Prefetch(ranges, Device, 9))
		expect(t, calls, "prefetch2 0x200001 100 1:1 0 9", "prefetch2 0x400002 1000 1:1 0 9")
	})
	t.Run("unversioned", func(t *testing.T) {
		n, calls := open(t, Options{Ordinal: 1}, "DEVICES=2", "NO_BATCH", "NO_V2")
		check1(t, n.Prefetch(ranges[:1], Device, 9))
		check1(t, n.Prefetch(ranges[:1], Host, 9))
		check1(t, n.Advise(ranges[0], SetPreferredLocation, Host))
		expect(t, calls, "prefetch1 0x200001 100 1 9", "prefetch1 0x200001 100 -1 9", "advise1 3 -1")
	})
	t.Run("bad ranges", func(t *testing.T) {
		n, calls := open(t, Options{})
		for _, r := range []Range{{0, 1}, {0x1000, 0}, {0x1000, -1}} {
			if err := n.Prefetch([]Range{r}, Device, 9); !errors.Is(err, ErrInvalidValue) {
				t.Errorf("%+v: %v", r, err)
			}
			if err := n.Advise(r, SetReadMostly, Device); !errors.Is(err, ErrInvalidValue) {
				t.Errorf("%+v: %v", r, err)
			}
		}
		expect(t, calls, "")
	})
}

func TestDiscardAndAdvise(t *testing.T) {
	n, calls := open(t, Options{})
	if !n.Capabilities().DiscardBatch {
		t.Skip("the loaded kernel module forbids discard")
	}
	r := []Range{{0x200000, 64}, {0x400000, 32}}
	for _, s := range []Stream{0, 1} {
		if err := n.Discard(r, s); !errors.Is(err, ErrInvalidValue) || !strings.Contains(err.Error(), "default stream") {
			t.Errorf("on stream %d: %v", s, err)
		}
	}
	check1(t, n.Discard(nil, 0))
	check1(t, n.Discard(r, 9))
	check1(t, n.DiscardAndPrefetch(r, Device, 9))
	expect(t, calls, "discard 2 0x200000 64", "discardprefetch 2 1:0")
	check1(t, n.Advise(r[0], SetReadMostly, Device))
	check1(t, n.Advise(r[0], UnsetAccessedBy, Host))
	expect(t, calls, "advise2 1 1:0", "advise2 6 2:0")
	if err := n.Advise(r[0], Advice(6), Host); !errors.Is(err, ErrInvalidValue) {
		t.Errorf("unknown advice: %v", err)
	}
}

func TestStreamsEventsCopies(t *testing.T) {
	n, calls := open(t, Options{})
	s := must[Stream](t)(n.StreamCreate())
	e := must[Event](t)(n.EventCreate())
	check1(t, n.EventRecord(e, s))
	check1(t, n.StreamWaitEvent(s, e))
	check1(t, n.CopyAsync(0x20, 0x10, 5, s))
	pinned := must[Ptr](t)(n.HostAlloc(4096))
	for i, b := range unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&pinned))), 4096) {
		if b != 0 {
			t.Fatalf("byte %d of pinned memory is %#x, not 0", i, b)
		}
	}
	expect(t, calls, "stream 1", "event 2", "record 225 81", "wait 81 225", "copy 0x20 0x10 5", "hostalloc 4096 3")

	if done, err := n.StreamQuery(s); done || err != nil {
		t.Errorf("busy stream: %v %v", done, err)
	}
	if done, err := n.StreamQuery(5); !done || err != nil {
		t.Errorf("idle stream: %v %v", done, err)
	}
	if done, err := n.StreamQuery(0x700); done || !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("broken stream: %v %v", done, err)
	}
	if done, err := n.EventQuery(e); !done || err != nil {
		t.Errorf("event: %v %v", done, err)
	}
	var ce *Error
	if err := n.StreamSynchronize(0x700); !errors.As(err, &ce) || ce.Call != "cuStreamSynchronize" || ce.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" {
		t.Errorf("synchronise: %v", err)
	}
	if err := n.CopyAsync(1, 2, -1, s); !errors.Is(err, ErrInvalidValue) {
		t.Errorf("negative copy: %v", err)
	}
	if _, err := n.MemAlloc(1 << 40); !errors.Is(err, ErrOutOfMemory) || err.Error() != "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)" {
		t.Errorf("large allocation: %v", err)
	}
	for _, bytes := range []int64{0, -1} {
		if _, err := n.MemAlloc(bytes); !errors.Is(err, ErrInvalidValue) {
			t.Errorf("MemAlloc(%d): %v", bytes, err)
		}
	}
}

func TestHostMemoryAndWords(t *testing.T) {
	n, calls := open(t, Options{})
	check1(t, n.HostRegister(0x10000, 8192))
	check1(t, n.HostUnregister(0x10000))
	check1(t, n.StreamWriteValue32(9, 0x10040, 0xfffffff0))
	expect(t, calls, "register 0x10000 8192 3", "unregister 0x10000", "write 9 0x10040 4294967280 0")
	if err := n.HostRegister(0x10000, 0); !errors.Is(err, ErrInvalidValue) {
		t.Errorf("nothing: %v", err)
	}
}

// TestAllocationAt: what kernels can read at its own addresses, and nobody takes away meanwhile. The stub has a kind of
// memory at each megabyte.
func TestAllocationAt(t *testing.T) {
	for _, old := range []bool{false, true} {
		if old {
			t.Setenv("OLD_ATTRIBUTES", "1")
		}
		n, _ := open(t, Options{})
		for i, want := range []bool{true, true, true, !old, false, false, false, false} {
			base := Ptr(i) << 20
			r, ok := n.AllocationAt(base + 80)
			if ok != want || ok && r != (Range{Base: base, Bytes: 4096}) {
				t.Errorf("memory of kind %d, old driver %v: %v, %v", i, old, r, ok)
			}
			if r, ok := n.AllocationAt(base + 4096); ok {
				t.Errorf("behind memory of kind %d: %v", i, r)
			}
		}
	}
}

func TestKernels(t *testing.T) {
	n, calls := open(t, Options{})
	m := must[Module](t)(n.LoadModule([]byte(".version 7.0")))
	f := must[Function](t)(n.ModuleFunction(m, "scan"))
	check1(t, n.Launch(f, [3]uint32{7, 1, 1}, [3]uint32{256, 1, 1}, 9, 0x7f0000000000, 5))
	check1(t, n.UnloadModule(m))
	expect(t, calls, "module .version 7.0", "launch 0x31 7,1,1 256,1,1 0 on 9: 0x7f0000000000 0x5", "unload 0x30")

	if _, err := n.ModuleFunction(m, "other"); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("unknown kernel: %v", err)
	}
	if err := n.Launch(f, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 9, make([]uint64, 17)...); !errors.Is(err, ErrInvalidValue) {
		t.Errorf("17 arguments: %v", err)
	}
	if _, err := n.LoadModule(nil); !errors.Is(err, ErrInvalidValue) {
		t.Errorf("no image: %v", err)
	}
	_, err := n.LoadModule([]byte("bad"))
	if err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_INVALID_PTX (218): line 1; nonsense") {
		t.Errorf("what the compiler says: %v", err)
	}
}

func TestVirtualMemory(t *testing.T) {
	n, calls := open(t, Options{})
	p := must[Ptr](t)(n.AddressReserve(4<<20, 2<<20, 0x100))
	d := must[Handle](t)(n.MemCreate(2<<20, Device))
	must[Handle](t)(n.MemCreate(2<<20, Host))
	check1(t, n.Map(p, 2<<20, d))
	check1(t, n.SetAccess(p, 2<<20))
	check1(t, n.Unmap(p, 2<<20))
	check1(t, n.MemRelease(d))
	check1(t, n.AddressFree(p, 4<<20))
	expect(t, calls, "reserve 4194304 2097152 0x100", "create 2097152 1:0 type 1", "create 2097152 3:1 type 1",
		"map 0x9000000 2097152 0 0x42", "access 0x9000000 2097152 1:0 3", "unhandle 0x42")
}

func TestManagedLimit(t *testing.T) {
	n, _ := open(t, Options{ManagedLimitBytes: 1000})
	a := must[Ptr](t)(n.MemAllocManaged(600))
	_, err := n.MemAllocManaged(401)
	var limit *ManagedLimitError
	if !errors.Is(err, ErrManagedLimit) || !errors.Is(err, ErrOutOfMemory) || !errors.As(err, &limit) ||
		*limit != (ManagedLimitError{RequestedBytes: 401, LiveBytes: 600, LimitBytes: 1000}) {
		t.Fatalf("past the limit: %v", err)
	}
	b := must[Ptr](t)(n.MemAllocManaged(400)) // exactly full
	if _, err := n.MemAllocManaged(1); !errors.Is(err, ErrManagedLimit) {
		t.Errorf("full: %v", err)
	}
	check1(t, n.MemFree(a))
	if n.ManagedBytes() != 400 {
		t.Errorf("%d bytes live, want 400", n.ManagedBytes())
	}
	if _, err := n.MemAllocManaged(13); !errors.Is(err, ErrOutOfMemory) || errors.Is(err, ErrManagedLimit) {
		t.Errorf("the driver's own refusal: %v", err)
	}
	plain := must[Ptr](t)(n.MemAlloc(1 << 20)) // not managed: no business of the limit
	check1(t, n.MemFree(plain))
	check1(t, n.MemFree(b))
	if n.ManagedBytes() != 0 {
		t.Errorf("%d bytes live at the end", n.ManagedBytes())
	}
	if _, err := n.MemAllocManaged(1 << 62); !errors.Is(err, ErrManagedLimit) {
		t.Errorf("huge: %v", err)
	}
}

func TestManagedFreeThatFails(t *testing.T) {
	n, _ := open(t, Options{ManagedLimitBytes: 100})
	check1(t, n.managed.reserve(60))
	n.managed.commit(0xbad, 60)
	for range 2 { // twice: a failed free must leave the entry in place
		if err := n.MemFree(0xbad); !errors.Is(err, ErrInvalidValue) {
			t.Fatalf("free: %v", err)
		}
		if n.ManagedBytes() != 60 {
			t.Fatalf("%d bytes live after a failed free, want 60", n.ManagedBytes())
		}
	}
}

func TestManagedLimitConcurrently(t *testing.T) {
	const limit, each = 1000, 70
	n, _ := open(t, Options{ManagedLimitBytes: limit})
	var wg sync.WaitGroup
	var got atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if _, err := n.MemAllocManaged(each); err == nil {
					got.Add(each)
				} else if !errors.Is(err, ErrManagedLimit) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if want := int64(limit / each * each); got.Load() != want || n.ManagedBytes() != want {
		t.Errorf("%d bytes handed out, %d counted, want %d", got.Load(), n.ManagedBytes(), want)
	}
}

func TestResolveReplacesDlsym(t *testing.T) {
	library, calls := stub(t)
	handle, why := openLibrary(library)
	if handle == nil {
		t.Fatal(why)
	}
	asked := map[string]int{}
	resolve := func(name string) unsafe.Pointer {
		asked[name]++
		if name == "cuMemDiscardBatchAsync" || name == "cuMemPrefetchBatchAsync" {
			return nil
		}
		return lookUp(handle, name)
	}
	// The library named exports everything: a nil answer must still mean "missing".
	n, err := OpenNative(Options{Library: library, Resolve: resolve})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if c := n.Capabilities(); c.DiscardBatch || c.PrefetchBatch || !c.VirtualMemory {
		t.Errorf("capabilities %+v", c)
	}
	for name, times := range asked {
		if times != 1 {
			t.Errorf("%s was looked up %d times", name, times)
		}
	}
	for _, name := range []string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuCtxSetCurrent", "cuMemPrefetchAsync_v2"} {
		if asked[name] != 1 {
			t.Errorf("%s was not looked up", name)
		}
	}
	calls()

	// With a resolver the library itself need not be there.
	n2, err := OpenNative(Options{Library: "/nowhere/libcuda.so.1", Resolve: resolve})
	if err != nil {
		t.Fatal(err)
	}
	n2.Close()
	_, err = Open(Options{Library: "/nowhere/libcuda.so.1", Resolve: func(string) unsafe.Pointer { return nil }})
	if !errors.Is(err, ErrNoLibrary) {
		t.Errorf("nothing resolved: %v", err)
	}
}
