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
		l.sink.Record(rec, l.streams.HandleAt(rec.Stream), l.hook.FunctionName, l.slotAddress)
	}
}

// operation makes o, which is new, what an engine is told of a record. It is filled where it is, for every record pays for a copy.
func (l *Live) operation(rec *hook.Record, o *um.Op) {
	o.Seq, o.Stream, o.Slots, o.Work = rec.Seq, l.streams.Launched(rec.Stream, rec.Seq), rec.Slots, uint32(rec.Kind)<<28^rec.ID
	if rec.Kind == hook.Launch {
		o.Name = l.hook.FunctionName(rec.ID)
	}
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
	for i := range l.streams.Indices() {
		number, ok := l.streams.At(i)
		if !ok {
			continue
		}
		seq := l.hook.Progress(i)
		// Asked for afterwards: what a stream reports that has the index now says nothing of the one before.
		read := l.hook.Read()
		if !l.streams.Still(i, read) {
			continue
		}
		// An operation that is launched and finishes after the last drain is not known yet: told
		// of its end now, the engine would not be told again, and would wait for it for ever.
		if seq = min(seq, read); seq == 0 {
			continue
		}
		if l.sink != nil && !l.paused {
			if handle, news := l.streams.News(i, seq); news {
				l.sink.Progress(handle, seq)
			}
		}
		l.tensors.Progress(number, seq)
		if t := l.config.Timeline; t != nil {
			t.Done(number, seq, l.driver.Now())
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
