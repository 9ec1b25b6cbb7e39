package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
)

// measureSizes is how much is measured with; tests take less.
type measureSizes struct {
	checkBytes    int64
	rangeBytes    []int64 // of device code; the last is the largest
	poolBytes     int64
	segmentBytes  []int64 // of the pool
	copyBytes     int64
	copies        int
	inPlaceBytes  int64
	leastDuration time.Duration // of a timed loop
}

var fullSizes = measureSizes{
	checkBytes: 64 << 20, rangeBytes: []int64{1 << 20, 16 << 20, 64 << 20, 1 << 30},
	segmentBytes: []int64{64 << 20, 256 << 20, 1 << 30}, copyBytes: 64 << 20, copies: 32,
	inPlaceBytes: 64 << 20, leastDuration: 200 * time.Millisecond,
}

type measurer struct {
	driver cuda.Driver
	sizes  measureSizes
	report func(measured)
}

func (m *measurer) rate(what string, bytes int64, took time.Duration) {
	m.report(measured{what, float64(bytes) / took.Seconds() / 1e9, "GB/s"})
}

// repeat times f, which queues work on a stream, until it has taken long enough.
func (m *measurer) repeat(s cuda.Stream, f func() error) (each time.Duration, err error) {
	if err := f(); err != nil { // the first is slower
		return 0, err
	}
	if err := m.driver.StreamSynchronize(s); err != nil {
		return 0, err
	}
	began, n := time.Now(), 0
	for time.Since(began) < m.sizes.leastDuration {
		for range 8 {
			if err := f(); err != nil {
				return 0, err
			}
			n++
		}
		if err := m.driver.StreamSynchronize(s); err != nil {
			return 0, err
		}
	}
	return time.Since(began) / time.Duration(n), nil
}

// free ends what a part has taken; the first failure is the part's.
func free[T any](err *error, f func(T) error, what T) {
	if e := f(what); *err == nil {
		*err = e
	}
}

// deviceCode checks the kernels and times them.
func (m *measurer) deviceCode() (err error) {
	d := m.driver
	began := time.Now()
	k, err := kernels.Load(d)
	if err != nil {
		return err
	}
	m.report(measured{"compiling and checking the device code", time.Since(began).Seconds() * 1e3, "ms"})
	defer func() {
		if e := k.Unload(); err == nil {
			err = e
		}
	}()
	if err := k.Check(m.sizes.checkBytes); err != nil {
		return err
	}
	s, err := d.StreamCreate()
	if err != nil {
		return err
	}
	defer free(&err, d.StreamDestroy, s)
	p, err := d.MemAlloc(slices.Max(m.sizes.rangeBytes))
	if err != nil {
		return err
	}
	defer free(&err, d.MemFree, p)
	out, err := d.HostAlloc(k.SumBytes())
	if err != nil {
		return err
	}
	defer free(&err, d.HostFree, out)
	f, err := k.NewFinder(1 << 16)
	if err != nil {
		return err
	}
	defer free(&err, (*kernels.Finder).Close, f)
	for _, bytes := range m.sizes.rangeBytes {
		r := cuda.Range{Base: p, Bytes: bytes}
		each, err := m.repeat(s, func() error { return k.Checksum(r, out, s) })
		if err != nil {
			return err
		}
		m.rate("checksum of "+size.Text(bytes), bytes, each)
		each, err = m.repeat(s, func() error {
			return f.Search([]cuda.Range{r}, [2]kernels.Span{{Lo: 1 << 62, Hi: 1<<62 + 1<<40}}, s)
		})
		if err != nil {
			return err
		}
		m.rate("search of "+size.Text(bytes), bytes, each)
	}
	return nil
}

// pinning grows a pool at several sizes of segment, and sees what that does to
// calls of another thread.
func (m *measurer) pinning() (err error) {
	d := m.driver
	k, err := kernels.Load(d)
	if err != nil {
		return err
	}
	defer func() {
		if e := k.Unload(); err == nil {
			err = e
		}
	}()
	calls, err := m.sample(k, func() func() bool {
		until := time.Now().Add(m.sizes.leastDuration)
		return func() bool { return time.Now().Before(until) }
	})
	if err != nil {
		return err
	}
	m.spread("beside nothing", calls)
	for _, segment := range m.sizes.segmentBytes {
		p, err := hostpool.New(d, hostpool.Config{BudgetBytes: m.sizes.poolBytes, SegmentBytes: segment}, zap.NewNop())
		if err != nil {
			return err
		}
		calls, err := m.sample(k, func() func() bool {
			p.Expect(m.sizes.poolBytes)
			return func() bool {
				s := p.Stats()
				return s.GrownBytes < s.BudgetBytes && s.Failure == nil
			}
		})
		s := p.Stats()
		if err == nil {
			err = s.Failure
		}
		if e := p.Close(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
		pinning := "pinning by " + size.Text(segment)
		m.rate(pinning, s.GrownBytes, s.Growing)
		m.spread("beside "+pinning, calls)
	}
	return nil
}

// calls are the times that calls took their thread.
type calls struct{ launch, copy []time.Duration }

// sample starts what is to go on beside and launches small kernels and copies, at least
// some of each, while that says so.
func (m *measurer) sample(k *kernels.Kernels, start func() (goesOn func() bool)) (c calls, err error) {
	d := m.driver
	s, err := d.StreamCreate()
	if err != nil {
		return c, err
	}
	defer free(&err, d.StreamDestroy, s)
	const bytes = 64 << 10
	p, err := d.MemAlloc(bytes)
	if err != nil {
		return c, err
	}
	defer free(&err, d.MemFree, p)
	h, err := d.HostAlloc(bytes + k.SumBytes())
	if err != nil {
		return c, err
	}
	defer free(&err, d.HostFree, h)
	goesOn := start()
	for first := true; first || goesOn(); first = false {
		for range 32 {
			at := time.Now()
			if err := k.Checksum(cuda.Range{Base: p, Bytes: 4096}, h+bytes, s); err != nil {
				return c, err
			}
			between := time.Now()
			if err := d.CopyAsync(p, h, bytes, s); err != nil {
				return c, err
			}
			c.launch, c.copy = append(c.launch, between.Sub(at)), append(c.copy, time.Since(between))
		}
		if err := d.StreamSynchronize(s); err != nil {
			return c, err
		}
	}
	return c, nil
}

// spread reports median, 99th percentile and maximum.
func (m *measurer) spread(beside string, c calls) {
	for _, kind := range []struct {
		name  string
		times []time.Duration
	}{{"launch", c.launch}, {"copy", c.copy}} {
		if len(kind.times) == 0 {
			continue
		}
		slices.Sort(kind.times)
		n := len(kind.times)
		for _, q := range []struct {
			name string
			at   int
		}{{"median", n / 2}, {"p99", n * 99 / 100}, {"most", n - 1}} {
			m.report(measured{fmt.Sprintf("%s %s, submitting, %s", kind.name, beside, q.name), float64(kind.times[q.at].Nanoseconds()) / 1e3, "us"})
		}
	}
}

// copies moves memory of a pool both ways, alone and together, and compares what comes back.
func (m *measurer) copies() (err error) {
	d, bytes := m.driver, m.sizes.copyBytes
	p, err := hostpool.New(d, hostpool.Config{BudgetBytes: 2 * bytes, SegmentBytes: 2 * bytes}, zap.NewNop())
	if err != nil {
		return err
	}
	defer free(&err, (*hostpool.Pool).Close, p)
	pieces, err := p.Take(2 * bytes)
	if err != nil {
		return err
	}
	if len(pieces) != 1 {
		return fmt.Errorf("the pool gave %d pieces of a segment of its own", len(pieces))
	}
	in, out := pieces[0].Base, pieces[0].Base+cuda.Ptr(bytes)
	device, err := d.MemAlloc(2 * bytes)
	if err != nil {
		return err
	}
	defer free(&err, d.MemFree, device)
	var streams [2]cuda.Stream
	for i := range streams {
		if streams[i], err = d.StreamCreate(); err != nil {
			return err
		}
		defer free(&err, d.StreamDestroy, streams[i])
	}
	toDevice := func() error { return d.CopyAsync(device, in, bytes, streams[0]) }
	toHost := func() error { return d.CopyAsync(out, device+cuda.Ptr(bytes), bytes, streams[1]) }
	run := func(what string, each int64, steps ...func() error) error {
		began := time.Now()
		for range m.sizes.copies {
			for _, f := range steps {
				if err := f(); err != nil {
					return err
				}
			}
		}
		for _, s := range streams {
			if err := d.StreamSynchronize(s); err != nil {
				return err
			}
		}
		m.rate(what, each*int64(m.sizes.copies), time.Since(began))
		return nil
	}
	each := size.Text(bytes)
	if err := run("copies to the device, "+each, bytes, toDevice); err != nil {
		return err
	}
	if err := run("copies to the host, "+each, bytes, toHost); err != nil {
		return err
	}
	if err := run("copies both ways at once, "+each+", in total", 2*bytes, toDevice, toHost); err != nil {
		return err
	}
	// What went there and back is the same.
	source, back := hostMemory(in, bytes), hostMemory(out, bytes)
	random := rand.New(rand.NewPCG(5, 6))
	for i := range source {
		source[i] = random.Uint64()
	}
	for _, err := range []error{
		toDevice(), d.CopyAsync(out, device, bytes, streams[0]), d.StreamSynchronize(streams[0]),
	} {
		if err != nil {
			return err
		}
	}
	if !slices.Equal(source, back) {
		return errors.New("what was copied to the device did not come back")
	}
	return nil
}

// hostInPlace reads physical host memory through the device.
func (m *measurer) hostInPlace() (err error) {
	d, bytes := m.driver, m.sizes.inPlaceBytes
	if !d.Capabilities().HostNUMA {
		return nil
	}
	p, err := d.AddressReserve(bytes, 0, 0)
	if err != nil {
		return err
	}
	defer func() { free(&err, func(p cuda.Ptr) error { return d.AddressFree(p, bytes) }, p) }()
	began := time.Now()
	h, err := d.MemCreate(bytes, cuda.Host)
	if err != nil {
		return err
	}
	defer free(&err, d.MemRelease, h)
	if err := d.Map(p, bytes, h); err != nil {
		return err
	}
	defer func() { free(&err, func(p cuda.Ptr) error { return d.Unmap(p, bytes) }, p) }()
	if err := d.SetAccess(p, bytes); err != nil {
		return err
	}
	m.report(measured{"making and mapping host memory, " + size.Text(bytes), time.Since(began).Seconds() * 1e3, "ms"})

	k, err := kernels.Load(d)
	if err != nil {
		return err
	}
	defer free(&err, (*kernels.Kernels).Unload, k)
	s, err := d.StreamCreate()
	if err != nil {
		return err
	}
	defer free(&err, d.StreamDestroy, s)
	pinned, err := d.HostAlloc(bytes + k.SumBytes())
	if err != nil {
		return err
	}
	defer free(&err, d.HostFree, pinned)
	content := hostMemory(pinned, bytes)
	for i := range content {
		content[i] = uint64(i) * 0x9e3779b9
	}
	r, out := cuda.Range{Base: p, Bytes: bytes}, pinned+cuda.Ptr(bytes)
	if err := d.CopyAsync(p, pinned, bytes, s); err != nil {
		return err
	}
	each, err := m.repeat(s, func() error { return k.Checksum(r, out, s) })
	if err != nil {
		return err
	}
	want := kernels.Sum(unsafe.Slice((*byte)(unsafe.Pointer(&content[0])), bytes))
	if got := k.Sum(bytes, out); got != want {
		return fmt.Errorf("the checksum of host memory in place is %v, it should be %v", got, want)
	}
	m.rate("checksum of host memory in place, "+size.Text(bytes), bytes, each)
	return nil
}

// hostMemory is pinned memory as the host sees it.
func hostMemory(p cuda.Ptr, bytes int64) []uint64 {
	return unsafe.Slice((*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), bytes/8)
}
