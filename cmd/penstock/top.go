package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/jobs"
	"github.com/penstock-gpu/penstock/internal/jobs/top"
)

// newTopCommand is `penstock top`.
func newTopCommand() *cobra.Command {
	var pid, interval, count string
	var batch, asJSON bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch running jobs: memory, moves, waits and speed",
		Long: `Watch the jobs that run on this machine under Penstock, of this user (of all users for root):
what they have on the device and on the host, what is copied each way, what waits for
what, and about how near each is to its speed in memory. A job is seen from its first
allocation on the GPU on; one that nobody looks at pays nothing for that.
Keys: j and k another job, p pause, ? help, q quit.`,
		Example: `  penstock top
  penstock top --pid 4711 --batch --interval 5      # text, every 5 seconds
  penstock top --json -n 1                          # one look, for programs`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			every, err := parseInterval(interval)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(count)
			if err != nil || n < 0 {
				return fmt.Errorf("--count: %q is not a number of times", count)
			}
			sample := allJobs
			if pid != "" {
				number, err := parsePID(pid)
				if err != nil {
					return err
				}
				sample = func() top.Sample {
					j, err := jobs.Ask(number)
					return top.Sample{Jobs: []jobs.Job{j}, At: time.Now(), Err: err}
				}
				if s := sample(); s.Err != nil { // before a screen is opened
					return s.Err
				}
			}
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			switch {
			case asJSON:
				return top.JSON(ctx, out, every, n, sample)
			case batch:
				return top.Text(ctx, out, every, n, sample)
			case terminalWidth(out) == 0:
				return errors.New("the live view needs a terminal: add --batch for text")
			}
			return top.Run(ctx, every, sample)
		},
	}
	textFlag(cmd, &pid, "pid")
	boolFlag(cmd, &batch, "batch")
	boolFlag(cmd, &asJSON, "json")
	textFlag(cmd, &interval, "interval")
	o := row(cmd, "count")
	cmd.Flags().StringVarP(&count, o.Flag, "n", o.Default, o.Doc)
	return cmd
}

func allJobs() top.Sample {
	found, problems := jobs.All()
	return top.Sample{Jobs: found, Problems: problems, At: time.Now()}
}
