package live

import "sync/atomic"

// freed counts a free that was one.
func (p *Process) freed(err error) {
	if err == nil {
		p.counts.frees.Add(1)
	}
}

// noteTensors keeps the totals of the explicit engine's tensors where they can be read without the lock. What
// private pools have of them they count themselves.
func (p *Process) noteTensors() {
	p.tensorLive.Store(p.tensors.LiveBytes() - p.privateTensors.Load())
	p.noteReserved()
}

func (p *Process) noteReserved() {
	p.tensorReserved.Store(p.tensors.ReservedBytes())
	p.noteBesides()
}

// noteBesides tells the pool what is live beside it.
func (p *Process) noteBesides() { p.plain.NoteBesides(p.privateLive.Load() + p.tensorLive.Load()) }

// liveBytes are the bytes of live allocations, as asked for.
func (p *Process) liveBytes() int64 {
	return p.plain.LiveBytes() + p.privateLive.Load() + p.tensorLive.Load()
}

// reservedBytes are the bytes that live allocations and caches occupy.
func (p *Process) reservedBytes() int64 { return p.plainBytes.Load() + p.tensorReserved.Load() }

// addPlain accounts for plain device memory.
func (p *Process) addPlain(bytes int64) {
	p.plainBytes.Add(bytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.engine.plainChanged()
}

// raise makes a peak at least n.
func raise(peak *atomic.Int64, n int64) {
	for {
		old := peak.Load()
		if n <= old || peak.CompareAndSwap(old, n) {
			return
		}
	}
}
