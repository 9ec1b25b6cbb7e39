package sim

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// The bus is full duplex: two directions, each shared fairly by the flows that
// use it. One direction alone carries CopyBytesPerSecond; when both carry
// something each gets half of DuplexBytesPerSecond. Every byte that crosses the
// bus in this simulator is part of a flow, so no policy can move bytes faster
// than the bus.

// flow is a transfer in progress.
type flow struct {
	remaining float64 // bytes
	limit     float64 // bytes per second that its owner can do at most
	rate      float64
	done      func() // under the lock; may be nil
}

// direction is one side of the bus.
type direction struct {
	flows   []*flow
	settled time.Duration // when remaining was last brought up to date
	timer   *event
}

// send starts moving bytes in the direction of to; done runs when they are across.
func (g *GPU) send(to cuda.Location, bytes int64, limit float64, done func()) {
	if bytes <= 0 {
		if done != nil {
			g.after(0, done)
		}
		return
	}
	g.settle()
	d := &g.bus[to]
	d.flows = append(d.flows, &flow{remaining: float64(bytes), limit: limit, done: done})
	if to == cuda.Device {
		g.stats.H2DBytes += bytes
	} else {
		g.stats.D2HBytes += bytes
	}
	g.share()
}

// settle brings both directions up to now.
func (g *GPU) settle() {
	for i := range g.bus {
		d := &g.bus[i]
		elapsed := (g.now - d.settled).Seconds()
		d.settled = g.now
		if elapsed == 0 {
			continue
		}
		for _, f := range d.flows {
			f.remaining -= f.rate * elapsed
		}
	}
}

// share gives each flow its rate and sets the timer of the first to end.
func (g *GPU) share() {
	duplex := len(g.bus[0].flows) > 0 && len(g.bus[1].flows) > 0
	for i := range g.bus {
		d := &g.bus[i]
		if d.timer != nil {
			d.timer.dead = true
			d.timer = nil
		}
		if len(d.flows) == 0 {
			continue
		}
		left := g.profile.CopyBytesPerSecond
		if duplex {
			left = g.profile.DuplexBytesPerSecond / 2
		}
		// Water filling: flows that cannot use their fair share leave it to the others.
		for _, f := range d.flows {
			f.rate = 0
		}
		for open := len(d.flows); open > 0; {
			fair, served := left/float64(open), 0
			for _, f := range d.flows {
				if f.rate == 0 && f.limit <= fair {
					f.rate = f.limit
					left -= f.limit
					served++
				}
			}
			if open -= served; served == 0 {
				for _, f := range d.flows {
					if f.rate == 0 {
						f.rate = fair
					}
				}
				break
			}
		}
		first := time.Duration(-1)
		for _, f := range d.flows {
			// Round up: a flow never ends early.
			t := time.Duration(max(0, f.remaining)/f.rate*1e9) + 1
			if first < 0 || t < first {
				first = t
			}
		}
		d.timer = g.after(first, func() { g.arrive(d) })
	}
}

// arrive ends the flows of d that have nothing left.
func (g *GPU) arrive(d *direction) {
	d.timer = nil
	g.settle()
	var over []*flow
	kept := d.flows[:0]
	for _, f := range d.flows {
		// Less than a nanosecond's worth is rounding.
		if f.remaining <= f.rate*1e-9 {
			over = append(over, f)
		} else {
			kept = append(kept, f)
		}
	}
	clear(d.flows[len(kept):])
	d.flows = kept
	g.share()
	for _, f := range over {
		if f.done != nil {
			f.done()
		}
	}
}

// CPUSlowdown is how much longer the job's own work on the CPU takes at this moment than
// with an idle bus, as a factor: copies make memory slower for everyone.
func (g *GPU) CPUSlowdown() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	factor := 1.0
	if len(g.bus[cuda.Device].flows) > 0 {
		factor += g.profile.CopiesInSlowCPU
	}
	if len(g.bus[cuda.Host].flows) > 0 {
		factor += g.profile.CopiesOutSlowCPU
	}
	return factor
}
