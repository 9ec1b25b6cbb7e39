package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/options"
)

// newJupyterCommand is `penstock jupyter`, the parent of what deals with kernels of Jupyter.
func newJupyterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jupyter",
		Short: "Notebooks whose Python runs under Penstock",
		Long: `Install a kernel for Jupyter that starts Python with penstock run: the launch hook is there
from the start, and the notebook needs no line of its own.`,
		Example: `  penstock jupyter install --budget 24GiB
  penstock jupyter list
  penstock jupyter remove penstock`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: see penstock jupyter --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newJupyterInstallCommand(), newJupyterListCommand(), newJupyterRemoveCommand())
	return cmd
}

// kernelSpec is the kernel.json that Jupyter reads.
type kernelSpec struct {
	Argv        []string       `json:"argv"`
	DisplayName string         `json:"display_name"`
	Language    string         `json:"language"`
	Metadata    kernelMetadata `json:"metadata"`
}

type kernelMetadata struct {
	Debugger bool   `json:"debugger"`
	Penstock string `json:"penstock"` // the version that installed it; "" for a kernel of others
}

// kernelOptions are the flags of penstock run that a kernel keeps.
var kernelOptions = []string{"budget", "host-budget", "engine", "policy", "replay"}

// kernelPlace is where kernels lie.
type kernelPlace struct {
	prefix string
	user   bool
}

func (p *kernelPlace) flags(cmd *cobra.Command) {
	textFlag(cmd, &p.prefix, "prefix")
	boolFlag(cmd, &p.user, "user")
}

// folder has a folder for each kernel.
func (p *kernelPlace) folder() (string, error) {
	if p.prefix != "" {
		if p.user {
			return "", errors.New("--user and --prefix are two places: give one of them")
		}
		if info, err := os.Stat(p.prefix); err != nil || !info.IsDir() {
			return "", fmt.Errorf("--prefix: %s is not a folder: name the one of an environment, as \"$VIRTUAL_ENV\"", p.prefix)
		}
		prefix, err := filepath.Abs(p.prefix)
		return filepath.Join(prefix, "share", "jupyter", "kernels"), err
	}
	// As jupyter_core finds it.
	if data := os.Getenv("JUPYTER_DATA_DIR"); data != "" {
		return filepath.Join(data, "kernels"), nil
	}
	if data := os.Getenv("XDG_DATA_HOME"); data != "" {
		return filepath.Join(data, "jupyter", "kernels"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("it is not known where the user's kernels lie (%w): set HOME, or give --prefix", err)
	}
	return filepath.Join(home, ".local", "share", "jupyter", "kernels"), nil
}

// readKernel reads the spec in a kernel's folder.
func readKernel(folder string) (spec kernelSpec, err error) {
	text, err := os.ReadFile(filepath.Join(folder, "kernel.json"))
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	return spec, err
}

var kernelName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func checkKernelName(name string) error {
	if !kernelName.MatchString(name) || strings.Trim(name, ".") == "" {
		return fmt.Errorf("%q is no name of a kernel: use letters, digits, dots, dashes and underscores", name)
	}
	return nil
}

func newJupyterInstallCommand() *cobra.Command {
	var place kernelPlace
	var name, display, python string
	values := map[string]*string{}
	cmd := &cobra.Command{
		Use:         "install",
		Annotations: below("jupyter"),
		Short:       "Install a kernel that starts Python under Penstock",
		Long: `Install a kernel for Jupyter that starts Python with penstock run and the options given here.
Install several by --name, with other budgets or engines; installing one again replaces it.`,
		Example: `  penstock jupyter install --budget 24GiB
  penstock jupyter install --name penstock-explicit --engine explicit --prefix "$VIRTUAL_ENV"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkKernelName(name); err != nil {
				return fmt.Errorf("--name: %w", err)
			}
			folder, err := place.folder()
			if err != nil {
				return err
			}
			spec, err := newKernel(cmd, values, python, display)
			if err != nil {
				return err
			}
			at := filepath.Join(folder, name)
			if old, err := readKernel(at); !errors.Is(err, fs.ErrNotExist) && old.Metadata.Penstock == "" {
				return fmt.Errorf("%s is a kernel that Penstock has not installed: choose another --name", at)
			}
			if err := writeKernel(at, spec); err != nil {
				return fmt.Errorf("the kernel cannot be installed: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "installed the kernel %s (%s) in %s: choose it in Jupyter, or `jupyter console --kernel %s`\n", name, spec.DisplayName, at, name)
			return nil
		},
	}
	textFlag(cmd, &name, "name")
	textFlag(cmd, &display, "display-name")
	textFlag(cmd, &python, "python")
	place.flags(cmd)
	for _, f := range kernelOptions {
		values[f] = new(string)
		o := row(cmd, f)
		cmd.Flags().StringVar(values[f], f, "", o.Doc) // no default: what is not given is decided when the kernel starts
	}
	return cmd
}

// newKernel checks everything that can be checked before Jupyter starts the kernel.
func newKernel(cmd *cobra.Command, values map[string]*string, python, display string) (spec kernelSpec, err error) {
	exe, err := os.Executable()
	if err != nil {
		return spec, fmt.Errorf("cannot tell where penstock itself is: %w", err)
	}
	if python, err = findRunCommand(python, os.Getenv("PATH")); err == nil {
		python, err = filepath.Abs(python)
	}
	if err != nil {
		return spec, fmt.Errorf("--python: %w", err)
	}
	spec = kernelSpec{Argv: []string{exe, "run"}, DisplayName: display, Language: "python", Metadata: kernelMetadata{Debugger: true, Penstock: version}}
	for _, f := range kernelOptions {
		if !cmd.Flags().Changed(f) {
			continue
		}
		o, value := row(cmd, f), *values[f]
		if value == "" {
			return spec, fmt.Errorf("--%s is empty: give it a value or leave it out", f)
		}
		if _, err := options.FromEnviron([]string{o.Env + "=" + value}); err != nil {
			return spec, errors.New(strings.Replace(err.Error(), o.Env, "--"+f, 1))
		}
		spec.Argv = append(spec.Argv, "--"+f, value)
	}
	spec.Argv = append(spec.Argv, "--", python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
	if out, err := exec.CommandContext(cmd.Context(), python, "-c", "import ipykernel_launcher").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return spec, fmt.Errorf("%s has no ipykernel (%s): run `%s -m pip install ipykernel`, or name another with --python", python, lines[len(lines)-1], python)
	}
	if spec.DisplayName == "" {
		spec.DisplayName = "Python with Penstock"
		if b := *values["budget"]; b != "" {
			spec.DisplayName += " (" + b + ")"
		}
	}
	return spec, nil
}

func writeKernel(at string, spec kernelSpec) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return internalf("%w", err)
	}
	return os.WriteFile(filepath.Join(at, "kernel.json"), append(text, '\n'), 0o644)
}

// installed are the kernels there that Penstock has installed, by name.
func (p *kernelPlace) installed() (folder string, kernels map[string]kernelSpec, err error) {
	if folder, err = p.folder(); err != nil {
		return "", nil, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	kernels = map[string]kernelSpec{}
	for _, e := range entries {
		if spec, err := readKernel(filepath.Join(folder, e.Name())); err == nil && spec.Metadata.Penstock != "" {
			kernels[e.Name()] = spec
		}
	}
	return folder, kernels, nil
}

func newJupyterListCommand() *cobra.Command {
	var place kernelPlace
	var asJSON bool
	cmd := &cobra.Command{
		Use:         "list",
		Annotations: below("jupyter"),
		Short:       "List the kernels that Penstock has installed",
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, kernels, err := place.installed()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), kernels)
			}
			if len(kernels) == 0 {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "no kernel of Penstock in %s: install one with `penstock jupyter install`\n", folder)
				return err
			}
			return printKernels(cmd.OutOrStdout(), folder, kernels)
		},
	}
	place.flags(cmd)
	boolFlag(cmd, &asJSON, "json")
	return cmd
}

func printKernels(w io.Writer, folder string, kernels map[string]kernelSpec) error {
	var names []string
	for name := range kernels {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, err := fmt.Fprintf(w, "%s  %s\n  %s\n", name, filepath.Join(folder, name), strings.Join(kernels[name].Argv, " ")); err != nil {
			return err
		}
	}
	return nil
}

func newJupyterRemoveCommand() *cobra.Command {
	var place kernelPlace
	cmd := &cobra.Command{
		Use:         "remove NAME",
		Annotations: below("jupyter"),
		Short:       "Remove a kernel that Penstock has installed",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one kernel to remove: `penstock jupyter list` has those there are")
			}
			return checkKernelName(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			folder, kernels, err := place.installed()
			if err != nil {
				return err
			}
			at := filepath.Join(folder, args[0])
			if _, ok := kernels[args[0]]; !ok {
				return fmt.Errorf("%s is no kernel that Penstock has installed: `penstock jupyter list` has those there are", at)
			}
			if err := os.RemoveAll(at); err != nil {
				return fmt.Errorf("the kernel cannot be removed: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed the kernel %s from %s\n", args[0], folder)
			return err
		},
	}
	place.flags(cmd)
	return cmd
}
