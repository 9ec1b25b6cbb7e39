package top

import (
	"context"
	"fmt"
	"io"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/penstock-gpu/penstock/faults/view"
	"github.com/penstock-gpu/penstock/internal/screen"
)

// Run shows samples on a terminal until the user quits or ctx ends.
func Run(ctx context.Context, interval time.Duration, sample func() Sample) error {
	return screen.Run(ctx, interval, New(), func() tea.Msg { return sample() })
}

// Text prints a block of lines every interval until the samples end or ctx does; count 0 is no limit.
func Text(ctx context.Context, w io.Writer, interval time.Duration, count int, sample func() Sample) error {
	var before Sample
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; {
		x := sample()
		if x.Err != nil {
			return x.Err
		}
		if x.Report != nil && !x.Waiting {
			if err := block(w, before, x); err != nil {
				return err
			}
			before = x
			n++
		}
		if x.Final || count > 0 && n >= count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// batchRows are how many kernels and allocations a block of text has.
const batchRows = 5

func block(w io.Writer, before, now Sample) error {
	m := New()
	m.colour, m.before, m.now, m.width = false, before, now, 160
	out := ""
	for _, l := range m.head() {
		out += l + "\n"
	}
	for m.table = range 2 {
		out += tables[m.table] + "\n" + m.line(heads[m.table]) + "\n"
		rows := m.rows()
		for _, r := range rows[:min(len(rows), batchRows)] {
			out += m.line(r.cells) + "\n"
		}
	}
	for _, l := range now.Report.Limits {
		out += "note: " + view.Plain(l, 300) + "\n"
	}
	_, err := fmt.Fprintln(w, out)
	return err
}
