package process

import "sync/atomic"

// Freed counts a free that was one.
func (p *Process) Freed(err error) {
	if err == nil {
		p.Counts.Frees.Add(1)
	}
}

// NoteTensors keeps the totals of the explicit engine's tensors where they can be read without the lock.
func (p *Process) NoteTensors() {
	p.TensorLive.Store(p.Tensors.LiveBytes())
	p.NoteReserved()
}

func (p *Process) NoteReserved() {
	p.TensorReserved.Store(p.Tensors.ReservedBytes())
	p.NoteBesides()
}

// NoteBesides tells the pool what is live beside it.
func (p *Process) NoteBesides() { p.Plain.NoteBesides(p.besides()) }

// besides are the live bytes beside the pool's: of private pools, which count what is live in their segments, and of all other tensors.
func (p *Process) besides() int64 {
	return p.PrivateLive.Load() + p.TensorLive.Load() - p.PrivateTensors.Load()
}

// LiveBytes are the bytes of live allocations, as asked for.
func (p *Process) LiveBytes() int64 {
	return p.Plain.LiveBytes() + p.besides()
}

// ReservedBytes are the bytes that live allocations and caches occupy.
func (p *Process) ReservedBytes() int64 { return p.PlainBytes.Load() + p.TensorReserved.Load() }

// AddPlain accounts for plain device memory.
func (p *Process) AddPlain(bytes int64) {
	p.PlainBytes.Add(bytes)
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Engine.PlainChanged()
}

// Raise makes a peak at least n.
func Raise(peak *atomic.Int64, n int64) {
	for {
		old := peak.Load()
		if n <= old || peak.CompareAndSwap(old, n) {
			return
		}
	}
}
