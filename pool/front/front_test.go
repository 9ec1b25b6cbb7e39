package front

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

func newFront(t *testing.T, most, notedAbove int64) *Front {
	t.Helper()
	f, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	f.Serve(most, notedAbove, true)
	return f
}

// add makes an allocation as the pool would.
func add(t *testing.T, f *Front, at cuda.Ptr, bytes int64, stream uint64) {
	t.Helper()
	held, epoch := f.Take(bytes, stream)
	if held != 0 {
		t.Fatalf("%#x was held for %d bytes on stream %d", uint64(held), bytes, stream)
	}
	f.Add(at, bytes, stream, epoch)
}

func TestServesTheSameSizeAndStream(t *testing.T) {
	f := newFront(t, All, All)
	add(t, f, 512, 1000, 1)
	f.Settle(1000, 0)
	if how := f.Hold(512); how != Held {
		t.Fatalf("freed: %d", how)
	}
	if how := f.Hold(512); how != NotLive {
		t.Errorf("freed twice: %d", how)
	}
	if f.Forget(512) {
		t.Error("the pool is told that a stream uses what was freed")
	}
	for _, other := range []struct {
		bytes  int64
		stream uint64
	}{{1001, 1}, {999, 1}, {1000, 2}} {
		if at, _ := f.Take(other.bytes, other.stream); at != 0 {
			t.Errorf("%#x is given out for %+v", uint64(at), other)
		}
	}
	if n, k := f.HeldBytes(), f.HeldCount(); n != 1000 || k != 1 {
		t.Errorf("%d bytes held in %d, want 1000 in 1", n, k)
	}
	if at, _ := f.Take(1000, 1); at != 512 {
		t.Errorf("%#x is given out", uint64(at))
	}
	if f.HeldBytes() != 0 || f.Served() != 1 || f.LivePeakBytes() != 1000 {
		t.Errorf("%d held, %d served, peak %d", f.HeldBytes(), f.Served(), f.LivePeakBytes())
	}
}

func TestForgetsWhatAnotherStreamUses(t *testing.T) {
	f := newFront(t, All, All)
	add(t, f, 512, 1000, 1)
	if !f.Forget(512) {
		t.Error("the pool is not told")
	}
	if how := f.Hold(512); how != Pass {
		t.Errorf("what another stream used is held: %d", how)
	}
	if how := f.Hold(1024); how != Pass {
		t.Errorf("what is unknown is held: %d", how)
	}
}

// TestEpoch: what was asked for before the epoch changed is not the front's to hold.
func TestEpoch(t *testing.T) {
	f := newFront(t, All, All)
	_, epoch := f.Take(1000, 1)
	f.Serve(0, All, true)
	f.Serve(All, All, true)
	f.Add(512, 1000, 1, epoch)
	if how := f.Hold(512); how != Pass {
		t.Errorf("freed: %d", how)
	}
	add(t, f, 1024, 1000, 1)
	f.Serve(0, All, true)
	if how := f.Hold(1024); how != Pass {
		t.Errorf("freed while nothing is served: %d", how)
	}
}

func TestLimits(t *testing.T) {
	f := newFront(t, 4096, All)
	add(t, f, 512, 8192, 1)
	if how := f.Hold(512); how != Pass {
		t.Error("more than the limit is held")
	}
	add(t, f, 1024, 4096, 1)
	f.Hold(1024)
	add(t, f, 8192, 100, 1)
	f.Hold(8192)
	var back []cuda.Ptr
	if n := f.Empty(100, All, func(at cuda.Ptr) { back = append(back, at) }); n != 4096 || len(back) != 1 || back[0] != 1024 {
		t.Errorf("%d bytes of %v came back", n, back)
	}
	if n := f.HeldBytes(); n != 4196 {
		t.Errorf("%d bytes held before the pool has freed them", n)
	}
	f.Settle(100, 4096)
	if n := f.HeldBytes(); n != 100 {
		t.Errorf("%d bytes held", n)
	}
	if at, _ := f.Take(4096, 1); at != 0 {
		t.Error("what went back is given out")
	}
}

// TestNotes: in order; and when there is no room for one, the pool is called.
func TestNotes(t *testing.T) {
	f := newFront(t, All, 100)
	add(t, f, 512, 1000, 3)
	add(t, f, 1024, 50, 3)
	for range 300 {
		f.Hold(512)
		f.Hold(1024)
		f.Take(50, 3)
		f.Take(1000, 3)
	}
	if !f.HasNotes() {
		t.Fatal("nothing is noted")
	}
	n := 0
	f.Notes(func(c Note) {
		if n++; c.At != 512 || n%2 == 1 && c.Bytes != 0 || n%2 == 0 && (c.Bytes != 1000 || c.Stream != 3) {
			t.Errorf("note %d: %+v", n, c)
		}
	})
	if n != 600 || f.HasNotes() {
		t.Errorf("%d notes, want 600", n)
	}
	for range 2 * len(f.notes) {
		if f.Hold(512) != Held {
			return
		}
		f.Take(1000, 3)
	}
	t.Error("calls go on when they cannot be noted any more")
}

// TestManySizes: sizes that fill the shelves are passed on, and forgotten when nothing is held.
func TestManySizes(t *testing.T) {
	f := newFront(t, All, All)
	const sizes = 10_000
	for i := range cuda.Ptr(sizes) {
		add(t, f, 512*(i+1), int64(i+1), 1)
	}
	held := 0
	for i := range cuda.Ptr(sizes) {
		if f.Hold(512*(i+1)) == Held {
			held++
		}
	}
	back := 0
	f.Empty(0, All, func(cuda.Ptr) { back++ })
	if held == 0 || held == sizes || back != held {
		t.Errorf("%d held, %d came back", held, back)
	}
	add(t, f, 512, sizes+1, 1)
	if f.Hold(512) != Held {
		t.Error("the shelves were not cleared")
	}
}

// TestThreads: nothing is in two hands at a time, and nothing is lost.
func TestThreads(t *testing.T) {
	f := newFront(t, All, All)
	const threads, rounds, streams = 8, 20_000, 3
	var next sync.Mutex // the pool
	made := cuda.Ptr(0)
	var owners sync.Map
	var wait sync.WaitGroup
	for thread := range threads {
		wait.Add(1)
		go func() {
			defer wait.Done()
			rng := rand.New(rand.NewPCG(uint64(thread), 1))
			var live []cuda.Ptr
			for range rounds {
				if len(live) < 20 && rng.IntN(2) == 0 {
					bytes, stream := 1+rng.Int64N(10), rng.Uint64N(streams)
					at, epoch := f.Take(bytes, stream)
					if at == 0 {
						next.Lock()
						made += 512
						at = made
						next.Unlock()
						f.Add(at, bytes, stream, epoch)
					}
					if other, taken := owners.Swap(at, thread); taken {
						t.Errorf("%#x belongs to thread %d", uint64(at), other)
					}
					live = append(live, at)
				} else if len(live) > 0 {
					at := live[len(live)-1]
					live = live[:len(live)-1]
					owners.Delete(at)
					if how := f.Hold(at); how != Held {
						t.Errorf("freed: %d", how)
					}
				}
			}
			for _, at := range live {
				owners.Delete(at)
				f.Hold(at)
			}
		}()
	}
	wait.Wait()
	back := map[cuda.Ptr]bool{}
	f.Empty(0, All, func(at cuda.Ptr) { back[at] = true })
	if len(back) != int(made/512) || f.HeldCount() != 0 {
		t.Errorf("%d of %d came back, %d are left", len(back), made/512, f.HeldCount())
	}
}

// TestRecall: what is held goes back to its owner, but not when the job has taken it
// again meanwhile, also if it was freed once more since.
func TestRecall(t *testing.T) {
	f := newFront(t, All, -1) // every call is noted
	read := func() (n uint64) {
		f.Notes(func(Note) { n++ })
		return n
	}
	for _, at := range []cuda.Ptr{512, 1024, 1536} {
		add(t, f, at, 100, 3)
	}
	for _, at := range []cuda.Ptr{512, 1024, 1536} {
		f.Hold(at)
	}
	seen := uint64(2)
	if f.Recall(1536, seen) {
		t.Error("recalled, although the owner has not seen that it is held")
	}
	seen += read() - 2
	if !f.Recall(1024, seen) || f.Recall(1024, seen) {
		t.Error("what is in the middle of the shelf is not recalled once")
	}
	if at, _ := f.Take(100, 3); at != 1536 || f.Recall(1536, seen) {
		t.Errorf("%#x is given out, or recalled after", uint64(at))
	}
	f.Hold(1536)
	if f.Recall(1536, seen) {
		t.Error("recalled, although it was in use since the owner has last looked")
	}
	seen += read()
	if !f.Recall(1536, seen) || !f.Recall(512, seen) {
		t.Error("what is held is not recalled")
	}
	if at, _ := f.Take(100, 3); at != 0 || f.HeldCount() != 0 || f.HeldBytes() != 0 {
		t.Errorf("%#x is given out of nothing; %d of %d bytes are held", uint64(at), f.HeldCount(), f.HeldBytes())
	}
	if how := f.Hold(512); how != Pass {
		t.Errorf("a free of what was recalled is answered with %d", how)
	}
}

// TestUnits: requests are alike in whole units, notes say what was asked for and when,
// and no more is given out than the owner says.
func TestUnits(t *testing.T) {
	f := newFront(t, All, -1)
	clock := uint64(7)
	f.Stand(cuda.Range{Base: 1 << 20, Bytes: 1 << 20}, 1000, 1000, &clock)
	add(t, f, 1<<20, 1700, 3)
	add(t, f, 1<<20+2000, 1001, 3)
	f.Hold(1 << 20)
	f.Hold(1<<20 + 2000)
	f.SetMost(-2000) // 4000 were given back
	clock = 9
	if at, _ := f.Take(2001, 3); at != 0 {
		t.Errorf("%#x is given out for more than it has", uint64(at))
	}
	if at, _ := f.Take(1999, 3); at != 1<<20+2000 {
		t.Errorf("%#x is given out", uint64(at))
	}
	if at, _ := f.Take(1999, 3); at != 0 {
		t.Errorf("%#x is given out beyond what may be", uint64(at))
	}
	runtime.KeepAlive(&clock)
	var last Note
	f.Notes(func(n Note) { last = n })
	if want := (Note{At: 1<<20 + 2000, Bytes: 1999, Stream: 3, When: 9, Requests: 2}); last != want {
		t.Errorf("the last note is %+v, want %+v", last, want)
	}
}

// TestSetApart: what the owner has set apart is never held, and its free is noted.
func TestSetApart(t *testing.T) {
	f := newFront(t, All, -1)
	at, epoch := f.Take(1000, 1)
	if at != 0 {
		t.Fatal("something is held")
	}
	f.SetApart(512, 1000, 1)
	f.Add(512, 1000, 1, epoch)
	if how := f.Hold(512); how != Held {
		t.Errorf("freed: %d", how)
	}
	var notes []Note
	f.Notes(func(n Note) { notes = append(notes, n) })
	if len(notes) != 1 || notes[0].At != 512 || notes[0].Bytes != 0 {
		t.Errorf("noted: %+v", notes)
	}
	if at, _ := f.Take(1000, 1); at != 0 || f.HeldCount() != 0 || f.HeldBytes() != 0 {
		t.Errorf("%#x is given out, %d held of %d bytes", uint64(at), f.HeldCount(), f.HeldBytes())
	}
	if how := f.Hold(512); how != Pass {
		t.Errorf("freed twice: %d", how)
	}
	f.SetApart(512, 1000, 1)
	if !f.Forget(512) {
		t.Error("the owner is not told that a stream uses it")
	}
}

// TestReserve: the request that a range is kept for gets it, if it is no larger; no other does. What was not given
// out can be recalled, what was given out cannot, and its free is noted, no more.
func TestReserve(t *testing.T) {
	f := newFront(t, All, -1)
	clock := uint64(1)
	f.Stand(cuda.Range{}, 0, 1000, &clock)
	add(t, f, 512, 1000, 1)
	f.Hold(512)
	next := f.Requests(1000, 1)
	kept := func(at cuda.Ptr) cuda.Range { return cuda.Range{Base: at, Bytes: 900} }
	for k, at := range []cuda.Ptr{2048, 4096, 8192} {
		if !f.Reserve(kept(at), 1000, 1, next+1+2*uint64(2-k)) { // the last one first
			t.Fatal("refused")
		}
	}
	if f.Hold(8192) != NotLive || f.Forget(8192) {
		t.Error("what is reserved counts as live")
	}
	take := func(bytes int64, want cuda.Ptr) {
		t.Helper()
		if at, _ := f.Take(bytes, 1); at != want {
			t.Errorf("%#x is given out, want %#x", uint64(at), uint64(want))
		}
	}
	take(1000, 512)
	take(900, 8192)
	if f.Recall(8192, 1<<60) {
		t.Error("recalled, although it was given out")
	}
	f.Hold(512)
	take(1000, 512)
	take(901, 0) // it has no such place, and is the owner's to serve
	take(900, 0)
	f.Hold(512)
	if !f.Recall(4096, 0) || f.Recall(4096, 0) {
		t.Error("what its request did not take is not recalled once")
	}
	if !f.Recall(2048, 0) {
		t.Error("what is kept for a request to come is not recalled")
	}
	take(900, 512)
	if f.Reserve(kept(2048), 1000, 1, next) {
		t.Error("reserved for a request that has come")
	}
	f.Notes(func(Note) {})
	if how := f.Hold(8192); how != Held || f.HeldCount() != 0 {
		t.Errorf("freed: %d, %d held", how, f.HeldCount())
	}
	var notes []Note
	f.Notes(func(n Note) { notes = append(notes, n) })
	if len(notes) != 1 || notes[0].At != 8192 || notes[0].Bytes != 0 {
		t.Errorf("noted: %+v", notes)
	}
	if how := f.Hold(8192); how != Pass {
		t.Errorf("freed twice: %d", how)
	}
	runtime.KeepAlive(&clock)
}

// TestReservedSurvive: when the shelves begin anew, what is reserved is not forgotten.
func TestReservedSurvive(t *testing.T) {
	f := newFront(t, All, All)
	if !f.Reserve(cuda.Range{Base: 512, Bytes: 1000}, 1000, 1, 0) {
		t.Fatal("refused")
	}
	for n := int64(1); n < 8000; n++ {
		add(t, f, cuda.Ptr(1<<20+n*512), 2000+n, 1)
	}
	f.Empty(0, All, func(cuda.Ptr) {})
	if at, _ := f.Take(1000, 1); at != 512 {
		t.Errorf("%#x is given out", uint64(at))
	}
}
