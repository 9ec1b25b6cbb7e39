package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJupyter(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("JUPYTER_DATA_DIR", filepath.Join(dir, "data"))
	python, bare := filepath.Join(dir, "python"), filepath.Join(dir, "bare")
	write(t, python, "#!/bin/sh\nexit 0\n", 0o755)
	write(t, bare, "#!/bin/sh\necho 'ModuleNotFoundError: No module named x' >&2; exit 1\n", 0o755)
	install := func(args ...string) []string {
		return append([]string{"jupyter", "install", "--python", python}, args...)
	}

	refused(t, []string{"has no ipykernel", "No module named x", "-m pip install ipykernel"}, "jupyter", "install", "--python", bare)
	refused(t, []string{"--python", "nowhere"}, "jupyter", "install", "--python", "/nowhere")
	refused(t, []string{"--budget", `"much" is not a size`}, install("--budget", "much")...)
	refused(t, []string{"--engine", "steam"}, install("--engine", "steam")...)
	refused(t, []string{"--budget is empty"}, install("--budget", "")...)
	refused(t, []string{"--name", "letters, digits"}, install("--name", "../x")...)
	refused(t, []string{"--prefix", "is not a folder"}, install("--prefix", filepath.Join(dir, "none"))...)
	refused(t, []string{"give one of them"}, install("--prefix", dir, "--user")...)
	refused(t, []string{"name one kernel"}, "jupyter", "remove")
	refused(t, []string{"unknown command", "penstock jupyter --help"}, "jupyter", "instal")

	if status, _, stderr := command(t, install("--budget", "24GiB", "--replay", "insured")...); status != 0 {
		t.Fatal(stderr)
	}
	spec, err := readKernel(filepath.Join(dir, "data", "kernels", "penstock"))
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{exe, "run", "--budget", "24GiB", "--replay", "insured", "--", python, "-m", "ipykernel_launcher", "-f", "{connection_file}"}
	got, _ := json.Marshal(spec.Argv)
	if wanted, _ := json.Marshal(want); string(got) != string(wanted) || spec.Language != "python" || spec.DisplayName != "Python with Penstock (24GiB)" {
		t.Errorf("%s, %+v", got, spec)
	}
	// Of others' kernels none is touched.
	other := filepath.Join(dir, "data", "kernels", "python3")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(other, "kernel.json"), `{"argv":["python3"]}`, 0o644)
	refused(t, []string{"Penstock has not installed", "another --name"}, install("--name", "python3")...)
	refused(t, []string{"penstock jupyter list"}, "jupyter", "remove", "python3")
	if status, stdout, _ := command(t, "jupyter", "list"); status != 0 || !strings.Contains(stdout, "penstock  ") || !strings.Contains(stdout, "--budget 24GiB") {
		t.Errorf("%d %s", status, stdout)
	}
	for _, want := range []int{0, statusUsage} {
		if status, _, stderr := command(t, "jupyter", "remove", "penstock"); status != want {
			t.Errorf("%d %s", status, stderr)
		}
	}
}
