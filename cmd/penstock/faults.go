package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/view"
)

// newFaultsCommand is `penstock faults`, the parent of all that look at page faults.
func newFaultsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "faults",
		SuggestFor: []string{"record", "explain", "diff", "export"},
		Short:      "See every GPU page fault, and know what to do about it",
		Long: `Record what the driver says of page faults and migrations of any CUDA program that
uses managed memory, and find out which kernels fault, on what, and why.`,
		Example: `  penstock faults record -- ./program           # record a program that knows nothing of Penstock
  penstock faults explain faults.pstrace        # what limits it, in words, and what to do
  penstock faults report faults.pstrace --view kernels,allocations
  penstock faults diff before.pstrace after.pstrace`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: see penstock faults --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFaultsRecordCommand(), newFaultsReportCommand(), newFaultsExplainCommand(), newFaultsDiffCommand(), newFaultsExportCommand(), newFaultsTopCommand())
	return cmd
}

// below says which command a new one belongs to.
func below(parent string) map[string]string { return map[string]string{parentKey: parent} }

// oneFile asks for one recording as the argument.
func oneFile(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("name a recording: %s faults.pstrace", cmd.CommandPath())
	case len(args) > 1:
		return fmt.Errorf("one recording at a time, not %d: %s %s", len(args), cmd.CommandPath(), args[0])
	}
	return nil
}

// analyseFile analyses a recording and tells a terminal how far it is.
func analyseFile(ctx context.Context, path string, notes io.Writer) (*analyse.Report, error) {
	width := terminalWidth(notes)
	var tell func(read, total int64)
	if width > 0 {
		tell = func(read, total int64) {
			fmt.Fprintf(notes, "\rreading %s: %.0f %%\x1b[K", filepath.Base(path), 100*float64(read)/float64(max(total, 1)))
		}
	}
	r, err := interruptible(ctx, func() (*analyse.Report, error) { return analyse.File(path, tell) })
	if width > 0 {
		fmt.Fprint(notes, "\r\x1b[K")
	}
	if err == nil && r.Damage != "" {
		fmt.Fprintf(notes, "penstock: only the intact part is used: %s\n", r.Damage)
	}
	return r, err
}

// newFaultsReportCommand is `penstock faults report`.
func newFaultsReportCommand() *cobra.Command {
	var views, format, output string
	cmd := &cobra.Command{
		Use:         "report FILE",
		Annotations: below("faults"),
		Short:       "Show a recording as tables or a page",
		Long: "Show what a recording says, in one or more views:\n\n" + viewList() +
			"\nNames of columns are those of nsys's um_sum reports where they mean the same.",
		Example: `  penstock faults report faults.pstrace
  penstock faults report faults.pstrace --view kernels --format csv
  penstock faults report faults.pstrace --format html --output faults.html`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := parseViews(views)
			if err != nil {
				return err
			}
			if !slices.Contains([]string{"table", "csv", "json", "md", "html"}, format) {
				return fmt.Errorf("--format: %q is unknown: choose one of table, csv, json, md, html", format)
			}
			if format == "csv" && len(names) != 1 {
				return errors.New("--format csv is for one view: choose it with --view, as in --view kernels")
			}
			if output != "" {
				if err := checkOutput("output", output); err != nil {
					return err
				}
			}
			r, err := analyseFile(cmd.Context(), args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			given := cmd.Flags().Changed("view")
			return writeTo(output, cmd.OutOrStdout(), func(w io.Writer) error { return writeReport(w, r, names, given, format) })
		},
	}
	textFlag(cmd, &views, "view")
	textFlag(cmd, &format, "format")
	textFlag(cmd, &output, "output")
	return cmd
}

func viewList() string {
	var b strings.Builder
	for _, v := range view.Views {
		fmt.Fprintf(&b, "  %-13s %s\n", v.Name, v.About)
	}
	return b.String()
}

func parseViews(list string) ([]string, error) {
	if list == "all" {
		return view.ViewNames(), nil
	}
	names := strings.Split(list, ",")
	for i, n := range names {
		names[i] = strings.TrimSpace(n)
		if !slices.Contains(view.ViewNames(), names[i]) {
			return nil, fmt.Errorf("--view: %q is unknown: choose among all, %s", names[i], strings.Join(view.ViewNames(), ", "))
		}
	}
	return names, nil
}

func writeReport(w io.Writer, r *analyse.Report, names []string, given bool, format string) error {
	if format == "json" && !given {
		return writeJSON(w, r)
	}
	if format == "html" {
		return view.WriteHTML(w, r)
	}
	for i, n := range names {
		t, _ := view.Make(n, r)
		var err error
		switch format {
		case "csv":
			err = t.WriteCSV(w)
		case "json":
			err = t.WriteJSON(w)
		case "md":
			err = t.WriteMarkdown(w)
		default:
			if i > 0 {
				fmt.Fprintln(w)
			}
			err = t.WriteText(w, nameWidth(w))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nameWidth is what a terminal has room for beside the numbers.
func nameWidth(w io.Writer) int {
	if width := terminalWidth(w); width > 0 {
		return max(24, width-90)
	}
	return 100
}

// writeTo writes to a file named by --output, or to the standard output.
func writeTo(path string, stdout io.Writer, write func(io.Writer) error) error {
	if path == "" {
		return write(stdout)
	}
	return writeOutput("output", path, write)
}

// newFaultsExplainCommand is `penstock faults explain`.
func newFaultsExplainCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:         "explain FILE",
		Annotations: below("faults"),
		Short:       "Say in words what limits a run, and what to do next",
		Args:        oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := analyseFile(cmd.Context(), args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			findings := view.Explain(r)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), map[string]any{"trace": r.Trace, "findings": findings, "summary": r.Summary})
			}
			return view.WriteFindings(cmd.OutOrStdout(), findings)
		},
	}
	boolFlag(cmd, &asJSON, "json")
	return cmd
}

// newFaultsDiffCommand is `penstock faults diff`.
func newFaultsDiffCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:         "diff BEFORE AFTER",
		Annotations: below("faults"),
		Short:       "Say what changed from one recording to another",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("name two recordings: %s before.pstrace after.pstrace", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var r [2]*analyse.Report
			for i, path := range args {
				var err error
				if r[i], err = analyseFile(cmd.Context(), path, cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			d := view.Compare(r[0], r[1])
			out := cmd.OutOrStdout()
			if asJSON {
				return writeJSON(out, map[string]any{"a": d.A, "b": d.B, "findings": d.Findings, "summary_a": r[0].Summary, "summary_b": r[1].Summary})
			}
			fmt.Fprintf(out, "A: %s\nB: %s\n\n", view.Plain(args[0], 200), view.Plain(args[1], 200))
			if err := view.WriteFindings(out, d.Findings); err != nil {
				return err
			}
			for _, t := range d.Tables {
				fmt.Fprintln(out)
				if err := t.WriteText(out, nameWidth(out)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	boolFlag(cmd, &asJSON, "json")
	return cmd
}
