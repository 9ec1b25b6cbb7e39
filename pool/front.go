package pool

import (
	"sync/atomic"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/front"
)

// frontState is what the front was told last.
type frontState struct {
	on          bool // it may serve at all
	most, noted int64
	flushed     int64        // allocations taken back
	others      atomic.Int64 // live bytes that are not the pool's, and count in the front's peak
}

// ServeFront lets the front serve requests before the pool is asked, or stops it:
// when not all allocations are the pool's.
func (p *Pool) ServeFront(on bool) {
	if p.front == nil {
		return
	}
	p.lock()
	defer p.unlock()
	p.planned.EndScript()
	p.frontState.on = on
	p.configureFront(true)
}

// NoteBesides says how many bytes are live beside the pool's.
func (p *Pool) NoteBesides(bytes int64) {
	p.frontState.others.Store(bytes)
	if f := p.front; f != nil {
		f.Settle(p.live.Load()+bytes, 0)
	}
}

// limits are what the front may serve now, and what it has to note.
func (p *Pool) limits() (most, noted int64) {
	if !p.frontState.on {
		return 0, front.All
	}
	return p.planned.FrontLimits()
}

// configureFront tells the front what it may do, and takes back what it may not hold.
func (p *Pool) configureFront(newEpoch bool) {
	a := &p.frontState
	a.most, a.noted = p.limits()
	p.front.Serve(a.most, a.noted, newEpoch)
	p.catchUp()
	if a.most < front.All {
		p.flush(a.most, front.All)
	}
}

// unlock gives up the lock, after what has changed was noted and the front was told of it.
func (p *Pool) unlock() {
	if r := p.stitched.ReservedBytes(); r != p.reserved.Load() {
		p.reserved.Store(r)
		p.reservedPeak = max(p.reservedPeak, r)
	}
	if f := p.front; f != nil {
		if most, noted := p.limits(); most != p.frontState.most || noted != p.frontState.noted {
			p.configureFront(false)
		}
		f.Settle(p.live.Load()+p.frontState.others.Load(), 0)
	}
	p.mu.Unlock()
}

// catchUp tells the recorder of what the front has done.
func (p *Pool) catchUp() {
	f := p.front
	if f == nil || !f.HasNotes() {
		return
	}
	f.Notes(func(n front.Note) {
		if n.Bytes == 0 {
			p.planned.NoteFree(n.At)
		} else {
			p.planned.NoteAlloc(n.At, n.Bytes, n.Stream)
		}
	})
}

// flush frees what the front holds of more than above bytes each, and at most to.
func (p *Pool) flush(above, to int64) {
	f := p.front
	if f == nil || f.HeldCount() == 0 {
		return
	}
	p.catchUp() // what was noted came before
	freed := f.Empty(above, to, func(at cuda.Ptr) {
		_ = p.free(at) // it is live until now
		p.frontState.flushed++
	})
	f.Settle(p.live.Load()+p.frontState.others.Load(), freed)
}

// mostHeld is the part of reserved memory, one in so many, that the front may hold in small allocations while others
// take new memory: what it holds of one size is missed by the next request of that, so that to take it back
// each time has hundreds of requests in an iteration call the pool.
const (
	mostHeld   = 1024
	alwaysHeld = 2 << 20 // bytes that it may hold in any case
)

// overfull says whether what the front holds serves a small request before new memory does.
func (p *Pool) overfull() bool {
	f := p.front
	return f != nil && f.ShelvedBytes() > max(p.reserved.Load()/mostHeld, alwaysHeld)
}

// above is the pool as what stands below in the chain sees it.
type above struct{ p *Pool }

func (a above) Lock() { a.p.lock() }

func (a above) Unlock() { a.p.unlock() }

func (a above) Serves() bool { return a.p.frontState.on }

func (a above) Flush(above, to int64) { a.p.flush(above, to) }

func (a above) Overfull() bool { return a.p.overfull() }

func (a above) LiveBytes() int64 { return a.p.LiveBytes() }

// Grew accounts for what the front did by itself. The sum is too low for a moment, never too high.
func (a above) Grew(bytes int64) {
	p := a.p
	if bytes < 0 {
		p.live.Add(bytes)
		p.front.Settle(p.live.Load()+p.frontState.others.Load(), 0)
		p.front.Account(bytes)
	} else {
		p.front.Account(bytes)
		p.live.Add(bytes)
	}
}

func heldBytes(f *front.Front) int64 {
	if f == nil {
		return 0
	}
	return f.HeldBytes()
}
