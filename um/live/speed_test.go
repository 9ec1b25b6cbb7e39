package live

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/um/live/process"
)

// pacer is a job of iterations of 1000 operations, looked at every two seconds.
type pacer struct {
	s   speed
	m   process.SpeedMark
	out []float64 // shares that were said
}

// run goes on for so long at so many seconds an iteration, of which a part may be for memory.
func (p *pacer) run(d time.Duration, iteration, memory float64) {
	const period = 1000
	for end := p.m.At + d; p.m.At < end; {
		p.m.At += speedEvery
		p.m.Period = period
		p.m.Ops += int64(speedEvery.Seconds() / iteration * period)
		p.m.Memory += time.Duration(speedEvery.Seconds() / iteration * memory * 1e9)
		p.s.note(p.m)
		if share, ok := p.s.news(p.m.At); ok {
			p.out = append(p.out, math.Round(100*share)/100)
		}
	}
}

func TestSpeed(t *testing.T) {
	p := &pacer{}
	p.run(8*time.Second, 0.5, 0.1)
	if p.s.iteration() != 0 || p.s.share() != noShare {
		t.Errorf("after 8 s an iteration takes %v s", p.s.iteration())
	}
	p.run(20*time.Second, 0.5, 0.1)
	if got := p.s.iteration(); math.Abs(got-0.5) > 0.001 || p.s.share() != noShare || len(p.out) > 0 {
		t.Errorf("an iteration takes %v s, share %v, said %v", got, p.s.share(), p.out)
	}
	p.s.estimated(0.4e-3, 1000, p.m.At) // of an operation
	p.run(10*time.Second, 0.5, 0.1)
	if got := p.s.share(); math.Abs(got-0.8) > 0.01 || len(p.out) != 1 || p.out[0] != 0.8 {
		t.Fatalf("share %v, said %v", got, p.out)
	}
	// A little faster is not said, nor is what passes, such as a checkpoint that is written.
	p.run(10*time.Minute, 0.46, 0.06)
	p.run(20*time.Second, 1, 0.6)
	p.run(10*time.Minute, 0.46, 0.06)
	if len(p.out) != 1 {
		t.Errorf("said %v", p.out)
	}
	// What stays is, once.
	p.run(10*time.Minute, 1, 0.6)
	if len(p.out) != 2 || p.out[1] != 0.4 {
		t.Errorf("said %v", p.out)
	}
	// Time that is lost while nothing is done for memory is lost to something else: of that nothing is said.
	p.run(10*time.Minute, 4, 0.6)
	if len(p.out) != 2 || p.s.share() != noShare || p.s.iteration() == 0 {
		t.Errorf("said %v, share %v", p.out, p.s.share())
	}
	// But where launches are made again that takes time, too.
	p.s.replays = true
	if got := p.s.share(); math.Abs(got-0.1) > 0.01 {
		t.Errorf("share %v", got)
	}
	// Another length of an iteration: all is learned anew.
	p.m.Period, p.m.At, p.m.Ops = 900, p.m.At+speedEvery, p.m.Ops+4000
	if p.s.note(p.m); p.s.iteration() != 0 || p.s.inMemory != 0 || p.s.share() != noShare || p.s.next > p.m.At+lastEstimate {
		t.Errorf("%+v", p.s)
	}
	// While something is tried out, an iteration still takes its time; what it then took is forgotten.
	p.s.estimated(1e-4, 900, p.m.At)
	p.s.settle(false)
	for range 20 {
		p.m.At, p.m.Ops = p.m.At+speedEvery, p.m.Ops+1800
		p.s.note(p.m)
	}
	if p.s.iteration() == 0 || p.s.share() != noShare || p.s.due(p.m.At+time.Hour) {
		t.Errorf("an iteration takes %v s, share %v", p.s.iteration(), p.s.share())
	}
	if p.s.settle(true); p.s.iteration() != 0 {
		t.Errorf("an iteration takes %v s", p.s.iteration())
	}
	p.s.note(p.m)
	for period := range int64(1000) {
		p.s.estimated(1, period, p.m.At)
	}
	if len(p.s.known) > 16 || p.s.inMemory != 1 { // the mark's is among them
		t.Errorf("%d estimates are kept, %v", len(p.s.known), p.s.inMemory)
	}
	// One that was before is known.
	p.s.estimated(0.4e-3, 1000, p.m.At)
	p.run(20*time.Second, 1, 0.6)
	if got := p.s.share(); math.Abs(got-0.4) > 0.01 {
		t.Errorf("share %v", got)
	}
}

// Long iterations leave marks that last for some of them.
func TestSpeedOfLongIterations(t *testing.T) {
	p := &pacer{}
	p.run(20*time.Minute, 100, 10)
	if got := p.s.iteration(); math.Abs(got-100) > 1 || len(p.s.marks) > speedMarks {
		t.Errorf("an iteration takes %v s, of %d marks", got, len(p.s.marks))
	}
}

// Estimates are made less and less often.
func TestSpeedDue(t *testing.T) {
	p := &pacer{}
	estimates := 0
	for range int(time.Hour / speedEvery) {
		p.run(speedEvery, 0.5, 0.1)
		if p.s.due(p.m.At) {
			estimates++
		}
	}
	if estimates < 8 || estimates > 16 {
		t.Errorf("%d estimates in an hour", estimates)
	}
}

func TestSpeedLine(t *testing.T) {
	if got := speedLine("rank0", 0.836, 1.2345); got != "penstock[rank0]: running at about 84 % of the speed in memory (1.23 s an iteration)" {
		t.Error(got)
	}
	if got := speedLine("", 0.98, 0.05); !strings.HasPrefix(got, "penstock: running at about the speed in memory") {
		t.Error(got)
	}
	for label, want := range map[string]bool{"": true, "rank0": true, "gpu0": true, "rank1": false, "rank10": false} {
		if l := (&Live{config: Config{Label: label}}); l.speaks() != want {
			t.Errorf("%q speaks: %v", label, !want)
		}
	}
}
