package main

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/pool/plan"
)

// newRunCommand is `penstock run`: it arranges an environment in which a
// command's PyTorch allocates through Penstock, and becomes that command. It
// execs rather than spawns: process id, terminal, signals and exit status are
// then the command's own, with nothing to forward and nothing to get wrong. The
// verdict at exit is printed by the library, from inside; what it says of an oracle
// it asks of this program (penstock report bound).
func newRunCommand() *cobra.Command {
	o := newRunOptions()
	cmd := &cobra.Command{
		Use:   "run [flags] -- command [arguments]",
		Short: "Run a training command with more memory than the GPU has",
		Long: `Run a command, usually python, with Penstock under its PyTorch: the launch hook is
preloaded, and the allocator is installed as soon as the program imports torch.
The program needs no change. A verdict is printed when it ends.

Flags come before the command. Each one sets a PENSTOCK_* variable; a variable
that is already set holds where its flag is not given.

A job of several processes, one for each GPU, is run in the same way: budgets are those of
each process, the files of --report and --trace get its rank, as in r.rank1.json, and what
it prints begins with penstock[rank1].`,
		Example: `  penstock run --budget 24GiB -- python train.py
  penstock run --budget 24GiB --report r.json -- torchrun --nproc-per-node 2 train.py`,
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
	for _, f := range runFlags() {
		if f.Type == options.TypeBool {
			o.booleans[f.Flag] = cmd.Flags().Bool(f.Flag, false, f.Doc)
			continue
		}
		usage := f.Doc
		if f.Choices != nil {
			usage += ": " + strings.Join(f.Choices, ", ")
		}
		// No default here: a flag that is not given leaves its variable alone.
		o.texts[f.Flag] = cmd.Flags().String(f.Flag, "", usage)
	}
	return cmd
}

// runFlags are the options that have a flag here.
func runFlags() []options.Option {
	var flags []options.Option
	for _, o := range options.Table {
		if slices.Contains(o.Commands, "run") {
			flags = append(flags, o)
		}
	}
	return flags
}

// runOptions are the values of the flags.
type runOptions struct {
	texts    map[string]*string
	booleans map[string]*bool
	set      func(name string) bool // whether a flag was given
}

func newRunOptions() runOptions {
	return runOptions{texts: map[string]*string{}, booleans: map[string]*bool{}}
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
	for _, f := range runFlags() {
		if err := o.apply(f, &env); err != nil {
			return runPlan{}, err
		}
	}
	// All of them, whether from flags or not: a misspelt variable is an error here and not in the middle of a run.
	set, err := options.FromEnviron(env.environ)
	if err != nil {
		return runPlan{}, err
	}
	if set.PlanPath != "" {
		plan, err := checkPlan(set.PlanPath)
		if err != nil {
			return runPlan{}, fmt.Errorf("PENSTOCK_PLAN: %w", err)
		}
		env.put("PENSTOCK_PLAN", plan)
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
	if err := env.preload(filepath.Join(layout.libs, hookLibrary)); err != nil {
		return runPlan{}, err
	}
	// In this order: the folder with sitecustomize.py ends up first.
	env.prepend("PYTHONPATH", layout.python)
	env.prepend("PYTHONPATH", filepath.Join(layout.python, "penstock", "_inject"))
	env.put("PENSTOCK_LIB", layout.libs)
	env.put("PENSTOCK_ACTIVE", "1")
	env.put("PENSTOCK_COMMAND", exe)
	if e := cmp.Or(env.get("PENSTOCK_ENGINE"), options.Defaults().Engine); e == options.EngineExplicit || e == options.EngineAuto {
		// Calls of NCCL are to have launched when they return: the engine has to know what runs. PyTorch asks
		// for communicators that do not block when a process group is bound to a device.
		env.put("NCCL_COMM_BLOCKING", "1")
	}
	return runPlan{path: path, argv: args, env: env.environ}, nil
}

// apply puts a flag into the environment, in the form that holds wherever the
// program goes: sizes in bytes, paths absolute.
func (o runOptions) apply(f options.Option, env *runEnvironment) error {
	source, value := "--"+f.Flag, env.get(f.Env)
	switch given := o.set(f.Flag); {
	case given && f.Type == options.TypeBool:
		value = "0"
		if *o.booleans[f.Flag] {
			value = "1"
		}
	case given:
		if value = *o.texts[f.Flag]; value == "" {
			return fmt.Errorf("--%s is empty: give it a value or leave it out", f.Flag)
		}
	case value == "":
		return nil // unset, and the default holds
	default:
		source = f.Env
	}
	if _, err := options.FromEnviron([]string{f.Env + "=" + value}); err != nil {
		return errors.New(strings.Replace(err.Error(), f.Env, source, 1))
	}
	switch f.Type {
	case options.TypeBytes:
		bytes, err := options.ParseBytes(value)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		value = strconv.FormatInt(bytes, 10)
	case options.TypeFile:
		path, err := outputPath(value)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		value = path
	}
	env.put(f.Env, value)
	return nil
}

// outputPath makes a file's path absolute (the program may change its folder)
// and says early when it cannot be written.
func outputPath(value string) (string, error) {
	path, err := filepath.Abs(value)
	if err != nil {
		return "", err
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || !dir.IsDir() {
		return "", fmt.Errorf("%s cannot be written: the folder %s does not exist: make it first", value, filepath.Dir(path))
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "", fmt.Errorf("%s is a folder: name a file in it", value)
	}
	return path, nil
}

// checkPlan makes a plan's path absolute and says early when it is none.
func checkPlan(value string) (string, error) {
	path, err := filepath.Abs(value)
	if err != nil {
		return "", err
	}
	_, err = plan.ReadFile(path)
	return path, err
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

// preload has the dynamic loader load a library before a program's own. LD_PRELOAD's paths end at spaces too; the
// folders of LD_LIBRARY_PATH do not, so that a library whose path has some is named there and found here.
func (e *runEnvironment) preload(library string) error {
	folder, name := filepath.Split(library)
	switch {
	case strings.ContainsAny(folder, ":;$"): // separators, and what the loader puts its own values for
		return fmt.Errorf("%s cannot be preloaded because its path has one of : ; $: move Penstock, or set PENSTOCK_LIB to a folder without them", library)
	case strings.Contains(folder, " "):
		e.prepend("LD_LIBRARY_PATH", filepath.Clean(folder))
		e.prepend("LD_PRELOAD", name)
	default:
		e.prepend("LD_PRELOAD", library)
	}
	return nil
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
