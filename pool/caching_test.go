package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

var errFull = errors.New("full")

// device is a Source with a capacity. Addresses are never given out twice.
type device struct {
	capacity, used int64
	next           cuda.Ptr
	segments       map[cuda.Ptr]int64
	acquired       []int64 // sizes, in order
	releaseError   error
}

func newDevice(capacity int64) *device {
	return &device{capacity: capacity, next: 1 << 30, segments: map[cuda.Ptr]int64{}}
}

func (d *device) Acquire(bytes int64) (cuda.Ptr, error) {
	if d.used+bytes > d.capacity {
		return 0, errFull
	}
	p := d.next
	d.next += cuda.Ptr(bytes) + 2<<20 // segments never touch
	d.used += bytes
	d.segments[p] = bytes
	d.acquired = append(d.acquired, bytes)
	return p, nil
}

func (d *device) Release(p cuda.Ptr, bytes int64) error {
	if d.releaseError != nil {
		return d.releaseError
	}
	if d.segments[p] != bytes {
		return fmt.Errorf("release of %d bytes at %#x: not a segment", bytes, uint64(p))
	}
	delete(d.segments, p)
	d.used -= bytes
	return nil
}

// queues are Fences over streams whose work the test finishes by hand.
type queues struct {
	queued, done map[uint64]int
	asked        []uint64
	err          error
}

type mark struct {
	stream uint64
	until  int
}

func newQueues() *queues { return &queues{queued: map[uint64]int{}, done: map[uint64]int{}} }

func (q *queues) work(stream uint64)   { q.queued[stream]++ }
func (q *queues) finish(stream uint64) { q.done[stream] = q.queued[stream] }

func (q *queues) Fence(stream uint64) (any, error) {
	q.asked = append(q.asked, stream)
	return mark{stream, q.queued[stream]}, q.err
}

func (q *queues) Passed(f any) bool {
	m := f.(mark)
	return q.done[m.stream] >= m.until
}

const mib = 1 << 20

func mustMalloc(t *testing.T, c *Caching, bytes int64, stream uint64) cuda.Ptr {
	t.Helper()
	p, err := c.Malloc(bytes, stream)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c)
	return p
}

func mustFree(t *testing.T, c *Caching, p cuda.Ptr) {
	t.Helper()
	if err := c.Free(p); err != nil {
		t.Fatal(err)
	}
	check(t, c)
}

func check(t *testing.T, c *Caching) {
	t.Helper()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestSegmentSizes(t *testing.T) {
	for _, c := range []struct{ bytes, segment, block int64 }{
		{1, 2 * mib, 512},
		{512, 2 * mib, 512},
		{513, 2 * mib, 1024},
		{mib, 2 * mib, mib},
		{mib + 1, 20 * mib, mib + 512},
		{10*mib - 512, 20 * mib, 10*mib - 512},
		{10 * mib, 10 * mib, 10 * mib},
		{10*mib + 1, 12 * mib, 10*mib + 512},
		{11*mib + 512, 12 * mib, 12 * mib}, // the rest is too small to split off
		{100*mib + 3, 102 * mib, 100*mib + 512},
	} {
		d := newDevice(1 << 40)
		a := NewCaching(d, nil)
		p := mustMalloc(t, a, c.bytes, 0)
		if d.acquired[0] != c.segment {
			t.Errorf("%d bytes: a segment of %d, want %d", c.bytes, d.acquired[0], c.segment)
		}
		if got := a.Bytes(p); got != c.block {
			t.Errorf("%d bytes: a block of %d, want %d", c.bytes, got, c.block)
		}
	}
}

func TestSplitAndJoin(t *testing.T) {
	d := newDevice(1 << 40)
	a := NewCaching(d, nil)
	var p [4]cuda.Ptr
	for i := range p {
		p[i] = mustMalloc(t, a, 4*mib, 0)
		if want := p[0] + cuda.Ptr(i*4*mib); p[i] != want {
			t.Fatalf("block %d is at %#x, want %#x", i, uint64(p[i]), uint64(want))
		}
	}
	mustFree(t, a, p[0])
	mustFree(t, a, p[2])
	if a.HasEmpty() {
		t.Error("the segment is said to be empty with two blocks live")
	}
	mustFree(t, a, p[1]) // joins both ways: 12 MiB in one piece
	if q := mustMalloc(t, a, 9*mib, 0); q != p[0] {
		t.Errorf("9 MiB at %#x, want the joined block at %#x", uint64(q), uint64(p[0]))
	} else {
		mustFree(t, a, q)
	}
	mustFree(t, a, p[3])
	if !a.HasEmpty() || len(d.acquired) != 1 {
		t.Errorf("empty %t, %d segments", a.HasEmpty(), len(d.acquired))
	}
	if n := a.EmptyCache(); n != 20*mib || d.used != 0 || a.Stats().ReservedBytes != 0 {
		t.Errorf("%d bytes released, %d still taken, %d reserved", n, d.used, a.Stats().ReservedBytes)
	}
}

func TestBestFit(t *testing.T) {
	a := NewCaching(newDevice(1<<40), nil)
	// Free blocks of 5, 2 and 3 MiB, kept apart by live ones.
	var free []cuda.Ptr
	for _, n := range []int64{5, 2, 3} {
		free = append(free, mustMalloc(t, a, n*mib, 0))
		mustMalloc(t, a, 3*mib/2, 0)
	}
	for _, p := range free {
		mustFree(t, a, p)
	}
	if p := mustMalloc(t, a, 2*mib+mib/2, 0); p != free[2] {
		t.Errorf("2.5 MiB at %#x, want the smallest that fits, at %#x", uint64(p), uint64(free[2]))
	}
	if p := mustMalloc(t, a, 2*mib, 0); p != free[1] {
		t.Errorf("2 MiB at %#x, want the exact fit at %#x", uint64(p), uint64(free[1]))
	}
}

// TestStreams: a block is reused at once for its own stream and never for another.
func TestStreams(t *testing.T) {
	a := NewCaching(newDevice(1<<40), newQueues())
	p := mustMalloc(t, a, 4*mib, 1)
	mustFree(t, a, p)
	if q := mustMalloc(t, a, 4*mib, 2); q == p {
		t.Error("stream 2 was given what stream 1 freed")
	}
	if q := mustMalloc(t, a, 4*mib, 1); q != p {
		t.Errorf("stream 1 was given %#x, want what it freed, %#x", uint64(q), uint64(p))
	}
}

func TestRecordStream(t *testing.T) {
	q := newQueues()
	a := NewCaching(newDevice(1<<40), q)
	p := mustMalloc(t, a, 4*mib, 1)
	for range 2 {
		a.RecordStream(p, 2)
	}
	a.RecordStream(p, 1)      // its own: needs no fence
	a.RecordStream(p, 3)      // a third
	a.RecordStream(p+512, 9)  // not an allocation: nothing
	a.RecordStream(1<<50, 10) // nor this
	q.work(2)
	q.work(3)
	mustFree(t, a, p)
	if fmt.Sprint(q.asked) != "[2 3]" {
		t.Errorf("fences on streams %v, want one on 2 and one on 3", q.asked)
	}
	q.work(2) // later work does not matter
	reused := func() bool {
		x := mustMalloc(t, a, 4*mib, 1)
		mustFree(t, a, x)
		return x == p
	}
	if reused() {
		t.Error("reused with both streams still to finish")
	}
	q.finish(3)
	if reused() {
		t.Error("reused with stream 2 still to finish")
	}
	q.done[2] = 1
	if !reused() {
		t.Error("not reused after both streams have passed")
	}
	if n := a.EmptyCache(); n != 20*mib {
		t.Errorf("%d bytes released, want the whole segment", n)
	}
}

func TestEmptyCacheWaitsForFences(t *testing.T) {
	q, d := newQueues(), newDevice(1<<40)
	a := NewCaching(d, q)
	p := mustMalloc(t, a, 30*mib, 1)
	a.RecordStream(p, 2)
	q.work(2)
	mustFree(t, a, p)
	if n := a.EmptyCache(); n != 0 {
		t.Errorf("%d bytes released while stream 2 works on them", n)
	}
	q.finish(2)
	if n := a.EmptyCache(); n != 30*mib {
		t.Errorf("%d bytes released, want 30 MiB", n)
	}
}

func TestRetryGivesCacheBack(t *testing.T) {
	d := newDevice(40 * mib)
	a := NewCaching(d, nil)
	p := mustMalloc(t, a, 15*mib, 0)
	keep := mustMalloc(t, a, 15*mib, 0)
	mustFree(t, a, p)
	mustMalloc(t, a, 20*mib, 0) // 32 of 40 MiB taken, 16 of them cached
	s := a.Stats()
	if s.Retries != 1 || s.ReservedBytes != d.used || d.used != 36*mib {
		t.Errorf("%+v with %d bytes taken", s, d.used)
	}
	if _, err := a.Malloc(20*mib, 0); !errors.Is(err, errFull) {
		t.Errorf("with nothing to give back: %v, want the source's error", err)
	}
	if !a.Owns(keep) || a.Stats().Allocs != 3 {
		t.Errorf("after a failure: %+v", a.Stats())
	}
	check(t, a)
}

func TestErrors(t *testing.T) {
	q, d := newQueues(), newDevice(1<<40)
	a := NewCaching(d, q)
	for _, n := range []int64{0, -1} {
		if _, err := a.Malloc(n, 0); err == nil {
			t.Errorf("Malloc(%d) succeeds", n)
		}
	}
	p := mustMalloc(t, a, 100, 0)
	for _, bad := range []cuda.Ptr{0, p + 512, 1 << 50} {
		if err := a.Free(bad); err == nil || !strings.Contains(err.Error(), "not a live allocation") {
			t.Errorf("Free(%#x): %v", uint64(bad), err)
		}
	}
	mustFree(t, a, p)
	if err := a.Free(p); err == nil {
		t.Error("a second free succeeds")
	}
	if a.Bytes(p) != 0 || a.Owns(p) {
		t.Error("a freed block is still owned")
	}
	// A segment that the source does not take back stays usable.
	d.releaseError = errors.New("busy")
	if n := a.EmptyCache(); n != 0 || a.Stats().ReservedBytes != 2*mib {
		t.Errorf("%d bytes released, %d reserved", n, a.Stats().ReservedBytes)
	}
	if q := mustMalloc(t, a, 100, 0); q != p {
		t.Errorf("at %#x, want the cached segment at %#x", uint64(q), uint64(p))
	}
}

func TestPeaks(t *testing.T) {
	a := NewCaching(newDevice(1<<40), nil)
	p := mustMalloc(t, a, 5*mib, 0)
	r := mustMalloc(t, a, 3*mib+1, 0)
	mustFree(t, a, p)
	if s := a.Stats(); s.LiveBytes != 3*mib+1 || s.LivePeakBytes != 8*mib+1 || s.ReservedPeakBytes != 20*mib {
		t.Errorf("%+v", s)
	}
	a.ResetPeaks()
	if s := a.Stats(); s.LivePeakBytes != s.LiveBytes || s.ReservedPeakBytes != s.ReservedBytes {
		t.Errorf("after a reset: %+v", s)
	}
	mustFree(t, a, r)
	if s := a.Stats(); s.LiveBytes != 0 || s.Allocs != 2 || s.Frees != 2 || s.LivePeakBytes != 3*mib+1 {
		t.Errorf("%+v", s)
	}
}

// TestRandom drives the allocator with several streams and checks that no two
// users of an address overlap in time, by a model of its own.
func TestCachingRandom(t *testing.T) {
	type use struct {
		p      cuda.Ptr
		bytes  int64
		stream uint64
		marks  []mark // of other streams that used it
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q, d := newQueues(), newDevice(400*mib)
		a := NewCaching(d, q)
		var live, dead []use
		var liveBytes int64
		for step := range 1500 {
			switch k := rng.IntN(10); {
			case k < 5:
				n := int64(1) << rng.IntN(25)
				n += rng.Int64N(n)
				s := uint64(rng.IntN(3))
				p, err := a.Malloc(n, s)
				if err != nil {
					if !errors.Is(err, errFull) {
						t.Fatal(err)
					}
					break
				}
				for _, x := range live {
					if p < x.p+cuda.Ptr(x.bytes) && x.p < p+cuda.Ptr(n) {
						t.Fatalf("seed %d step %d: [%#x,+%d) overlaps live [%#x,+%d)", seed, step, uint64(p), n, uint64(x.p), x.bytes)
					}
				}
				for _, x := range dead { // reuse by its own stream, after the others
					if p >= x.p+cuda.Ptr(x.bytes) || x.p >= p+cuda.Ptr(n) {
						continue
					}
					if x.stream != s {
						t.Fatalf("seed %d step %d: stream %d was given memory of stream %d", seed, step, s, x.stream)
					}
					for _, m := range x.marks {
						if !q.Passed(m) {
							t.Fatalf("seed %d step %d: reused before stream %d has finished with it", seed, step, m.stream)
						}
					}
				}
				live = append(live, use{p: p, bytes: n, stream: s})
				liveBytes += n
			case k < 8 && len(live) > 0:
				i := rng.IntN(len(live))
				x := live[i]
				live = append(live[:i], live[i+1:]...)
				for s := range uint64(3) {
					if s != x.stream && rng.IntN(4) == 0 {
						a.RecordStream(x.p, s)
						x.marks = append(x.marks, mark{s, q.queued[s]})
					}
				}
				if err := a.Free(x.p); err != nil {
					t.Fatal(err)
				}
				liveBytes -= x.bytes
				if len(x.marks) > 0 {
					dead = append(dead, x)
				}
			case k == 8:
				q.work(uint64(rng.IntN(3)))
			case rng.IntN(20) == 0:
				a.EmptyCache()
			default:
				q.finish(uint64(rng.IntN(3)))
			}
			if err := errors.Join(a.Check(), segments.Check(a.Segments(), a.Stats().LiveBytes)); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			if s := a.Stats(); s.ReservedBytes != d.used || s.LiveBytes != liveBytes {
				t.Fatalf("seed %d step %d: %+v with %d taken and %d live", seed, step, s, d.used, liveBytes)
			}
		}
		for _, x := range live {
			if err := a.Free(x.p); err != nil {
				t.Fatal(err)
			}
		}
		for s := range uint64(3) {
			q.finish(s)
		}
		if a.EmptyCache(); d.used != 0 || len(d.segments) != 0 {
			t.Fatalf("seed %d: %d bytes left in %d segments", seed, d.used, len(d.segments))
		}
	}
}

// BenchmarkCaching is a steady state with a thousand blocks, as a training loop has.
func BenchmarkCaching(b *testing.B) {
	a := NewCaching(newDevice(1<<40), nil)
	rng := rand.New(rand.NewPCG(1, 2))
	var live [1000]cuda.Ptr
	sizes := make([]int64, 64)
	for i := range sizes {
		sizes[i] = 512 << rng.IntN(16)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := rng.IntN(len(live))
		if live[k] != 0 {
			if err := a.Free(live[k]); err != nil {
				b.Fatal(err)
			}
		}
		p, err := a.Malloc(sizes[i%len(sizes)], 0)
		if err != nil {
			b.Fatal(err)
		}
		live[k] = p
	}
}

// TestMallocAt: what was an allocation is one again where it was, whatever its neighbours have become, and nothing that is in use is given away.
func TestMallocAt(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	for range 50 {
		c := NewCaching(newDevice(1<<40), nil)
		bytes := map[cuda.Ptr]int64{}
		for range 60 {
			n := 1 + r.Int64N(3<<r.IntN(22))
			p, err := c.Malloc(n, 0)
			if err != nil {
				t.Fatal(err)
			}
			bytes[p] = n
		}
		before := c.Live()
		for p := range bytes {
			if err := c.Free(p); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range before {
			if bytes[b.Base] != b.Bytes {
				t.Fatalf("%d bytes at %#x, of which %d were asked for", b.Bytes, uint64(b.Base), bytes[b.Base])
			}
		}
		r.Shuffle(len(before), func(i, j int) { before[i], before[j] = before[j], before[i] })
		for i, b := range before[:len(before)/2] {
			if err := c.MallocAt(b.Base, b.Bytes); err != nil {
				t.Fatal(err)
			}
			if err := c.MallocAt(before[r.IntN(i+1)].Base, 1); err == nil {
				t.Fatal("what is in use was given away")
			}
		}
		if p, err := c.Malloc(1<<20, 0); err != nil || c.Bytes(p) < 1<<20 {
			t.Fatal(p, err)
		} else if err := c.Free(p); err != nil {
			t.Fatal(err)
		}
		for _, b := range before[len(before)/2:] {
			if err := c.MallocAt(b.Base, b.Bytes); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		if live := c.Live(); len(live) != len(before) || c.Stats().LiveBytes == 0 {
			t.Fatalf("%d allocations, %d were made again", len(live), len(before))
		}
		for _, b := range c.Live() {
			if bytes[b.Base] != b.Bytes {
				t.Fatalf("%d bytes at %#x", b.Bytes, uint64(b.Base))
			}
			if err := c.Free(b.Base); err != nil {
				t.Fatal(err)
			}
		}
		if c.EmptyCache(); c.Stats().ReservedBytes != 0 {
			t.Fatalf("%d bytes reserved", c.Stats().ReservedBytes)
		}
	}
}

func TestMallocAtElsewhere(t *testing.T) {
	c := NewCaching(newDevice(1<<30), nil)
	p, err := c.Malloc(4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	for what, at := range map[string]cuda.Ptr{"in use": p, "in no segment": 1 << 20, "odd": p + 4097, "beyond the segment": p + SmallSegmentBytes - 512} {
		if err := c.MallocAt(at, 1024); err == nil {
			t.Errorf("%s: allocated", what)
		}
	}
	if err := c.MallocAt(p+4096, 0); err == nil {
		t.Error("nothing was allocated")
	}
}
