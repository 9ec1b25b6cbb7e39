package live

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// drain hands the hook's records to the engine, and the frees between them. The caller
// holds the lock.
func (p *Process) drain() (n int) {
	p.engine.listen()
	if p.hook != nil && p.tensors != nil {
		n = p.hook.Drain(p.engine.op)
	}
	p.engine.hearAll()
	return n
}

// tell tells the sink of a record, if there is one. The caller holds the lock.
func (p *Process) tell(rec *hook.Record) {
	if p.sink != nil && !p.paused && rec.Kind != hook.Stay {
		p.sink.Record(rec, p.streams.HandleAt(rec.Stream), p.hook.FunctionName, p.slotAddress)
	}
}

// operation makes o, which is new, what an engine is told of a record. It is filled where it is, for every record pays for a copy.
func (p *Process) operation(rec *hook.Record, o *um.Op) {
	o.Seq, o.Stream, o.Slots, o.Work = rec.Seq, p.streams.Launched(rec.Stream, rec.Seq), rec.Slots, uint32(rec.Kind)<<28^rec.ID
	if rec.Kind == hook.Launch {
		o.Name = p.hook.FunctionName(rec.ID)
	}
}

func (p *Process) slotAddress(slot uint32) (cuda.Ptr, bool) {
	if p.tensors == nil {
		return 0, false
	}
	return p.tensors.SlotAddress(slot)
}

// progress reads the streams' progress words. The caller holds the lock.
func (p *Process) progress() {
	if p.progressWords == 0 {
		return
	}
	for i := range p.streams.Indices() {
		number, ok := p.streams.At(i)
		if !ok {
			continue
		}
		seq := p.hook.Progress(i)
		// Asked for afterwards: what a stream reports that has the index now says nothing of the one before.
		read := p.hook.Read()
		if !p.streams.Still(i, read) {
			continue
		}
		// An operation that is launched and finishes after the last drain is not known yet: told
		// of its end now, the engine would not be told again, and would wait for it for ever.
		if seq = min(seq, read); seq == 0 {
			continue
		}
		if p.sink != nil && !p.paused {
			if handle, news := p.streams.News(i, seq); news {
				p.sink.Progress(handle, seq)
			}
		}
		p.tensors.Progress(number, seq)
		if t := p.config.Timeline; t != nil {
			t.Done(number, seq, p.driver.Now())
		}
	}
}

// Hear tells the sink of what has been launched, and says whether it then knows of all operations
// that had begun before the call: a thread that has its place in the ring and has not
// written there yet keeps what comes after it back.
func (p *Process) Hear() (all bool) {
	if p.hook == nil {
		return true
	}
	head := p.hook.Head()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing {
		p.drain()
	}
	return p.hook.Read() >= head
}
