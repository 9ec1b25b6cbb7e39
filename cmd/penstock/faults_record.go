package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/faults/bpf"
	"github.com/penstock-gpu/penstock/faults/record"
	"github.com/penstock-gpu/penstock/internal/ranks"
	"github.com/penstock-gpu/penstock/options"
)

type recordFlags struct {
	output, pid, seconds, budget, policy string
	cgroup                               string
	stacks, system                       bool
}

// exitRecorded ends with the recorded command's status. A variable for tests.
var exitRecorded = os.Exit

// newFaultsRecordCommand is `penstock faults record`. With a command it starts
// that command and waits, to say so when there was nothing to record; the
// recorder is inside, loaded by the hook. With a process id it listens from outside.
func newFaultsRecordCommand() *cobra.Command {
	var f recordFlags
	cmd := &cobra.Command{
		Use:         "record [flags] (-- command [arguments] | --pid P | --system)",
		Annotations: below("faults"),
		Short:       "Record the page faults and migrations of a program",
		Long: `Run a command and record every page fault and migration of its managed memory, the
kernels that it launches and its managed allocations. The program needs no change
and no preparation; nothing of what it does is changed.

With --budget or --policy the command runs under Penstock, as with penstock run,
and is recorded from inside.

With --pid, listen to a process that runs already. That shows faults and
migrations, but not launches and allocations, and needs the right to trace it.
With --system, listen to all processes; that takes root and eBPF. --cgroup narrows
it to a control group, such as a container's.`,
		Example: `  penstock faults record -- ./program
  penstock faults record --pid 4711 --seconds 30
  penstock faults record --budget 24GiB --stacks --output run.pstrace -- python train.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.cgroup != "" && !f.system {
				return errors.New("--cgroup narrows --system: give that too")
			}
			if f.pid != "" || f.system {
				return f.listen(cmd, args)
			}
			if f.seconds != "" {
				return errors.New("--seconds goes with --pid; a command is recorded until it ends")
			}
			plan, err := f.plan(args, os.Environ(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			// Old recordings go first: processes of the job that find the file there take a name of their own.
			old, err := ranks.Files(f.output)
			for _, path := range old {
				err = errors.Join(err, os.Remove(path))
			}
			if err != nil {
				return fmt.Errorf("--output: %w", err)
			}
			status, err := runRecorded(plan)
			if err != nil {
				return err
			}
			if recorded, err := ranks.Files(f.output); err == nil && len(recorded) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "penstock: nothing was recorded: the program allocated no managed memory (cudaMallocManaged), or CUDA was not reached; see `penstock doctor --for faults`")
			}
			if status != 0 {
				exitRecorded(status)
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	textFlag(cmd, &f.output, "output")
	textFlag(cmd, &f.pid, "pid")
	textFlag(cmd, &f.seconds, "seconds")
	textFlag(cmd, &f.budget, "budget")
	textFlag(cmd, &f.policy, "policy")
	boolFlag(cmd, &f.system, "system")
	textFlag(cmd, &f.cgroup, "cgroup")
	boolFlag(cmd, &f.stacks, "stacks")
	return cmd
}

// runRecorded runs a command on this terminal and returns its exit status, as a
// shell counts it.
func runRecorded(plan runPlan) (status int, err error) {
	// Interrupts from the terminal reach the command too; it decides what they mean.
	signal.Ignore(os.Interrupt, syscall.SIGQUIT)
	defer signal.Reset(os.Interrupt, syscall.SIGQUIT)
	child := &exec.Cmd{Path: plan.path, Args: plan.argv, Env: plan.env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if err := child.Start(); err != nil {
		return 0, fmt.Errorf("cannot run %s: %w", plan.path, explainRunExec(plan.path, err))
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-ended:
				_ = child.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()
	err = child.Wait()
	close(done)
	signal.Stop(ended)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if w, ok := child.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal()), nil
	}
	return child.ProcessState.ExitCode(), nil
}

// plan says what to execute.
func (f *recordFlags) plan(args, environ []string, notes io.Writer) (runPlan, error) {
	if len(args) == 0 {
		return runPlan{}, errors.New("no command to record: write it after --, as in `penstock faults record -- ./program`, or give --pid")
	}
	path, err := outputPath(f.output)
	if err != nil {
		return runPlan{}, fmt.Errorf("--output: %w", err)
	}
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return runPlan{}, fmt.Errorf("--output: %s is no regular file: name another", f.output)
	}
	exe, err := os.Executable()
	if err != nil {
		return runPlan{}, fmt.Errorf("cannot tell where penstock itself is: %w", err)
	}
	o := newRunOptions()
	given := map[string]bool{}
	for _, r := range runFlags() {
		o.texts[r.Flag], o.booleans[r.Flag] = new(string), new(bool)
	}
	o.set = func(name string) bool { return given[name] }
	put := func(name, value string) {
		if value != "" {
			*o.texts[name], given[name] = value, true
		}
	}
	put("trace", path)
	put("budget", f.budget)
	put("policy", f.policy)
	engine := f.budget != "" || f.policy != ""
	if f.stacks {
		if !engine {
			return runPlan{}, errors.New("--stacks needs Penstock under the program's PyTorch: give --budget or --policy too")
		}
		*o.booleans["stacks"], given["stacks"] = true, true
	}
	if engine {
		if environment := (runEnvironment{environ: environ}); environment.get("PENSTOCK_ENGINE") == "" {
			put("engine", options.EngineManaged) // the other has no faults
		}
		return planRun(o, args, environ, exe, notes)
	}
	return planObserve(path, args, environ, exe, notes)
}

// planObserve arranges an environment in which a command is recorded and
// otherwise left alone.
func planObserve(path string, args, environ []string, exe string, notes io.Writer) (runPlan, error) {
	env := runEnvironment{environ: environ}
	program, err := findRunCommand(args[0], env.get("PATH"))
	if err != nil {
		return runPlan{}, err
	}
	named := env.get("PENSTOCK_LIB")
	libs, err := findLibraries(exe, named)
	if err != nil {
		return runPlan{}, err
	}
	// An observed program needs no PyTorch and no Python.
	if err := requireLibraries(libs, named, engineLibrary, hookLibrary); err != nil {
		return runPlan{}, err
	}
	if staticELF(program) {
		fmt.Fprintf(notes, "penstock: %s is statically linked, so nothing can be preloaded into it; record it with --pid instead, without launches\n", program)
	}
	if err := env.preload(filepath.Join(libs, hookLibrary)); err != nil {
		return runPlan{}, err
	}
	env.put("PENSTOCK_LIB", libs)
	env.put("PENSTOCK_OBSERVE", "1")
	env.put("PENSTOCK_TRACE", path)
	return runPlan{path: program, argv: args, env: env.environ}, nil
}

// listen records a running process from outside.
func (f *recordFlags) listen(cmd *cobra.Command, args []string) error {
	switch {
	case f.pid != "" && f.system:
		return errors.New("--pid is one process and --system all: give one of them")
	case f.system && len(args) > 0:
		return fmt.Errorf("--system records what runs already: leave %q out", args[0])
	case len(args) > 0:
		return fmt.Errorf("--pid records a process that runs already: leave %q out, or leave --pid out", args[0])
	case f.budget != "" || f.policy != "" || f.stacks:
		return errors.New("--budget, --policy and --stacks are for a command that penstock starts, not for --pid")
	}
	pid := 0
	if !f.system {
		var err error
		if pid, err = parsePID(f.pid); err != nil {
			return err
		}
	}
	ctx := cmd.Context()
	if f.seconds != "" {
		s, err := strconv.ParseFloat(f.seconds, 64)
		if err != nil || !(s > 0) || s > 1e6 {
			return fmt.Errorf("--seconds: %q is not a time: write seconds above 0", f.seconds)
		}
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, time.Duration(s*float64(time.Second)))
		defer stop()
	}
	path, err := outputPath(f.output)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	notes := cmd.ErrOrStderr()
	terminal := terminalWidth(notes) > 0
	waited := false
	var last record.Progress
	tell := func(p record.Progress) {
		last = p
		switch {
		case p.Waiting && !waited:
			waited = true
			fmt.Fprintf(notes, "penstock: waiting for process %d to start CUDA\n", pid)
		case terminal && !p.Waiting:
			fmt.Fprintf(notes, "\r%d faults, %d migrations, %d lost\x1b[K", p.Faults, p.Migrations, p.Lost)
		}
	}
	if f.system {
		err = record.System(ctx, bpf.Options{Cgroup: f.cgroup}, path, tell)
	} else {
		err = record.Process(ctx, pid, path, tell)
	}
	if terminal {
		fmt.Fprint(notes, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(notes, "penstock: recorded to %s (%d faults, %d migrations, %d lost events): look at it with `penstock faults explain %s`\n",
		f.output, last.Faults, last.Migrations, last.Lost, f.output)
	if w := last.Work; f.system {
		fmt.Fprintf(notes, "penstock: the driver's fault handler ran %d times, for %.3f s; it evicted %d blocks, in %.3f s\n",
			w.Runs, float64(w.RunNanos)/1e9, w.Evictions, float64(w.EvictionNanos)/1e9)
	}
	return nil
}

func parsePID(text string) (int, error) {
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("--pid: %q is not a process id", text)
	}
	return pid, nil
}
