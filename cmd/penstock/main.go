package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set when the program is built: -ldflags "-X main.version=...".
var version = "dev"

func main() {
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit status.
func execute(args []string, stdout, stderr io.Writer) (status int) {
	defer func() {
		if p := recover(); p != nil {
			status = complain(stderr, internalf("%v", p))
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt kills at once
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, "penstock: interrupted")
		return statusInterrupted
	}
	return complain(stderr, err)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Train models that need more memory than the GPU has",
		Long: `Penstock lets a training program use more memory than the GPU has: it watches
what the kernels touch and moves memory across the bus before it is needed.`,
		Example: `  penstock demo                                         # see it on a simulated GPU
  penstock doctor                                       # what can this machine do?
  penstock run --budget 24GiB -- python train.py        # train
  penstock top                                          # watch it, from another terminal
  penstock simulate --trace run.pstrace --ratio 2       # what if there was half the memory?
  penstock faults record -- ./program                   # see every page fault of any CUDA program`,
		SilenceUsage:  true,
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,

		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newRunCommand(), newDoctorCommand(), newSimulateCommand(), newBenchCommand(), newDemoCommand(), newPlanCommand(), newReportCommand(), newMeasureCommand(), newTopCommand(), newFaultsCommand(), newServeCommand(), newJupyterCommand(), newVersionCommand())
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		_, left, err := root.Find(args)
		if err == nil {
			err = knownCommand(root, left)
		}
		return err
	}
	return root
}

// knownCommand refuses what is left of a command line when the commands in it are found.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if like := root.SuggestionsFor(args[0]); len(like) > 0 {
		return fmt.Errorf("unknown command %q: did you mean penstock %s?", args[0], strings.Join(like, " or penstock "))
	}
	return fmt.Errorf("unknown command %q: see penstock --help", args[0])
}

// complain prints an error as one line and returns the exit status for it.
func complain(stderr io.Writer, err error) int {
	// Some libraries' messages span lines, such as cobra's suggestions.
	fmt.Fprintln(stderr, "penstock: "+strings.Join(strings.Fields(err.Error()), " "))
	var internal *internalError
	if errors.As(err, &internal) {
		return statusInternal
	}
	return statusUsage
}
