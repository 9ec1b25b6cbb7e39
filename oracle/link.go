package oracle

// link is one direction of the bus. It copies one piece at a time, at a rate
// that changes when the other direction becomes busy or idle.
type link struct {
	alone  float64 // bytes a second while the other direction is idle
	gap    int32   // what it copies, or never
	bytes  int64   // of the piece that it copies
	done   float64 // bytes of that piece that had crossed at since
	since  float64
	rate   float64 // bytes a second since then
	end    float64 // when the piece is across, at that rate
	copied int64   // bytes of all finished copies
}

func (l *link) idle() bool { return l.gap == never }

// moved is how much of the current piece has crossed.
func (l *link) moved(now float64) float64 {
	if l.idle() || now <= l.since {
		return l.done
	}
	return min(float64(l.bytes), l.done+l.rate*(now-l.since))
}

// crossed is everything that has crossed.
func (l *link) crossed(now float64) float64 { return float64(l.copied) + l.moved(now) }

// begin starts copying the item of a gap.
func (s *scheduler) begin(l *link, gap int32) {
	l.gap, l.bytes = gap, s.items[s.gaps[gap].item].copied
	l.done, l.since, l.rate = 0, s.now, 0
	s.share()
}

// end is called when a link's piece is across.
func (s *scheduler) end(l *link) {
	l.copied += l.bytes
	l.gap, l.done, l.bytes = never, 0, 0
	s.share()
}

// share gives each busy link the rate that it has from now on.
func (s *scheduler) share() {
	both := !s.in.idle() && !s.out.idle()
	for _, l := range []*link{&s.in, &s.out} {
		if l.idle() {
			continue
		}
		l.done, l.since = l.moved(s.now), s.now
		l.rate = l.alone
		if both {
			l.rate = min(l.rate, s.o.DuplexBytesPerSecond/2)
		}
		l.end = s.now + (float64(l.bytes)-l.done)/l.rate
	}
}
