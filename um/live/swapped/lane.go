package swapped

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// lane copies moves out, one piece of one move at a time, on a thread of its own that does nothing
// else. While no page table is to be written (givesWay) the next piece is queued shortly before the one before it
// ends, so that it follows at once; else once it has ended, which lets the tables be written in between (explicit.PieceBytes).
type lane struct {
	proc      *process.Process
	copier    *explicit.Copier
	word      hook.Word
	gives     *givesWay
	moves     chan *explicit.Move
	begun     uint32         // moves that were put in; the worker's
	move      *explicit.Move // that has pieces to be queued
	queued    []queuedPiece  // two at most
	ended     time.Time      // the last one that is done
	nsPerByte float64        // of that
	done      atomic.Uint32  // moves that are copied
	broken    atomic.Pointer[error]
	spent     [laneParts]atomic.Int64
}

// givesWay is for what copies out give way.
type givesWay struct {
	paging  atomic.Int32 // workers that map or unmap, or will in a moment
	urgent  atomic.Int32 // of these, those that map what the GPU waits for
	pressed atomic.Bool  // mapping, and not the bus, is what all else waits for
}

type queuedPiece struct {
	explicit.Piece
	at time.Time
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
	// queueBefore is how long before a piece is expected to end the next is queued: what the two calls take
	// that queue it (bench/results/explicit-cpu-turns-*.json, lane_submit: 7 to 10 us on an H200).
	queueBefore = 10 * time.Microsecond
	// sleepLongest is the most that is slept before.
	sleepLongest = time.Millisecond
	// holdLongest is for how long no piece is queued at most while the GPU waits for memory to be mapped, and pressedPart the part of a piece
	// that is while mapping is what all else waits for: it waits for a piece then, 67 us instead of 149 (bench/results/vmm-threads.json).
	holdLongest = 300 * time.Microsecond
	pressedPart = 2
	// spinLongest is how long it is watched for without a pause.
	spinLongest = time.Millisecond
)

func newLane(proc *process.Process, word cuda.Ptr, gives *givesWay) (*lane, error) {
	c, err := explicit.NewCopier(proc.Driver, word)
	if err != nil {
		return nil, err
	}
	return &lane{proc: proc, copier: c, word: hook.NewWord(word), gives: gives, moves: make(chan *explicit.Move, mostInFlight)}, nil
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
	defer n.proc.Threads.Done()
	runtime.LockOSThread()
	process.FinePauses()
	err := n.proc.Driver.BindThread()
	for err == nil {
		if len(n.queued) == 0 {
			if !n.more(true) {
				return
			}
			if err = n.queue(); err != nil {
				break
			}
		}
		err = n.wait()
	}
	n.broken.Store(&err)
	for range n.moves { // to the end of what is put in
	}
}

// more says whether there is a piece to be queued. It may wait for one until the lane is closed.
func (n *lane) more(wait bool) bool {
	if n.move == nil && wait {
		n.move = <-n.moves
	}
	if n.move == nil {
		select {
		case n.move = <-n.moves:
		default:
		}
	}
	return n.move != nil
}

// queue queues the next piece of the move.
func (n *lane) queue() error {
	began := time.Now()
	most := int64(explicit.PieceBytes)
	if n.gives.pressed.Load() {
		n.hold()
		most /= pressedPart
	}
	p, err := n.copier.Next(n.move, most)
	if err != nil {
		return err
	}
	if p.Last {
		n.move = nil
	}
	now := time.Now()
	n.spent[laneSubmit].Add(int64(now.Sub(began)))
	n.queued = append(n.queued, queuedPiece{p, now})
	return nil
}

// hold lets memory be mapped that the GPU waits for: that would wait for the next piece as well.
func (n *lane) hold() {
	for began := time.Now(); len(n.queued) == 0 && n.gives.urgent.Load() > 0 && time.Since(began) < holdLongest; {
		process.Pause(process.ShortWait)
	}
}

// wait waits for the first piece that is queued, asleep for most of what it should take, and queues the next
// before it ends if it may.
func (n *lane) wait() error {
	p := n.queued[0]
	began, waiting := p.at, time.Now()
	if n.ended.After(began) {
		began = n.ended
	}
	expected := min(time.Duration(float64(p.Bytes)*n.nsPerByte), sleepLongest)
	if left := expected - waiting.Sub(began); left > 2*spinBefore {
		process.Pause(left - spinBefore)
	}
	overslept := n.word.Reached(p.Ticket)
	for spins, checked := 0, waiting; !n.word.Reached(p.Ticket); spins++ {
		if spins%64 > 0 {
			continue
		}
		now := time.Now()
		if now.Sub(began) > expected-queueBefore && len(n.queued) == 1 && n.gives.paging.Load() == 0 && !n.gives.pressed.Load() && n.more(false) {
			if err := n.queue(); err != nil {
				return err
			}
		}
		if now.Sub(began) > expected+spinLongest {
			process.Pause(process.ShortWait)
		}
		if now.Sub(checked) > process.CheckPatience {
			var err error
			if checked, err = now, n.copier.Check(); err != nil {
				return err
			}
		}
	}
	n.ended = time.Now()
	n.queued = append(n.queued[:0], n.queued[1:]...)
	now := n.proc.Driver.Now()
	n.proc.Config.Timeline.Add(timeline.Span{Track: timeline.Bus, Name: "copy out", From: now - n.ended.Sub(began), To: now, Bytes: p.Bytes})
	waited := int64(n.ended.Sub(waiting))
	n.spent[laneWait].Add(waited)
	took := float64(n.ended.Sub(began)) / float64(p.Bytes)
	if overslept {
		n.spent[laneLate].Add(waited)
		n.nsPerByte /= 2 // it says nothing but that the sleep was too long
	} else if n.nsPerByte = took; p.Bytes < explicit.PieceBytes/2 {
		n.nsPerByte /= 2 // some of it is no matter of bytes
	}
	if p.Last {
		n.done.Add(1)
	}
	return nil
}
