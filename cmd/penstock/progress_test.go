package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestProgressPlain(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, 2)
	p.update(0, 1, 2)
	p.finish(1, "second")
	p.finish(0, "first")
	p.close()
	if b.String() != "1/2 second\n2/2 first\n" {
		t.Errorf("%q", b.String())
	}
}

func TestProgressTerminal(t *testing.T) {
	var b bytes.Buffer
	clock := time.Unix(100, 0)
	p := newProgress(&b, 4)
	p.width, p.begun, p.now = 60, clock, func() time.Time { return clock }
	p.update(0, 1, 2)
	first := b.String()
	if !strings.HasPrefix(first, "\r[") || !strings.Contains(first, " 12 %  0 of 4 replays  0 s") {
		t.Errorf("%q", first)
	}
	p.update(0, 2, 2) // too soon to draw again
	if b.String() != first {
		t.Errorf("drawn twice within %v", redrawEvery)
	}
	clock = clock.Add(3 * time.Second)
	p.update(1, 0, 0) // nothing known
	if !strings.Contains(b.String(), " 25 %  0 of 4 replays  3 s") {
		t.Errorf("%q", b.String())
	}
	for i := range 4 {
		p.finish(i, "unused")
	}
	for _, line := range strings.Split(b.String(), "\r")[1:] {
		if n := len(strings.TrimSuffix(line, "\x1b[K")); n >= p.width {
			t.Errorf("%d columns on a terminal of %d: %q", n, p.width, line)
		}
	}
	if !strings.Contains(b.String(), "====]") || !strings.Contains(b.String(), "100 %  4 of 4") {
		t.Errorf("%q", b.String())
	}
	p.close()
	if !strings.HasSuffix(b.String(), "\r\x1b[K") || strings.Contains(b.String(), "\n") {
		t.Errorf("the bar stays: %q", b.String())
	}
	// A terminal too narrow for a bar still gets the numbers, cut to fit.
	b.Reset()
	p.width = 12
	p.draw()
	if strings.Contains(b.String(), "[=") || len(b.String()) > 12+len("\r\x1b[K") {
		t.Errorf("narrow: %q", b.String())
	}
}

func TestTerminalWidth(t *testing.T) {
	f, err := os.Open(os.DevNull) // a character device, and no terminal
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if w := terminalWidth(f); w != 0 {
		t.Errorf("%s is a terminal of %d columns", os.DevNull, w)
	}
	if w := terminalWidth(&bytes.Buffer{}); w != 0 {
		t.Errorf("a buffer is a terminal of %d columns", w)
	}
	var b bytes.Buffer
	p := quietProgress(&b, 1)
	p.finish(0, "line")
	if b.Len() != 0 {
		t.Errorf("quiet progress wrote %q", b.String())
	}
}
