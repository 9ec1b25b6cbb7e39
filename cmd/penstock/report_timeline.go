package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/report"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// newTimelineCommand is `penstock report timeline`.
func newTimelineCommand() *cobra.Command {
	var html, from, to, last string
	var asJSON bool
	cmd := &cobra.Command{
		Use:         "timeline FILE",
		Annotations: below("report"),
		Short:       "Show where a job's time went under the explicit engine",
		Long: `Show what the GPU waited for, how long each direction of the bus was in use, what was moved
and what the engine's threads did, of a job that was run with penstock run --timeline FILE.
Seconds are those in which at least one of a kind went on, also for each second of the
window. Counts and bytes are of what ended in it. The first iterations are there, too, while
the engine still learns: --last leaves them out. For every single move open FILE in
ui.perfetto.dev.`,
		Example: `  penstock run --engine explicit --timeline t.json -- python train.py
  penstock report timeline t.json --last 2s --html timeline.html`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one time line, not %d: %s t.json", len(args), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			window, err := windowOf(from, to, last)
			if err != nil {
				return err
			}
			if html != "" {
				if err := checkOutput("html", html); err != nil {
					return err
				}
			}
			t, err := interruptible(cmd.Context(), func() (*report.Timeline, error) { return readTimeline(args[0], window) })
			if err != nil {
				return err
			}
			if html != "" {
				if err := writePage(html, t.WriteHTML); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), t)
			}
			return t.WriteText(cmd.OutOrStdout())
		},
	}
	textFlag(cmd, &from, "from")
	textFlag(cmd, &to, "to")
	textFlag(cmd, &last, "last")
	textFlag(cmd, &html, "html")
	boolFlag(cmd, &asJSON, "json")
	return cmd
}

func readTimeline(file string, window report.WindowOfTime) (*report.Timeline, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the time line: %w", err)
	}
	defer f.Close()
	r, err := timeline.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s is no time line of penstock run --timeline: %w", file, err)
	}
	return report.TimelineOf(filepath.Base(file), r, window)
}

// windowOf reads the flags that choose a part of the time.
func windowOf(from, to, last string) (w report.WindowOfTime, err error) {
	for _, f := range []struct {
		flag, text string
		value      *time.Duration
	}{{"from", from, &w.From}, {"to", to, &w.To}, {"last", last, &w.Last}} {
		if f.text == "" {
			continue
		}
		if *f.value, err = time.ParseDuration(f.text); err != nil || *f.value <= 0 && f.flag != "from" || *f.value < 0 {
			return w, fmt.Errorf("--%s: %q is no time: write one such as 500ms or 2s", f.flag, f.text)
		}
	}
	if last != "" && (from != "" || to != "") {
		return w, fmt.Errorf("--last is the end of the job: leave out --from and --to, or --last")
	}
	return w, nil
}
