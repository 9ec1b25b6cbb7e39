package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/report"
)

// newReportCommand is `penstock report`.
func newReportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "report",
		SuggestFor: []string{"fragmentation"},
		Short:      "Look at a job's memory or time, or compare it with an oracle",
		Long:       `Look at the memory or the time of a recorded run, or say how near a job came to the best possible.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown report %q: see penstock report --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFragmentationCommand(), newBoundCommand(), newTimelineCommand())
	return cmd
}

// jsonMoments is how many moments of the timeline --json has, at most about.
const jsonMoments = 2000

// newFragmentationCommand is `penstock report fragmentation`.
func newFragmentationCommand() *cobra.Command {
	var html string
	var json, acceptDamaged bool
	cmd := &cobra.Command{
		Use:         "fragmentation FILE",
		Annotations: below("report"),
		Short:       "Show reserved, active and lost memory over time",
		Long: `Show how much memory the allocator held, how much of it was in use, and how much was
lost, over the time of a recording, launch log, PyTorch memory snapshot or RMM log.
Where the file does not say what was reserved (only snapshots do), it is simulated
what PyTorch's caching allocator would have held, and the report says so.`,
		Example: `  penstock report fragmentation run.pickle --html fragmentation.html
  penstock report fragmentation run.pstrace --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one recording, log or snapshot, not %d: %s run.pickle", len(args), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if html != "" {
				if err := checkOutput("html", html); err != nil {
					return err
				}
			}
			tr, err := loadTrace(cmd.Context(), args[0])
			if err := intact(tr, err, acceptDamaged, cmd.ErrOrStderr()); err != nil {
				return err
			}
			f, err := interruptible(cmd.Context(), func() (report.Fragmentation, error) { return report.FragmentationOf(tr) })
			if err != nil {
				return err
			}
			if html != "" {
				if err := writePage(html, f.WriteHTML); err != nil {
					return err
				}
			}
			if json {
				return writeJSON(cmd.OutOrStdout(), f.Thinned(jsonMoments))
			}
			return f.WriteText(cmd.OutOrStdout())
		},
	}
	boolFlag(cmd, &json, "json")
	textFlag(cmd, &html, "html")
	boolFlag(cmd, &acceptDamaged, "accept-damaged")
	return cmd
}
