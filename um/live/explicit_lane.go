package live

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// lane copies moves out, one piece of one move at a time, on a thread of its own
// that does nothing else, so that the next piece follows at once.
type lane struct {
	l         *Live
	copier    *explicit.Copier
	word      hook.Word
	moves     chan *explicit.Move
	begun     uint32        // moves that were put in; the worker's
	done      atomic.Uint32 // moves that are copied
	broken    atomic.Pointer[error]
	nsPerByte float64 // of the last piece
	spent     [laneParts]atomic.Int64
}

// What a lane's time goes to, in nanoseconds.
const (
	laneSubmit = iota // in the driver, to queue pieces
	laneWait          // for pieces
	laneLate          // of that, for those that ended while the lane slept: the bus was idle for a part of it
	laneParts
)

var laneNames = [laneParts]string{"submit", "wait", "late"}

const (
	// spinBefore is how long before a piece is expected to end its end is watched for.
	spinBefore = 40 * time.Microsecond
	// sleepLongest is the most that is slept before.
	sleepLongest = time.Millisecond
	// spinLongest is how long it is watched for without a pause.
	spinLongest = time.Millisecond
)

func newLane(l *Live, word cuda.Ptr) (*lane, error) {
	c, err := explicit.NewCopier(l.driver, word)
	if err != nil {
		return nil, err
	}
	return &lane{l: l, copier: c, word: hook.NewWord(word), moves: make(chan *explicit.Move, mostInFlight)}, nil
}

// start puts a move at the end of the lane: it is copied when reached says so of its ticket.
func (n *lane) start(m *explicit.Move) (ticket uint32) {
	n.begun++
	n.moves <- m // there is room for all that may be in flight
	return n.begun
}

func (n *lane) reached(ticket uint32) bool { return int32(n.done.Load()-ticket) >= 0 }

// err is why the lane has ended before its time.
func (n *lane) err() error {
	if e := n.broken.Load(); e != nil {
		return *e
	}
	return nil
}

// run copies until the lane is closed.
func (n *lane) run() {
	defer n.l.threads.Done()
	runtime.LockOSThread()
	finePauses()
	err := n.l.driver.BindThread()
	for m := range n.moves {
		for last := false; !last && err == nil; {
			last, err = n.copyPiece(m)
		}
		if err != nil {
			n.broken.Store(&err)
			continue // to the end of what was put in
		}
		n.done.Add(1)
	}
}

// copyPiece copies the next piece of a move, and waits for it, asleep for most of
// what it should take.
func (n *lane) copyPiece(m *explicit.Move) (last bool, err error) {
	began := time.Now()
	p, err := n.copier.Next(m)
	if err != nil {
		return false, err
	}
	submitted := time.Now()
	n.spent[laneSubmit].Add(int64(submitted.Sub(began)))
	expected := min(time.Duration(float64(p.Bytes)*n.nsPerByte), sleepLongest)
	if expected > 2*spinBefore {
		pause(expected - spinBefore)
	}
	overslept := n.word.Reached(p.Ticket)
	for spins, checked := 0, began; !n.word.Reached(p.Ticket); spins++ {
		if spins%64 > 0 {
			continue
		}
		now := time.Now()
		if now.Sub(began) > expected+spinLongest {
			pause(shortWait)
		}
		if now.Sub(checked) > checkPatience {
			if checked, err = now, n.copier.Check(); err != nil {
				return false, err
			}
		}
	}
	waited := int64(time.Since(submitted))
	n.spent[laneWait].Add(waited)
	took := float64(time.Since(began)) / float64(p.Bytes)
	if overslept {
		n.spent[laneLate].Add(waited)
		n.nsPerByte /= 2 // it says nothing but that the sleep was too long
	} else if n.nsPerByte = took; p.Bytes < explicit.PieceBytes/2 {
		n.nsPerByte /= 2 // some of it is no matter of bytes
	}
	return p.Last, nil
}
