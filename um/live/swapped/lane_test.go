package swapped

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// pieceDriver copies pieces when it is told to.
type pieceDriver struct {
	*livetest.Driver
	t     *testing.T
	word  *uint32
	gives givesWay

	mu     sync.Mutex
	copied []cuda.Ptr // where from
	marks  []uint32
	done   int
	fails  bool
}

func (d *pieceDriver) CopyAsync(_, src cuda.Ptr, _ int64, _ cuda.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails {
		return errors.New("no copies today")
	}
	switch flying := len(d.copied) - d.done; {
	case flying > 1:
		d.t.Errorf("piece %d is queued behind two", len(d.copied))
	case flying == 1 && d.gives.paging.Load() != 0:
		d.t.Errorf("piece %d is queued behind another while page tables are written", len(d.copied))
	}
	d.copied = append(d.copied, src)
	return nil
}

func (d *pieceDriver) StreamWriteValue32(_ cuda.Stream, _ cuda.Ptr, v uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = append(d.marks, v)
	return nil
}

func (d *pieceDriver) StreamQuery(cuda.Stream) (bool, error) { return false, nil }

// queued waits until so many pieces have been queued.
func (d *pieceDriver) queued(n int) {
	d.t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Microsecond) {
		d.mu.Lock()
		have := len(d.marks)
		d.mu.Unlock()
		if have >= n {
			return
		}
		if time.Since(began) > 20*time.Second {
			d.t.Fatalf("%d pieces are queued, not %d", have, n)
		}
	}
}

// finish ends the first piece that is under way.
func (d *pieceDriver) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done++
	atomic.StoreUint32(d.word, d.marks[d.done-1])
}

func startLane(t *testing.T) (*lane, *pieceDriver) {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	d := &pieceDriver{Driver: livetest.NewDriver(1 << 30), t: t, word: (*uint32)(unsafe.Pointer(&page[0]))}
	l := process.New(process.Config{}, d, nil, zap.NewNop())
	n, err := newLane(l, cuda.Ptr(uintptr(unsafe.Pointer(&page[0]))), &d.gives)
	if err != nil {
		t.Fatal(err)
	}
	l.Threads.Add(1)
	go n.run()
	t.Cleanup(func() {
		close(n.moves)
		l.Threads.Wait()
		if err := unix.Munmap(page); err != nil {
			t.Error(err)
		}
	})
	return n, d
}

func moveOut(base cuda.Ptr, bytes int64) *explicit.Move {
	return &explicit.Move{
		Kind: explicit.MoveEvict, Chunk: cuda.Range{Base: base, Bytes: bytes}, Bytes: bytes,
		Host: []cuda.Range{{Base: 1<<44 + base, Bytes: bytes}},
	}
}

// TestLane: pieces are copied in order, the next queued behind the one that is being copied, of the same move or the
// next, and not while page tables are written; a move is done when its last piece is.
func TestLane(t *testing.T) {
	n, d := startLane(t)
	first := n.start(moveOut(1<<30, 2*explicit.PieceBytes))
	second := n.start(moveOut(2<<30, 3*explicit.PieceBytes))
	d.queued(2)
	if n.reached(first) {
		t.Error("a move is done before its pieces are")
	}
	d.finish()
	d.queued(3) // the first of the second move, behind the last of the first
	d.gives.paging.Add(1)
	d.finish()
	d.finish()
	d.queued(4) // alone
	d.finish()
	d.queued(5)
	d.gives.paging.Add(-1)
	if !n.reached(first) || n.reached(second) {
		t.Errorf("done: %v, %v", n.reached(first), n.reached(second))
	}
	d.finish()
	for began := time.Now(); !n.reached(second); time.Sleep(50 * time.Microsecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the second move is never done")
		}
	}
	for i, want := range []cuda.Ptr{1 << 30, 1<<30 + explicit.PieceBytes, 2 << 30, 2<<30 + explicit.PieceBytes, 2<<30 + 2*explicit.PieceBytes} {
		if d.copied[i] != want {
			t.Errorf("piece %d is from %#x, want %#x", i, d.copied[i], want)
		}
	}
	if err := n.err(); err != nil {
		t.Error(err)
	}
}

// TestLaneGivesWay: while mapping is what all else waits for pieces are smaller.
func TestLaneGivesWay(t *testing.T) {
	n, d := startLane(t)
	d.gives.pressed.Store(true)
	d.gives.urgent.Add(1)
	n.start(moveOut(1<<30, 2*explicit.PieceBytes))
	d.queued(1)
	d.gives.urgent.Add(-1)
	d.gives.pressed.Store(false)
	d.finish()
	d.queued(2)
	want := []cuda.Ptr{1 << 30, 1<<30 + explicit.PieceBytes/pressedPart}
	d.finish()
	d.queued(3)
	d.finish()
	if d.mu.Lock(); !slices.Equal(d.copied[:2], want) {
		t.Errorf("pieces from %#x, want %#x first", d.copied, want)
	}
	d.mu.Unlock()
}

// TestLaneFails: an error is told, and what is put in after it does not block.
func TestLaneFails(t *testing.T) {
	n, d := startLane(t)
	d.fails = true
	tickets := make([]uint32, 2*mostInFlight)
	for i := range tickets {
		tickets[i] = n.start(moveOut(1<<30, explicit.PieceBytes))
	}
	for began := time.Now(); n.err() == nil; time.Sleep(50 * time.Microsecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("no error is told")
		}
	}
	if n.reached(tickets[0]) {
		t.Error("what was not copied is said to be")
	}
}
