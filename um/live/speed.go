package live

import (
	"fmt"
	"math"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// How the job's speed is followed while it runs. All of it is looked at once in a while, by a goroutine that else sleeps.
const (
	speedEvery = 2 * time.Second
	// A speed is that of so many iterations, and of so long, in all of which an iteration had the same operations.
	speedIterations = 3
	speedSpan       = 10 * time.Second
	speedMarks      = 64
	marksEach       = 8 // iteration, at most, so that the marks last for long ones

	// An estimate that could not be made is tried again after a while, which doubles: what is known of launches gets better.
	// One that could is made anew seldom: it copies what the runtime remembers under the lock, which launches may wait for.
	firstEstimate = 10 * time.Second
	lastEstimate  = 10 * time.Minute

	muchFaster = 0.1 // of the speed in memory: what is said again
	alike      = 0.05
	speedHolds = time.Minute // before it is said again: a checkpoint is written in less
	otherWaits = 0.1         // of the time may be lost without a wait for memory
	fullSpeed  = 0.97        // from here on it is said to be that in memory
	noShare    = float64(stats.Unavailable)
)

// speed is how fast the job is, and how fast it would be in memory.
type speed struct {
	marks    []process.SpeedMark // of the same period
	inMemory float64             // seconds of an operation, on average over an iteration, with everything in memory: an estimate; 0: not known
	known    map[int64]float64   // that of iterations of some lengths: training and evaluation take turns
	replays  bool                // launches are made again, which takes time that nothing waits for
	tries    bool                // something is tried out: what is now is no speed to speak of
	next     time.Duration
	wait     time.Duration

	last, said  float64       // shares; 0: none yet
	differs     time.Duration // since when it is much faster or slower than was said
	hasDiffered bool
}

// note adds how far the job is.
func (s *speed) note(m process.SpeedMark) {
	if n := len(s.marks); n > 0 {
		last := s.marks[n-1]
		if m.Period != last.Period {
			s.marks, s.inMemory = s.marks[:0], s.known[m.Period]
			if s.inMemory == 0 {
				s.next = min(s.next, m.At+s.wait)
			}
		} else if (m.Ops-last.Ops)*marksEach < m.Period {
			return
		}
	}
	if m.Period == 0 {
		return
	}
	if len(s.marks) == speedMarks {
		s.marks = append(s.marks[:0], s.marks[1:]...)
	}
	s.marks = append(s.marks, m)
}

// settle says whether nothing is tried out. What was while something was is forgotten then.
func (s *speed) settle(settled bool) {
	if settled && s.tries {
		s.marks = s.marks[:0]
	}
	s.tries = !settled
}

// now is what an operation takes, on average over iterations, and how much of that may be for memory; 0 while too few
// are known.
func (s *speed) now() (seconds, memory float64) {
	if len(s.marks) == 0 {
		return 0, 0
	}
	last := s.marks[len(s.marks)-1]
	for i := len(s.marks) - 2; i >= 0; i-- {
		m := s.marks[i]
		if ops := float64(last.Ops - m.Ops); last.Ops-m.Ops >= speedIterations*last.Period && last.At-m.At >= speedSpan {
			return (last.At - m.At).Seconds() / ops, (last.Memory - m.Memory).Seconds() / ops
		}
	}
	return 0, 0
}

// iteration is how long one takes; 0: it is not known.
func (s *speed) iteration() (seconds float64) {
	if seconds, _ = s.now(); seconds > 0 {
		seconds *= float64(s.marks[len(s.marks)-1].Period)
	}
	return seconds
}

// share is which part of the speed in memory the job has; noShare where that is not known, or where it loses its time to something
// else than memory, such as its data: of that the estimate knows nothing.
func (s *speed) share() float64 {
	seconds, memory := s.now()
	switch {
	case seconds == 0 || s.inMemory == 0 || s.tries:
		return noShare
	case !s.replays && seconds-s.inMemory > memory+otherWaits*seconds:
		return noShare
	}
	return min(1, s.inMemory/seconds)
}

// estimated takes in what an operation takes with everything in memory, in iterations of a length.
func (s *speed) estimated(seconds float64, period int64, now time.Duration) {
	const mostKnown = 16 // a job whose iterations are all different is not to fill memory with them
	if s.known == nil || len(s.known) >= mostKnown {
		s.known = map[int64]float64{}
	}
	s.known[period] = seconds
	if n := len(s.marks); n > 0 && s.marks[n-1].Period == period {
		s.inMemory, s.next = seconds, now+lastEstimate
	}
}

// due says whether to estimate anew.
func (s *speed) due(now time.Duration) bool {
	if seconds, _ := s.now(); seconds == 0 || s.tries || now < s.next {
		return false
	}
	s.wait = min(max(firstEstimate, 2*s.wait), lastEstimate)
	s.next = now + s.wait
	return true
}

// news is a share that is to be said: the first that has come to rest, and one that has been another for a while.
func (s *speed) news(now time.Duration) (share float64, ok bool) {
	share = s.share()
	if share == noShare {
		s.last, s.hasDiffered = 0, false
		return 0, false
	}
	rests := s.last > 0 && math.Abs(share-s.last) < alike
	s.last = share
	if s.said == 0 {
		if rests {
			s.said = share
		}
		return share, rests
	}
	if math.Abs(share-s.said) < muchFaster {
		s.hasDiffered = false
		return 0, false
	}
	if !s.hasDiffered {
		s.hasDiffered, s.differs = true, now
	}
	if now-s.differs < speedHolds || !rests {
		return 0, false
	}
	s.said, s.hasDiffered = share, false
	return share, true
}

// speedLine is what is said of a share.
func speedLine(label string, share, iteration float64) string {
	if share >= fullSpeed {
		return fmt.Sprintf("%s: running at about the speed in memory (%.3g s an iteration)", stats.Speaker(label), iteration)
	}
	return fmt.Sprintf("%s: running at about %.0f %% of the speed in memory (%.3g s an iteration)", stats.Speaker(label), 100*share, iteration)
}

// followSpeed looks at how fast the job is until the end, and says so. A panic here is not to end the job.
func (l *Live) followSpeed() {
	defer func() {
		if p := recover(); p != nil {
			l.Log.Debug("the job's speed is not followed any further", zap.Any("panic", p))
		}
	}()
	for {
		time.Sleep(speedEvery)
		period, line, ended := l.lookAtSpeed()
		if ended {
			return
		}
		if period > 0 {
			l.setInMemory(l.Engine.InMemory(period), period) // which takes a while, without the lock for the most part
		}
		if line != "" && l.config.Say != nil {
			l.config.Say(line)
		}
	}
}

// lookAtSpeed notes how far the job is. It answers the operations of an iteration where the speed in memory is to be
// estimated anew, and what is to be said.
func (l *Live) lookAtSpeed() (period int64, line string, ended bool) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.Closing || l.Failed != nil {
		return 0, "", true
	}
	m, settled, replays := l.Engine.Progressed()
	m.At = l.Driver.Now()
	s := &l.speed
	s.settle(settled)
	s.replays = replays
	s.note(m)
	if share, news := s.news(m.At); news && l.speaks() {
		line = speedLine(l.config.Label, share, s.iteration())
	}
	if s.due(m.At) {
		period = m.Period
	}
	return period, line, false
}

// setInMemory takes in an estimate for iterations of a length, unless there is none.
func (l *Live) setInMemory(seconds float64, period int64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if seconds > 0 {
		l.speed.estimated(seconds, period, l.Driver.Now())
	}
}

// speaks says whether this process speaks for its job, whose processes run in step.
func (l *Live) speaks() bool { return slices.Contains([]string{"", "rank0", "gpu0"}, l.config.Label) }
