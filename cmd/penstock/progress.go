package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progress shows how far a set of replays is: a bar on a terminal, a line for
// each finished replay elsewhere. Its methods may be called from many goroutines.
type progress struct {
	mu       sync.Mutex
	out      io.Writer
	width    int // of the terminal; 0 when there is none
	begun    time.Time
	now      func() time.Time
	shares   []float64 // how far each replay is
	finished int
	drawn    time.Time
	open     bool // a bar is on the terminal's current line
}

// redrawEvery keeps the terminal from being the bottleneck.
const redrawEvery = 100 * time.Millisecond

// newProgress shows n replays on w.
func newProgress(w io.Writer, n int) *progress {
	return &progress{out: w, width: terminalWidth(w), begun: time.Now(), now: time.Now, shares: make([]float64, n)}
}

// quietProgress is one that only a terminal shows.
func quietProgress(w io.Writer, n int) *progress {
	p := newProgress(w, n)
	if p.width == 0 {
		p.out = io.Discard
	}
	return p
}

// terminalWidth is 0 for what is no terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 || os.Getenv("TERM") == "dumb" {
		return 0
	}
	return int(size.Col)
}

// update says that replay i has done so many of its events.
func (p *progress) update(i, done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if total > 0 && i < len(p.shares) {
		p.shares[i] = min(1, float64(done)/float64(total))
	}
	if p.width > 0 && p.now().Sub(p.drawn) >= redrawEvery {
		p.draw()
	}
}

// finish says that replay i is done and what to tell about it.
func (p *progress) finish(i int, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares[i] = 1
	p.finished++
	if p.width > 0 {
		p.draw()
		return
	}
	fmt.Fprintf(p.out, "%d/%d %s\n", p.finished, len(p.shares), line)
}

// draw puts the bar on the current line. p.mu is held.
func (p *progress) draw() {
	var share float64
	for _, s := range p.shares {
		share += s / float64(len(p.shares))
	}
	now := p.now()
	text := fmt.Sprintf(" %3.0f %%  %d of %d replays  %.0f s", 100*share, p.finished, len(p.shares), now.Sub(p.begun).Seconds())
	bar := ""
	if cells := min(40, p.width-len(text)-3); cells > 4 {
		full := int(share * float64(cells))
		bar = "[" + strings.Repeat("=", full) + strings.Repeat(" ", cells-full) + "]"
	}
	line := bar + text
	if len(line) >= p.width {
		line = line[:max(0, p.width-1)]
	}
	fmt.Fprint(p.out, "\r"+line+"\x1b[K")
	p.drawn, p.open = now, true
}

// close takes the bar away.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.open = false
	}
}
