// Package screen is what the live views on a terminal share: they are models of bubbletea, fed with a sample at each
// look. It cuts lines to the terminal, draws bars, and runs a model until the user quits. Models stay pure: a view is text made
// of what the model was told, so that tests feed messages and read text.
//
// The one caveat is that a cell is taken for one character: names with wide characters in them may be cut late.
package screen

import (
	"context"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"
)

// Colour says whether the user wants any (NO_COLOR).
func Colour() bool { return os.Getenv("NO_COLOR") == "" }

// Fit cuts lines to the terminal. With colour the first is bold; everything else is plain, so that it is read anywhere.
func Fit(lines []string, width, height int, colour bool) string {
	if len(lines) > height {
		lines = lines[:height]
	}
	for i, l := range lines {
		if utf8.RuneCountInString(l) > width {
			lines[i] = string([]rune(l)[:width])
		}
	}
	if colour && len(lines) > 0 {
		lines[0] = "\x1b[1m" + lines[0] + "\x1b[0m"
	}
	return strings.Join(lines, "\n")
}

// Bar is a part of a whole in so many cells, with brackets around; "" where there is no room or no whole.
func Bar(part, whole float64, cells int) string {
	if cells < 5 || !(whole > 0) {
		return ""
	}
	full := int(float64(cells) * max(0, min(1, part/whole)))
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", cells-full) + "]"
}

var blocks = []rune("▁▂▃▄▅▆▇█")

// Spark draws the last of some values in so many cells, each as high as it is a part of the most; the newest is last.
func Spark(values []float64, most float64, cells int) string {
	var b strings.Builder
	for _, v := range values[max(0, len(values)-max(0, cells)):] {
		at := 0
		if most > 0 {
			at = int(max(0, min(1, v/most)) * float64(len(blocks)-1))
		}
		b.WriteRune(blocks[at])
	}
	return b.String()
}

// Run shows a model on the terminal until the user quits or ctx ends. sample is called at every interval, from another
// goroutine, and what it gives is a message to the model.
func Run(ctx context.Context, interval time.Duration, model tea.Model, sample func() tea.Msg) error {
	p := tea.NewProgram(model, tea.WithAltScreen(), tea.WithContext(ctx), tea.WithoutSignalHandler())
	feed, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for tick := time.NewTicker(interval); ; {
			p.Send(sample())
			select {
			case <-feed.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	_, err := p.Run()
	if ctx.Err() != nil {
		return nil // interrupted: that is how a view ends
	}
	return err
}
