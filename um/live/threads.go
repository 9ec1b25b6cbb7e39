package live

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// drain hands the hook's records to the engine, and the frees between them. The caller
// holds the lock.
func (l *Live) drain() (n int) {
	l.engine.listen()
	if l.hook != nil && l.tensors != nil {
		n = l.hook.Drain(l.engine.op)
	}
	l.engine.hearAll()
	return n
}

// tell tells the sink of a record, if there is one. The caller holds the lock.
func (l *Live) tell(rec *hook.Record) {
	if l.sink != nil && !l.paused && rec.Kind != hook.Stay {
		l.sink.Record(rec, l.handle(rec.Stream), l.hook.FunctionName, l.slotAddress)
	}
}

// operation makes o, which is new, what an engine is told of a record. It is filled where it is, for every record pays for a copy.
func (l *Live) operation(rec *hook.Record, o *um.Op) {
	o.Seq, o.Stream, o.Slots, o.Work = rec.Seq, l.opStream(rec.Stream, rec.Seq), rec.Slots, uint32(rec.Kind)<<28^rec.ID
	if rec.Kind == hook.Launch {
		o.Name = l.hook.FunctionName(rec.ID)
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
