package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// installation is a folder tree like a built checkout, with a stub of
// everything that planRun looks for.
type installation struct {
	root, exe, libcuda string
}

func newInstallation(t *testing.T) installation { return installationIn(t, t.TempDir()) }

func installationIn(t *testing.T, root string) installation {
	t.Helper()
	for _, file := range []string{
		"bin/penstock", "lib/" + engineLibrary, "lib/" + hookLibrary, "lib/" + torchLibrary,
		"python/penstock/_inject/sitecustomize.py", "driver/" + cudaLibrary,
	} {
		write(t, filepath.Join(root, file), "", 0o755)
	}
	return installation{root: root, exe: filepath.Join(root, "bin", "penstock"), libcuda: filepath.Join(root, "driver")}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// plan runs planRun on a command line as cobra parses it.
func (i installation) plan(t *testing.T, line []string, environ ...string) (runPlan, string, error) {
	t.Helper()
	cmd := newRunCommand()
	if err := cmd.ParseFlags(line); err != nil {
		return runPlan{}, "", err
	}
	o := newRunOptions()
	for _, f := range runFlags() {
		text, err := cmd.Flags().GetString(f.Flag)
		if err != nil {
			boolean, err := cmd.Flags().GetBool(f.Flag)
			if err != nil {
				t.Fatal(err)
			}
			o.booleans[f.Flag] = &boolean
			continue
		}
		o.texts[f.Flag] = &text
	}
	o.set = cmd.Flags().Changed
	var notes bytes.Buffer
	environ = append([]string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + i.libcuda}, environ...)
	plan, err := planRun(o, cmd.Flags().Args(), environ, i.exe, &notes)
	return plan, notes.String(), err
}

func TestRunPlan(t *testing.T) {
	i := newInstallation(t)
	plan, notes, err := i.plan(t,
		[]string{"--budget", "24GiB", "--trace", "t.pstrace", "--json", "sh", "-c", "exit 3", "--budget", "1"},
		"LD_PRELOAD=/their/lib.so", "PYTHONPATH=/their/python", "PENSTOCK_HOST_BUDGET=1k", "PENSTOCK_BUDGET=5", "EXTRA=a=b")
	if err != nil || notes != "" {
		t.Fatal(err, notes)
	}
	if want := []string{"sh", "-c", "exit 3", "--budget", "1"}; !slices.Equal(plan.argv, want) {
		t.Errorf("argv %q, want %q: flags after the command are the command's", plan.argv, want)
	}
	if filepath.Base(plan.path) != "sh" || !filepath.IsAbs(plan.path) {
		t.Errorf("path %q", plan.path)
	}
	trace, err := filepath.Abs("t.pstrace")
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(i.root, "python")
	for name, want := range map[string]string{
		"LD_PRELOAD":           filepath.Join(i.root, "lib", hookLibrary) + ":/their/lib.so",
		"PYTHONPATH":           filepath.Join(python, "penstock", "_inject") + ":" + python + ":/their/python",
		"PENSTOCK_LIB":         filepath.Join(i.root, "lib"),
		"PENSTOCK_ACTIVE":      "1",
		"PENSTOCK_COMMAND":     i.exe,
		"PENSTOCK_BUDGET":      "25769803776",
		"PENSTOCK_HOST_BUDGET": "1024",
		"PENSTOCK_TRACE":       trace,
		"PENSTOCK_JSON":        "1",
		"EXTRA":                "a=b",
		"NCCL_COMM_BLOCKING":   "1",
	} {
		env := runEnvironment{plan.env}
		if got := env.get(name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"PENSTOCK_POLICY", "PENSTOCK_ENGINE", "PENSTOCK_REPORT"} {
		if slices.ContainsFunc(plan.env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
			t.Errorf("%s is set, but no flag was given", name)
		}
	}
	if n := len(slices.DeleteFunc(plan.env, func(kv string) bool { return !strings.HasPrefix(kv, "PENSTOCK_BUDGET=") })); n != 1 {
		t.Errorf("PENSTOCK_BUDGET is there %d times", n)
	}
}

// TestRunMakesNCCLBlock: where the engine must know what runs, whatever the environment says.
func TestRunMakesNCCLBlock(t *testing.T) {
	i := newInstallation(t)
	for engine, want := range map[string]string{"explicit": "1", "auto": "1", "managed": "0"} {
		plan, _, err := i.plan(t, []string{"--engine", engine, "sh"}, "NCCL_COMM_BLOCKING=0")
		if err != nil {
			t.Fatal(err)
		}
		if got := (&runEnvironment{plan.env}).get("NCCL_COMM_BLOCKING"); got != want {
			t.Errorf("--engine %s: NCCL_COMM_BLOCKING=%s, want %s", engine, got, want)
		}
	}
}

func TestRunWithinRun(t *testing.T) {
	i := newInstallation(t)
	first, _, err := i.plan(t, []string{"sh"})
	if err != nil {
		t.Fatal(err)
	}
	env := runEnvironment{first.env}
	second, _, err := i.plan(t, []string{"sh"}, "LD_PRELOAD="+env.get("LD_PRELOAD"), "PYTHONPATH="+env.get("PYTHONPATH"))
	if err != nil {
		t.Fatal(err)
	}
	again := runEnvironment{second.env}
	for _, name := range []string{"LD_PRELOAD", "PYTHONPATH"} {
		if env.get(name) != again.get(name) {
			t.Errorf("%s grew from %s to %s", name, env.get(name), again.get(name))
		}
	}
}

func TestRunErrors(t *testing.T) {
	i := newInstallation(t)
	script := filepath.Join(i.root, "train.py")
	write(t, script, "print(1)\n", 0o644)
	tests := []struct {
		name    string
		line    []string
		environ []string
		says    []string
	}{
		{"no command", nil, nil, []string{"no command", "--"}},
		{"no command after flags", []string{"--budget", "1GiB", "--"}, nil, []string{"no command"}},
		{"budget", []string{"--budget", "plenty", "sh"}, nil, []string{"--budget", `"plenty"`, "24GiB"}},
		{"budget zero", []string{"--budget", "0", "sh"}, nil, []string{"--budget", "above 0"}},
		{"budget empty", []string{"--budget", "", "sh"}, nil, []string{"--budget is empty"}},
		{"budget variable", []string{"sh"}, []string{"PENSTOCK_BUDGET=x"}, []string{"PENSTOCK_BUDGET", `"x"`}},
		{"policy", []string{"--policy", "magic", "sh"}, nil, []string{"--policy", "magic", "deepum"}},
		{"engine", []string{"--engine", "steam", "sh"}, nil, []string{"--engine", "steam", "managed"}},
		{"policy variable", []string{"sh"}, []string{"PENSTOCK_POLICY=magic"}, []string{"PENSTOCK_POLICY", "magic"}},
		{"variable without a flag", []string{"sh"}, []string{"PENSTOCK_MANAGED_LIMIT=x"}, []string{"PENSTOCK_MANAGED_LIMIT", `"x"`}},
		{"misspelt variable", []string{"sh"}, []string{"PENSTOCK_BUGDET=1GiB"}, []string{"PENSTOCK_BUGDET", "PENSTOCK_BUDGET"}},
		{"trace folder", []string{"--trace", "/nonexistent/t", "sh"}, nil, []string{"--trace", "/nonexistent", "does not exist"}},
		{"report is a folder", []string{"--report", i.root, "sh"}, nil, []string{"--report", "is a folder"}},
		{"command", []string{"pyhton"}, nil, []string{"pyhton", "not found", "spelling"}},
		{"command path", []string{i.root + "/nothing"}, nil, []string{"nothing", "no such file"}},
		{"script", []string{script}, nil, []string{"not executable", "python"}},
		{"no plan there", []string{"sh"}, []string{"PENSTOCK_PLAN=nothing.json"}, []string{"PENSTOCK_PLAN", "nothing.json: no such file"}},
		{"no plan", []string{"sh"}, []string{"PENSTOCK_PLAN=" + script}, []string{"PENSTOCK_PLAN", script}},
		{"named libraries", []string{"sh"}, []string{"PENSTOCK_LIB=" + i.root}, []string{engineLibrary, "PENSTOCK_LIB"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := i.plan(t, test.line, test.environ...)
			checkOneLine(t, err, test.says)
		})
	}
}

// A plan is found whatever folder the program goes to.
func TestRunPlanFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if status, _, stderr := command(t, "plan", "--trace", shipped(t), "--out", "plan.json"); status != 0 {
		t.Fatal(stderr)
	}
	p, _, err := newInstallation(t).plan(t, []string{"sh"}, "PENSTOCK_PLAN=plan.json")
	if err != nil {
		t.Fatal(err)
	}
	env := runEnvironment{p.env}
	if got := env.get("PENSTOCK_PLAN"); !filepath.IsAbs(got) || filepath.Base(got) != "plan.json" {
		t.Errorf("the plan is %q", got)
	}
}

func checkOneLine(t *testing.T, err error, says []string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %q", err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

func TestRunMissingParts(t *testing.T) {
	for _, part := range []string{engineLibrary, hookLibrary, torchLibrary} {
		i := newInstallation(t)
		if err := os.Remove(filepath.Join(i.root, "lib", part)); err != nil {
			t.Fatal(err)
		}
		_, _, err := i.plan(t, []string{"sh"})
		checkOneLine(t, err, []string{part, "make build"})
	}
	i := newInstallation(t)
	if err := os.RemoveAll(filepath.Join(i.root, "python")); err != nil {
		t.Fatal(err)
	}
	_, _, err := i.plan(t, []string{"sh"})
	checkOneLine(t, err, []string{"Python package"})
}

func TestRunLayout(t *testing.T) {
	i := newInstallation(t)
	// Through a link, as in ~/bin.
	link := filepath.Join(t.TempDir(), "penstock")
	if err := os.Symlink(i.exe, link); err != nil {
		t.Fatal(err)
	}
	got, err := findRunLayout(link, "")
	if err != nil || got.libs != filepath.Join(i.root, "lib") || got.python != filepath.Join(i.root, "python") {
		t.Errorf("%+v, %v", got, err)
	}
}

// A wheel has the command in bin of what Python calls its prefix, and the rest among the packages of one of its Pythons.
func TestRunLayoutOfAWheel(t *testing.T) {
	for _, packages := range []string{"lib/python3.12/site-packages", "lib64/python3.12/site-packages", "lib/python3/dist-packages", "."} {
		prefix := t.TempDir()
		exe, site := filepath.Join(prefix, "bin", "penstock"), filepath.Join(prefix, packages)
		install := func(site, version string) {
			write(t, filepath.Join(site, "penstock-"+version+".dist-info", "RECORD"), "", 0o644)
			for _, name := range []string{"lib/" + engineLibrary, "lib/" + hookLibrary, "lib/" + torchLibrary, "_inject/sitecustomize.py"} {
				write(t, filepath.Join(site, "penstock", name), "", 0o644)
			}
		}
		install(filepath.Join(prefix, "lib", "python3.10", "site-packages"), "0.0.1") // another Python's, of another version
		if got, err := findRunLayout(exe, ""); err == nil {
			t.Errorf("%s: %+v is of another version", packages, got)
		}
		install(site, version)
		want := runLayout{libs: filepath.Join(site, "penstock", "lib"), python: site}
		if got, err := findRunLayout(exe, ""); err != nil || got != want {
			t.Errorf("%s: %+v, %v", packages, got, err)
		}
		if got, err := findRunLayout(filepath.Join(t.TempDir(), "bin", "penstock"), want.libs); err != nil || got != want {
			t.Errorf("%s: named: %+v, %v", packages, got, err)
		}
	}
}

func TestRunFindsCUDA(t *testing.T) {
	i := newInstallation(t)
	none := systemLibraries{cache: filepath.Join(i.root, "no.cache")}
	checkOneLine(t, findRunCUDA("", none), []string{cudaLibrary, "install the NVIDIA driver"})
	if err := findRunCUDA("/nonexistent:"+i.libcuda, none); err != nil {
		t.Error(err)
	}
	if err := findRunCUDA("", systemLibraries{dirs: []string{i.libcuda}}); err != nil {
		t.Error(err)
	}
	cache := filepath.Join(i.root, "ld.so.cache")
	write(t, cache, "glibc-ld.so.cache1.1\x00\x01\x02"+cudaLibrary+"\x00"+i.libcuda+"/"+cudaLibrary+"\x00", 0o644)
	if err := findRunCUDA("", systemLibraries{cache: cache}); err != nil {
		t.Error(err)
	}
	// A cache that names a driver since removed.
	write(t, cache, cudaLibrary+"\x00/nonexistent/"+cudaLibrary+"\x00", 0o644)
	if err := findRunCUDA("", systemLibraries{cache: cache}); err == nil {
		t.Error("a path that does not exist was taken for the driver")
	}
}

func TestRunNotesStaticPrograms(t *testing.T) {
	i := newInstallation(t)
	source := filepath.Join(i.root, "static.c")
	write(t, source, "int main(void) { return 0; }\n", 0o644)
	static := filepath.Join(i.root, "static")
	if out, err := exec.Command("gcc", "-static", "-o", static, source).CombinedOutput(); err != nil {
		t.Skipf("gcc -static does not work here: %s", out)
	}
	_, notes, err := i.plan(t, []string{static})
	if err != nil || !strings.Contains(notes, "statically linked") {
		t.Errorf("notes %q, %v", notes, err)
	}
	if _, notes, _ := i.plan(t, []string{"sh"}); notes != "" {
		t.Errorf("notes about sh: %q", notes)
	}
}

func TestIsolatedPython(t *testing.T) {
	tests := map[string]string{
		"python train.py -I": "", "python -I train.py": "-I", "/usr/bin/python3.11 -uE train.py": "-E", "python -S -m x": "-S",
		"python -c import -E": "", "python -m pkg -I": "", "python -u -O train.py -S": "", "bash -E x": "", "python": "", "python --version -I": "",
	}
	for line, want := range tests {
		if got := isolatedPython(strings.Fields(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestRunProcess is not a test of its own: with RUN_COMMAND set, the test binary is the command.
func TestRunProcess(t *testing.T) {
	line := os.Getenv("RUN_COMMAND")
	if line == "" {
		t.Skip("the tests below start this one in processes of their own")
	}
	var args []string
	if err := json.Unmarshal([]byte(line), &args); err != nil {
		t.Fatal(err)
	}
	os.Unsetenv("RUN_COMMAND")
	cmd := newRunCommand()
	cmd.SetArgs(args)
	cmd.SilenceErrors = true
	if err := cmd.Execute(); err != nil {
		io.WriteString(os.Stderr, err.Error()+"\n")
		os.Exit(2)
	}
	os.Exit(0)
}

// execRun executes the run command in a process of its own.
func (i installation) execRun(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	line, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	// The executable of that process is this test, so the installation is put where its folder says.
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunProcess$")
	cmd.Env = append(os.Environ(), "RUN_COMMAND="+string(line), "LD_LIBRARY_PATH="+i.libcuda, "PENSTOCK_LIB="+filepath.Join(i.root, "lib"))
	return cmd
}

func TestRunBecomesTheCommand(t *testing.T) {
	for _, folder := range []string{"penstock", "a folder/with spaces"} {
		i := installationIn(t, filepath.Join(t.TempDir(), folder))
		// A real library: the loader complains about an empty file.
		source := filepath.Join(i.root, "hook.c")
		write(t, source, "int penstock_hook_is_here;\n", 0o644)
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(i.root, "lib", hookLibrary), source).CombinedOutput(); err != nil {
			t.Skipf("gcc does not work here: %s", out)
		}
		cmd := i.execRun(t, "--budget", "1GiB", "--", "sh", "-c", `echo "$$ $PENSTOCK_BUDGET"; grep -c libpenstock_hook /proc/self/maps >/dev/null && echo loaded; exit 37`)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Start()
		if err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 37 {
			t.Errorf("%s: %v, want exit status 37; %s", folder, err, errs.String())
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || lines[1] != "loaded" {
			t.Fatalf("%s: output %q, stderr %q", folder, out.String(), errs.String())
		}
		var gotPID, budget int
		if n, err := fmt.Sscan(lines[0], &gotPID, &budget); n != 2 || err != nil || gotPID != pid || budget != 1<<30 {
			t.Errorf("%s: %q, want %d %d", folder, lines[0], pid, 1<<30)
		}
	}
}

// What the loader would take for something else than a part of the path.
func TestRunRefusesAPathThatTheLoaderWouldChange(t *testing.T) {
	for _, folder := range []string{"a:b", "a;b", "$LIB"} {
		i := installationIn(t, filepath.Join(t.TempDir(), folder))
		i.libcuda = newInstallation(t).libcuda
		_, _, err := i.plan(t, []string{"sh"})
		checkOneLine(t, err, []string{"cannot be preloaded", folder, "PENSTOCK_LIB"})
	}
}

func TestRunDiesOfTheSameSignal(t *testing.T) {
	i := newInstallation(t)
	if err := os.Remove(filepath.Join(i.root, "lib", hookLibrary)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(i.root, "lib", hookLibrary), "", 0o644) // the loader says so on stderr and goes on
	err := i.execRun(t, "--", "sh", "-c", "kill -TERM $$").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 || exit.String() != "signal: terminated" {
		t.Errorf("%v, want death by SIGTERM", err)
	}
}

func TestRunUsageErrorIsOneLine(t *testing.T) {
	i := newInstallation(t)
	for _, line := range [][]string{{"--budget", "x", "sh"}, {"--no-such-flag"}, {}} {
		out, err := i.execRun(t, line...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("%q: %v, want exit status 2", line, err)
		}
		if n := strings.Count(string(out), "\n"); n != 1 {
			t.Errorf("%q: %d lines: %s", line, n, out)
		}
	}
}
