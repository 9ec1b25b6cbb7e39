package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/um/live/bound"
)

// newBoundCommand is `penstock report bound`. A job that penstock run started asks it at its end.
func newBoundCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:         "bound REPORT",
		Annotations: below("report"),
		Short:       "Compare a job with an oracle that knows the future",
		Long: `Say how near a job under the explicit engine came to the best possible: its last iterations
are simulated under an oracle, which knows the future and whose software costs nothing.
penstock run does this at the end of a job. A program that loaded the library in another way
leaves what it takes in its report (PENSTOCK_REPORT). "-" is standard input.`,
		Example: `  penstock report bound r.json
  penstock report bound --json r.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one report of a job, not %d: %s r.json", len(args), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := readJudgement(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			last := j.Bound
			found := func(b bound.Bound) {
				if last = b; asJSON {
					_ = json.NewEncoder(cmd.OutOrStdout()).Encode(b)
				}
			}
			if j.Evidence == nil { // somebody has found it before
				found(j.Bound)
			} else if _, err := interruptible(cmd.Context(), func() (struct{}, error) {
				replay.Bound(j.Bound, j.Evidence, found)
				return struct{}{}, nil
			}); err != nil {
				return err
			}
			if !asJSON {
				last.Lines(func(format string, args ...any) { fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...) })
			}
			return nil
		},
	}
	boolFlag(cmd, &asJSON, "json")
	return cmd
}

// readJudgement reads what a report has of a job's bound.
func readJudgement(file string, stdin io.Reader) (*bound.Judgement, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the report: %w", err)
		}
		defer f.Close()
		in = f
	}
	var r bound.Report
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return nil, fmt.Errorf("%s is no report of a job: %w", file, err)
	}
	if j := r.Explicit; j != nil && (j.Evidence != nil || j.Share > 0 || j.Why != "") {
		return j, nil
	}
	return nil, errors.New(file + " has no job of the explicit engine that has ended: only of those an oracle's speed is known")
}
