package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/faults/export"
	"github.com/penstock-gpu/penstock/faults/metrics"
	"github.com/penstock-gpu/penstock/trace"
)

// newFaultsExportCommand is `penstock faults export`.
func newFaultsExportCommand() *cobra.Command {
	var format, output, merge string
	cmd := &cobra.Command{
		Use:         "export FILE --format F",
		Annotations: below("faults"),
		Short:       "Write a recording in another tool's format",
		Long: `Write a recording in another tool's format:

  chrome      for Perfetto (ui.perfetto.dev) and chrome://tracing; with --merge
              together with a trace of torch.profiler, on one time axis
  pprof       for go tool pprof: faults, bytes and stalls by kernel and allocation
  csv, jsonl  every fault and migration, one a line
  prometheus  totals, as a text file for node_exporter`,
		Example: `  penstock faults export faults.pstrace --format chrome --output faults.json
  penstock faults export faults.pstrace --format chrome --merge torch.json --output both.json
  penstock faults export faults.pstrace --format pprof --output faults.pb.gz; go tool pprof -top faults.pb.gz`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			known := []string{"chrome", "pprof", "csv", "jsonl", "prometheus"}
			switch {
			case format == "":
				return fmt.Errorf("--format: choose one of %s", strings.Join(known, ", "))
			case !slices.Contains(known, format):
				return fmt.Errorf("--format: %q is unknown: choose one of %s", format, strings.Join(known, ", "))
			case merge != "" && format != "chrome":
				return errors.New("--merge goes with --format chrome")
			case format == "pprof" && output == "" && terminalWidth(cmd.OutOrStdout()) > 0:
				return errors.New("a profile is not for a terminal: give --output faults.pb.gz")
			}
			err := writeTo(output, cmd.OutOrStdout(), func(w io.Writer) error {
				_, err := interruptible(cmd.Context(), func() (any, error) {
					return nil, exportTo(cmd.Context(), w, args[0], format, merge, cmd.ErrOrStderr())
				})
				return err
			})
			if err != nil && errors.Is(err, trace.ErrNotTrace) {
				return fmt.Errorf("%s is not a recording: make one with `penstock faults record` or `penstock run --trace`", args[0])
			}
			return err
		},
	}
	textFlag(cmd, &format, "format")
	textFlag(cmd, &output, "output")
	textFlag(cmd, &merge, "merge")
	return cmd
}

func exportTo(ctx context.Context, w io.Writer, path, format, merge string, notes io.Writer) error {
	if format == "pprof" || format == "prometheus" {
		r, err := analyseFile(ctx, path, notes)
		if err != nil {
			return err
		}
		if format == "pprof" {
			return export.Pprof(w, r)
		}
		return metrics.WriteText(w, r)
	}
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot read the recording: %w", err)
	}
	defer in.Close()
	if st, err := in.Stat(); err == nil && st.IsDir() {
		return fmt.Errorf("%s is a folder: name a %s file in it", path, trace.Extension)
	}
	switch {
	case format == "csv":
		err = export.CSV(w, in)
	case format == "jsonl":
		err = export.JSONLines(w, in)
	case merge != "":
		torch, openErr := os.Open(merge)
		if openErr != nil {
			return fmt.Errorf("--merge: %w", openErr)
		}
		defer torch.Close()
		if err = export.Merge(w, in, torch); err != nil && !errors.As(err, new(*export.Damaged)) {
			return fmt.Errorf("merging %s: %w", merge, err)
		}
	default:
		err = export.Chrome(w, in)
	}
	var damaged *export.Damaged
	if errors.As(err, &damaged) {
		fmt.Fprintf(notes, "penstock: %v\n", err)
		return nil
	}
	return err
}
