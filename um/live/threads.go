package live

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

// drain hands the hook's records to the runtime, and the frees between them. The caller
// holds the lock.
func (l *Live) drain() (n int) {
	if l.runtime != nil {
		l.deaths.hear()
		defer l.bury(math.MaxUint64) // some of what was queued before may be written by a thread that is slow: see idleAfter in package um
	}
	if l.hook == nil || l.tensors == nil {
		return 0
	}
	name, address := l.hook.FunctionName, l.slotAddress
	if l.swap != nil {
		defer l.swap.hearAll()
	}
	return l.hook.Drain(func(rec *hook.Record) {
		if l.swap != nil {
			l.swap.hear(rec.Seq - 1)
		}
		if l.sink != nil && !l.paused && rec.Kind != hook.Stay {
			l.sink.Record(rec, l.handle(rec.Stream), name, address)
		}
		if l.swap != nil {
			l.swap.op(rec)
			return
		}
		l.bury(rec.Seq - 1)
		if rec.Flags&hook.FlagCaptured != 0 {
			return // it runs when its graph is launched, and is reported then
		}
		op := um.Op{
			Seq: rec.Seq, Stream: l.opStream(rec.Stream, rec.Seq), Work: uint32(rec.Kind)<<28 ^ rec.ID,
			Slots: rec.Slots, Gated: rec.Flags&hook.FlagGated != 0, Reports: rec.Flags&hook.FlagProgress != 0,
		}
		if rec.Kind == hook.Launch {
			op.Name = l.hook.FunctionName(rec.ID)
		}
		l.runtime.Op(op)
		if rec.Stream == hook.SharedStream {
			l.runtime.Progress(op.Stream, op.Seq) // nobody reports it: it would keep what it names for ever
		}
	})
}

// catchUp drains; under the explicit engine until the runtime knows of everything that
// the job has done until now, for who is about to speak of an allocation. It waits at
// most for another thread that is between taking its place in the ring and writing
// there. The caller holds the lock, which is released meanwhile.
func (l *Live) catchUp() {
	if l.swap == nil {
		l.drain()
		return
	}
	h := l.swap.hook
	head := h.Head()
	for l.drain(); h.Read() < head && l.failed == nil && !l.closing; l.drain() {
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
}

// opStream is the runtime's number for one of the hook's stream indices, of which an
// operation is about to be reported.
func (l *Live) opStream(index int, seq uint64) int {
	for len(l.hookStreams) <= index {
		l.hookStreams = append(l.hookStreams, hookStream{id: -1})
	}
	x := &l.hookStreams[index]
	handle := l.handle(index)
	if x.id >= 0 && l.ownStreams[x.id] == index && (handle == x.handle || handle == hook.StreamGone) {
		return x.id
	}
	if x.id >= 0 {
		l.streamEnded(index, seq)
	}
	id := 0
	if handle == hook.StreamPerThread || handle == hook.StreamGone { // several have it, and each is a stream of its own
		id = l.newStreamID(handle)
	} else if id = l.streamID(handle); l.ownStreams[id] >= 0 && l.ownStreams[id] != index { // that one is gone, and may have work yet
		id = l.newStreamID(handle)
		l.streamIDs[handle] = id
	}
	*x = hookStream{id: id, handle: handle}
	l.ownStreams[id] = index
	return id
}

// streamEnded is told that an index is another stream's by the operation with that seq: all that the
// one before was given is done. Its number can be given to another, for which what was freed on
// it is free, too.
func (l *Live) streamEnded(index int, seq uint64) {
	x := l.hookStreams[index]
	l.hookStreams[index].id = -1
	if x.id == 0 || l.ownStreams[x.id] != index { // its handle came back under another index
		return
	}
	l.tensors.Progress(x.id, seq-1)
	if l.streamIDs[x.handle] == x.id {
		delete(l.streamIDs, x.handle)
	}
	l.ownStreams[x.id] = -1
	l.freeStreamIDs = append(l.freeStreamIDs, x.id)
}

// hookStream is a stream as the hook numbers it.
type hookStream struct {
	id       int // the runtime's number; -1 when not known yet
	handle   uint64
	reported uint64 // progress that was recorded last
}

// handle is the handle of the stream with one of the hook's indices.
func (l *Live) handle(index int) uint64 {
	if s := l.hook.Streams(); index < len(s) {
		return s[index]
	}
	return 0
}

func (l *Live) slotAddress(slot uint32) (cuda.Ptr, bool) {
	if l.tensors == nil {
		return 0, false
	}
	return l.tensors.SlotAddress(slot)
}

// progress reads the streams' progress words. The caller holds the lock.
func (l *Live) progress() {
	if l.progressWords == 0 {
		return
	}
	for i, x := range l.hookStreams {
		if x.id < 0 || l.ownStreams[x.id] != i {
			continue
		}
		seq := l.hook.Progress(i)
		// Asked for afterwards: what a stream reports that has the index now says nothing of the one before.
		if handle := l.handle(i); handle != x.handle && handle != hook.StreamGone {
			l.streamEnded(i, l.hook.Read()+1) // the other one may launch nothing for long
			continue
		}
		// An operation that is launched and finishes after the last drain is not known yet: told
		// of its end now, the engine would not be told again, and would wait for it for ever.
		if seq = min(seq, l.hook.Read()); seq == 0 {
			continue
		}
		if l.sink != nil && !l.paused && seq != x.reported {
			l.hookStreams[i].reported = seq
			l.sink.Progress(x.handle, seq)
		}
		l.tensors.Progress(x.id, seq)
	}
}

// keepGates has the gates of streams on which nothing is held back follow the operations at a
// distance. A gate's word compares cyclically: one that was opened so long ago that 2^31
// operations have come since would hold nothing back. The caller holds the lock.
func (l *Live) keepGates() {
	const distance = 1 << 29
	read := l.hook.Read()
	if l.gateWords == 0 || read-l.gatesKept < distance {
		return
	}
	l.gatesKept = read
	for i := range hook.MaxStreams {
		if i >= len(l.hookStreams) || l.hookStreams[i].id < 0 || !l.runtime.HeldOn(l.hookStreams[i].id) {
			l.hook.OpenGate(i, read)
		}
	}
}

// Hear tells the sink of what has been launched, and says whether it then knows of all operations
// that had begun before the call: a thread that has its place in the ring and has not
// written there yet keeps what comes after it back.
func (l *Live) Hear() (all bool) {
	if l.hook == nil {
		return true
	}
	head := l.hook.Head()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing {
		l.drain()
	}
	return l.hook.Read() >= head
}

// loop feeds the runtime.
func (l *Live) loop() {
	defer l.threads.Done()
	runtime.LockOSThread()
	if err := l.driver.BindThread(); err != nil {
		l.mu.Lock()
		l.fail(err)
		l.mu.Unlock()
		return
	}
	for {
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return
		}
		l.drain()
		l.progress()
		l.timings()
		l.tensorReserved.Store(l.runtime.ReservedBytes())
		l.feedFaults()
		if l.failed != nil {
			l.letRun() // also streams that are new, and before far ahead is reached
		} else {
			l.keepGates()
		}
		held := l.runtime.Held()
		if l.wakeDue(l.runtime.Epoch(), held) {
			l.work[um.In].Signal()
			l.work[um.Out].Signal()
		}
		busy := l.runtime.Queued() > 0
		now := time.Now()
		l.vain.look(now)
		idle := l.idle.look(now)
		if idle > headPatience && l.runtime.AwaitsWork() { // for whose end the driver may keep a move waiting
			l.vain.end()
		}
		if l.nagger.due(idle) {
			l.log.Warn("a launch is held back, and no move is made", zap.Duration("for", idle.Round(time.Second)), zap.Bool("moving", l.runtime.Moving()))
		}
		switch {
		case !held:
			l.moved()
		case l.vain.Duration > watchdogPatience:
			l.fail(fmt.Errorf("a launch has been held back for %s without any move being made", watchdogPatience))
		case idle > headPatience && !l.runtime.Moving():
			l.letHeadGo()
		}
		l.mu.Unlock()
		if busy {
			time.Sleep(busyWait) // no doorbell: a launch need not pay for waking this thread
		} else {
			l.hook.Wait(idleWait)
		}
	}
}

// letHeadGo ends the wait of the launch that has been held back longest, once the
// workers of both directions have been asked again and know nothing to do for it: on a
// busy machine they may not have had their turn in all that time. The caller holds the lock.
func (l *Live) letHeadGo() {
	if l.askedAt == 0 {
		l.askedAt = l.runtime.Epoch()
	}
	for d := range l.work {
		if l.lookedAt[d] < l.askedAt {
			l.work[d].Signal()
			return
		}
	}
	l.runtime.LetHeadGo()
	l.moved()
}

// moved notes that something went on. The caller holds the lock.
func (l *Live) moved() {
	l.idle.end()
	l.vain.end()
	l.askedAt, l.lookedAt = 0, [2]uint64{}
}

// wakeDue says whether the workers are to look again: after some events, after any
// while an operation is held back, or some time after the last of a few, for
// events are also fed in by the job's own threads and may be the last for long.
func (l *Live) wakeDue(epoch uint64, held bool) bool {
	const wakeEvery, wakeAfter = 16, time.Millisecond
	now := time.Now()
	due := epoch-l.broadcastAt >= wakeEvery || held && epoch != l.broadcastAt
	if !due && (epoch == l.broadcastAt && !held || now.Sub(l.broadcastTime) < wakeAfter) {
		return false
	}
	l.broadcastAt, l.broadcastTime = epoch, now
	return true
}

// prepare makes host pages for address space that is not used yet, while there is
// nothing else to do for the bus.
func (l *Live) prepare() {
	defer l.threads.Done()
	const blocks = 32
	mover := managed.NewDirect(l.space)
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closing && l.failed == nil && l.preparedBytes < l.hostBudget() {
		m, ok := l.runtime.Prepare(blocks)
		if !ok {
			return
		}
		l.mu.Unlock()
		err := mover.Do(m)
		l.mu.Lock()
		if err != nil {
			l.fail(err)
			return
		}
		l.preparedBytes += blocks * managed.BlockBytes
		l.runtime.Done(m)
	}
}

// worker carries out the moves of one direction.
func (l *Live) worker(d um.Direction) {
	defer l.threads.Done()
	runtime.LockOSThread()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.driver.BindThread(); err != nil {
		l.fail(err)
		return
	}
	var mover managed.Mover
	if l.space != nil {
		mover = managed.NewDirect(l.space)
	} else {
		s, err := managed.NewStreamed(l.driver)
		if err != nil {
			l.fail(err)
			return
		}
		mover = s
	}
	defer func() {
		if err := mover.Close(); err != nil {
			l.log.Debug("closing a mover", zap.Error(err))
		}
	}()
	for !l.closing && l.failed == nil {
		l.drain() // what is already queued decides better than what was known before
		m, ok := l.runtime.Next(d)
		if !ok {
			l.lookedAt[d] = l.runtime.Epoch()
			l.work[d].Wait()
			continue
		}
		l.work[d].Signal() // one at a time: the next looks while this one moves
		l.mu.Unlock()
		began := l.driver.Now()
		err := mover.Do(m)
		ended := l.driver.Now()
		l.mu.Lock()
		l.moved()
		if err != nil {
			l.fail(err)
			return
		}
		l.progress()
		l.runtime.Done(m)
		l.moveTime[d] += ended - began
		if l.sink != nil && !l.paused && (m.Kind == managed.MoveFetch || m.Kind == managed.MoveEvict) {
			l.sink.Move(m.Ranges, d, began, ended)
		}
		l.work[um.In+um.Out-d].Signal() // what came or went may be what the other side waits for
	}
}
