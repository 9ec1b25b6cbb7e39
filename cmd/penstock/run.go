package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// newRunCommand is `penstock run`: it arranges an environment in which a
// command's PyTorch allocates through Penstock, and becomes that command. It
// execs rather than spawns: process id, terminal, signals and exit status are
// then the command's own, with nothing to forward and nothing to get wrong. The
// verdict at exit is printed by the library, from inside.
func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- command [arguments]",
		Short: "Run a training command with more memory than the GPU has",
		Long: `Run a command, usually python, with Penstock under its PyTorch: the launch hook is
preloaded, and the allocator is installed as soon as the program imports torch.
The program needs no change. A verdict is printed when it ends.

Flags come before the command. Each one sets a PENSTOCK_* variable; a variable
that is already set holds where its flag is not given.`,
		Example: `  penstock run --budget 24GiB -- python train.py
  penstock run --budget 24GiB --trace step.pstk -- torchrun --nproc-per-node 1 train.py`,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.set = cmd.Flags().Changed
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("cannot tell where penstock itself is: %w", err)
			}
			plan, err := planRun(o, args, os.Environ(), exe, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := syscall.Exec(plan.path, plan.argv, plan.env); err != nil {
				return fmt.Errorf("cannot run %s: %w", plan.path, explainRunExec(plan.path, err))
			}
			return nil
		},
	}
	// `penstock run python train.py --lr 1` leaves --lr to train.py.
	cmd.Flags().SetInterspersed(false)
	for _, f := range runFlags {
		if f.boolean {
			cmd.Flags().BoolVar(o.boolean(f.name), f.name, false, f.usage)
		} else {
			cmd.Flags().StringVar(o.text(f.name), f.name, "", f.usage)
		}
	}
	return cmd
}

// runFlag ties a flag to the variable that carries it into the process.
type runFlag struct {
	name, env, usage string
	boolean          bool
	check            func(value string) (string, error) // what to put into the variable
}

var runFlags = []runFlag{
	{name: "budget", env: "PENSTOCK_BUDGET", usage: "device memory to use, such as 24GiB (default: all of the card)", check: runBytes},
	{name: "host-budget", env: "PENSTOCK_HOST_BUDGET", usage: "host memory to use for what does not fit", check: runBytes},
	{name: "engine", env: "PENSTOCK_ENGINE", usage: "how memory is moved: managed", check: runEngine},
	{name: "policy", env: "PENSTOCK_POLICY", usage: "what is moved when: naive, lru, deepum or penstock", check: runPolicy},
	{name: "trace", env: "PENSTOCK_TRACE", usage: "record the run to this file", check: runOutput},
	{name: "report", env: "PENSTOCK_REPORT", usage: "write the verdict to this file as JSON", check: runOutput},
	{name: "json", env: "PENSTOCK_JSON", usage: "print the verdict as JSON", boolean: true},
}

// runOptions are the values of the flags.
type runOptions struct {
	texts    map[string]*string
	booleans map[string]*bool
	set      func(name string) bool // whether a flag was given
}

func (o *runOptions) text(name string) *string {
	if o.texts == nil {
		o.texts = map[string]*string{}
	}
	o.texts[name] = new(string)
	return o.texts[name]
}

func (o *runOptions) boolean(name string) *bool {
	if o.booleans == nil {
		o.booleans = map[string]*bool{}
	}
	o.booleans[name] = new(bool)
	return o.booleans[name]
}

// runPlan is what is executed.
type runPlan struct {
	path string
	argv []string
	env  []string
}

// planRun checks everything that can be checked before the command starts and
// says what to execute. Notes for people go to notes.
func planRun(o runOptions, args, environ []string, exe string, notes io.Writer) (runPlan, error) {
	if len(args) == 0 {
		return runPlan{}, errors.New("no command to run: write it after --, as in `penstock run --budget 24GiB -- python train.py`")
	}
	env := runEnvironment{environ: slices.Clone(environ)}
	for _, f := range runFlags {
		if err := f.apply(o, &env); err != nil {
			return runPlan{}, err
		}
	}
	path, err := findRunCommand(args[0], env.get("PATH"))
	if err != nil {
		return runPlan{}, err
	}
	layout, err := findRunLayout(exe, env.get("PENSTOCK_LIB"))
	if err != nil {
		return runPlan{}, err
	}
	if err := findRunCUDA(env.get("LD_LIBRARY_PATH"), systemLibraryDirs); err != nil {
		return runPlan{}, err
	}
	if staticELF(path) {
		fmt.Fprintf(notes, "penstock: %s is statically linked, so nothing can be preloaded into it; only programs that it starts are covered\n", path)
	}
	if flag := isolatedPython(args); flag != "" {
		fmt.Fprintf(notes, "penstock: %s %s ignores PYTHONPATH, so the program must call penstock.enable() itself; leave %s out to have it done\n", args[0], flag, flag)
	}
	hook := filepath.Join(layout.libs, hookLibrary)
	if strings.ContainsAny(hook, ": ") {
		return runPlan{}, fmt.Errorf("%s cannot be preloaded because its path has a space or a colon: move Penstock, or set PENSTOCK_LIB to a folder without them", hook)
	}
	env.prepend("LD_PRELOAD", hook)
	// In this order: the folder with sitecustomize.py ends up first.
	env.prepend("PYTHONPATH", layout.python)
	env.prepend("PYTHONPATH", filepath.Join(layout.python, "penstock", "_inject"))
	env.put("PENSTOCK_LIB", layout.libs)
	env.put("PENSTOCK_ACTIVE", "1")
	return runPlan{path: path, argv: args, env: env.environ}, nil
}

// apply puts a flag into the environment, or checks the variable that is there already.
func (f runFlag) apply(o runOptions, env *runEnvironment) error {
	if f.boolean {
		if o.set(f.name) {
			value := "0"
			if *o.booleans[f.name] {
				value = "1"
			}
			env.put(f.env, value)
		}
		return nil
	}
	source, value := "--"+f.name, ""
	if o.set(f.name) {
		value = *o.texts[f.name]
	} else {
		source, value = f.env, env.get(f.env)
		if value == "" {
			return nil // unset, and the default holds
		}
	}
	checked, err := f.check(value)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	env.put(f.env, checked)
	return nil
}

// runEnvironment is a list of NAME=value.
type runEnvironment struct{ environ []string }

func (e *runEnvironment) get(name string) string {
	for _, kv := range slices.Backward(e.environ) {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

func (e *runEnvironment) put(name, value string) {
	e.environ = slices.DeleteFunc(e.environ, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	e.environ = append(e.environ, name+"="+value)
}

// prepend puts an entry first in a colon-separated list, once.
func (e *runEnvironment) prepend(name, entry string) {
	list := []string{entry}
	for _, old := range strings.Split(e.get(name), ":") {
		if old != entry && old != "" {
			list = append(list, old)
		}
	}
	e.put(name, strings.Join(list, ":"))
}

// findRunCommand is exec.LookPath with the PATH that the command will see.
func findRunCommand(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return "", fmt.Errorf("%s: %w: name a command that exists after --", name, errors.Unwrap(err))
		case info.IsDir() || info.Mode()&0o111 == 0:
			return "", fmt.Errorf("%s is not executable: for a script, name its interpreter, as in `python %s`", name, name)
		}
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s: %w: for a script, name its interpreter, as in `python %s`", name, exec.ErrNotFound, name)
	}
	return "", fmt.Errorf("%s: %w: check the spelling after --", name, exec.ErrNotFound)
}

// isolatedPython is the flag of a python command that keeps the import hook
// out: -I and -E ignore PYTHONPATH, -S does not import sitecustomize.
func isolatedPython(args []string) string {
	if !strings.HasPrefix(filepath.Base(args[0]), "python") {
		return ""
	}
	for _, arg := range args[1:] {
		if len(arg) < 2 || arg[0] != '-' || arg[1] == '-' {
			return "" // the program; what follows is its own
		}
		for _, letter := range arg[1:] {
			switch letter {
			case 'I', 'E', 'S':
				return "-" + string(letter)
			case 'c', 'm', 'W', 'X':
				return "" // the rest of it is an argument, and so may be what follows
			}
		}
	}
	return ""
}

// explainRunExec says what the kernel meant.
func explainRunExec(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return errors.New("it is no program and has no #! line: name its interpreter")
	case errors.Is(err, syscall.ENOENT):
		return errors.New("the interpreter in its #! line does not exist")
	}
	return err
}

// staticELF says whether a file is a program that the dynamic loader has no part in.
func staticELF(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false // a script, most likely
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
