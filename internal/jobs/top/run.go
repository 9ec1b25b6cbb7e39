package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/penstock-gpu/penstock/faults/view"
	"github.com/penstock-gpu/penstock/internal/screen"
)

// Run shows samples on a terminal until the user quits or ctx ends.
func Run(ctx context.Context, interval time.Duration, sample func() Sample) error {
	return screen.Run(ctx, interval, New(), func() tea.Msg { return sample() })
}

// glance is from a first look to the one that is printed first, so that this has rates.
const glance = 250 * time.Millisecond

// each looks at every interval, count times or until there is no job left, and hands what it saw to print.
func each(ctx context.Context, interval time.Duration, count int, sample func() Sample, print func(s Sample, all []seen) error) error {
	var f follower
	s := sample()
	f.follow(s)
	wait := min(glance, interval)
	for n := 0; ; {
		if s.Err != nil {
			return s.Err
		}
		if len(s.Jobs)+len(s.Problems) == 0 {
			if n > 0 {
				return nil
			}
			return errors.New(NoJobs)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = interval
		if s = sample(); s.Err != nil || len(s.Jobs)+len(s.Problems) == 0 {
			if n > 0 {
				return nil // the job has ended
			}
			continue
		}
		if err := print(s, f.follow(s)); err != nil {
			return err
		}
		if n++; count > 0 && n >= count {
			return nil
		}
	}
}

// textWidth is that of lines that no terminal cuts.
const textWidth = 120

// Text prints the figures of all jobs at every interval.
func Text(ctx context.Context, w io.Writer, interval time.Duration, count int, sample func() Sample) error {
	return each(ctx, interval, count, sample, func(s Sample, all []seen) error {
		out := s.At.Format("2006-01-02 15:04:05") + "\n"
		for _, x := range all {
			out += strings.Join(x.details(textWidth), "\n") + "\n\n"
		}
		for _, p := range s.Problems {
			out += fmt.Sprintf("process %d: %s\n", p.PID, view.Plain(p.Err.Error(), 300))
		}
		_, err := io.WriteString(w, out)
		return err
	})
}

// line is a job at a look, as JSON.
type line struct {
	At      float64         `json:"at"` // seconds since 1970: the snapshot, or the look that failed
	PID     int             `json:"pid"`
	Command string          `json:"command,omitempty"`
	Version string          `json:"penstock,omitempty"` // the library's
	Rates   *Rates          `json:"rates"`              // null where none are known
	Stats   json.RawMessage `json:"stats,omitempty"`
	Error   string          `json:"error,omitempty"` // it was found and could not be asked
}

// JSON prints a line for each job at every interval.
func JSON(ctx context.Context, w io.Writer, interval time.Duration, count int, sample func() Sample) error {
	out := json.NewEncoder(w)
	return each(ctx, interval, count, sample, func(s Sample, all []seen) error {
		for _, x := range all {
			if err := out.Encode(line{At: x.TakenAt, PID: x.PID, Command: x.Command, Version: x.Version, Rates: x.rates, Stats: x.Stats}); err != nil {
				return err
			}
		}
		for _, p := range s.Problems {
			if err := out.Encode(line{At: float64(s.At.UnixMicro()) / 1e6, PID: p.PID, Error: p.Err.Error()}); err != nil {
				return err
			}
		}
		return nil
	})
}
