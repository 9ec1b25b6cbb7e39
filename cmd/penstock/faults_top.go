package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/top"
	"github.com/penstock-gpu/penstock/faults/watch"
)

// newFaultsTopCommand is `penstock faults top`.
func newFaultsTopCommand() *cobra.Command {
	var pid, interval, count string
	var batch, system bool
	cmd := &cobra.Command{
		Use:         "top (FILE | --pid P | --system)",
		Annotations: below("faults"),
		Short:       "Watch faults as they happen",
		Long: `Watch a recording that is being written (with its kernels and allocations), a running
process, or all processes: residency, rates each way, the worst kernels and
allocations. Keys: tab next table, s sort, / filter, p pause, ? help, q quit.`,
		Example: `  penstock faults record -- ./program & penstock faults top faults.pstrace
  penstock faults top --pid 4711
  penstock faults top --pid 4711 --batch --interval 5`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			every, err := parseInterval(interval)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(count)
			if err != nil || n < 0 {
				return fmt.Errorf("--count: %q is not a number of times", count)
			}
			out := cmd.OutOrStdout()
			if !batch && terminalWidth(out) == 0 {
				return errors.New("the live view needs a terminal: add --batch for text")
			}
			w, err := watched(ctx, args, pid, system)
			if err != nil {
				return err
			}
			sample := func() top.Sample {
				r, final := w.Report()
				return top.Sample{Report: r, At: time.Now(), Final: final, Waiting: w.Waiting(), Err: fatalOf(w, r)}
			}
			if batch {
				select {
				case <-w.CaughtUp(): // the first block is not of half a recording
				case <-ctx.Done():
				}
				return top.Text(ctx, out, every, n, sample)
			}
			return top.Run(ctx, every, sample)
		},
	}
	textFlag(cmd, &pid, "pid")
	boolFlag(cmd, &system, "system")
	boolFlag(cmd, &batch, "batch")
	textFlag(cmd, &interval, "interval")
	textFlag(cmd, &count, "count")
	return cmd
}

// fatalOf is an error that left nothing to show: a damaged recording still shows its intact part.
func fatalOf(w *watch.Watch, r *analyse.Report) error {
	if err := w.Err(); err != nil && r.Events == 0 {
		return err
	}
	return nil
}

func parseInterval(text string) (time.Duration, error) {
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s >= 0.1) || s > 3600 {
		return 0, fmt.Errorf("--interval: %q is not a time: write seconds, from 0.1 to 3600", text)
	}
	return time.Duration(s * float64(time.Second)), nil
}

// watched starts to watch what the arguments name: exactly one thing.
func watched(ctx context.Context, args []string, pid string, system bool) (*watch.Watch, error) {
	named := len(args)
	if pid != "" {
		named++
	}
	if system {
		named++
	}
	if named != 1 {
		return nil, errors.New("name one thing to watch: a recording, --pid P or --system")
	}
	switch {
	case system:
		return watch.System(ctx), nil
	case pid != "":
		n, err := parsePID(pid)
		if err != nil {
			return nil, err
		}
		if err := unix.Kill(n, 0); errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("--pid: there is no process %d", n)
		}
		return watch.Process(ctx, n), nil
	}
	if st, err := os.Stat(args[0]); err == nil && st.IsDir() {
		return nil, fmt.Errorf("%s is a folder: name a recording in it", args[0])
	}
	return watch.File(ctx, args[0])
}
