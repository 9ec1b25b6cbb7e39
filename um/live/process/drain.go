package process

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// Drain hands the hook's records to the engine, and the frees between them. The caller
// holds the lock.
func (p *Process) Drain() (n int) {
	p.Engine.Listen()
	if p.Hook != nil && p.Tensors != nil {
		n = p.Hook.Drain(p.Engine.Op)
	}
	p.Engine.HearAll()
	return n
}

// Tell tells the sink of a record, if there is one. The caller holds the lock.
func (p *Process) Tell(rec *hook.Record) {
	if p.Sink != nil && !p.Paused && rec.Kind != hook.Stay {
		p.Sink.Record(rec, p.Streams.HandleAt(rec.Stream), p.Hook.FunctionName, p.slotAddress)
	}
}

// Operation makes o, which is new, what an engine is told of a record. It is filled where it is, for every record pays for a copy.
func (p *Process) Operation(rec *hook.Record, o *um.Op) {
	o.Seq, o.Stream, o.Slots, o.Work = rec.Seq, p.Streams.Launched(rec.Stream, rec.Seq), rec.Slots, uint32(rec.Kind)<<28^rec.ID
	if rec.Kind == hook.Launch {
		o.Name = p.Hook.FunctionName(rec.ID)
	}
}

func (p *Process) slotAddress(slot uint32) (cuda.Ptr, bool) {
	if p.Tensors == nil {
		return 0, false
	}
	return p.Tensors.SlotAddress(slot)
}

// Progress reads the streams' progress words. The caller holds the lock.
func (p *Process) Progress() {
	if p.ProgressWords == 0 {
		return
	}
	for i := range p.Streams.Indices() {
		number, ok := p.Streams.At(i)
		if !ok {
			continue
		}
		seq := p.Hook.Progress(i)
		// Asked for afterwards: what a stream reports that has the index now says nothing of the one before.
		read := p.Hook.Read()
		if !p.Streams.Still(i, read) {
			continue
		}
		// An operation that is launched and finishes after the last drain is not known yet: told
		// of its end now, the engine would not be told again, and would wait for it for ever.
		if seq = min(seq, read); seq == 0 {
			continue
		}
		if p.Sink != nil && !p.Paused {
			if handle, news := p.Streams.News(i, seq); news {
				p.Sink.Progress(handle, seq)
			}
		}
		p.Tensors.Progress(number, seq)
		if t := p.Config.Timeline; t != nil {
			t.Done(number, seq, p.Driver.Now())
		}
	}
}

// Hear tells the sink of what has been launched, and says whether it then knows of all operations
// that had begun before the call: a thread that has its place in the ring and has not
// written there yet keeps what comes after it back.
func (p *Process) Hear() (all bool) {
	if p.Hook == nil {
		return true
	}
	head := p.Hook.Head()
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if !p.Closing {
		p.Drain()
	}
	return p.Hook.Read() >= head
}

// Follow takes in all that has happened since: what the ring says, how far the streams are, how long operations took. The caller
// holds the lock.
func (p *Process) Follow() {
	p.Drain()
	p.Progress()
	p.Timings()
	p.TensorReserved.Store(p.Tensors.ReservedBytes())
}
