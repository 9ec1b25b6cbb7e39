package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/uvm"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/gpuinfo"
	"github.com/penstock-gpu/penstock/internal/hostmem"
)

// realMachine is the machine this process runs on.
type realMachine struct{}

func (realMachine) probe(ordinal int) (cuda.Survey, error) {
	return cuda.Probe(cuda.Options{Ordinal: ordinal})
}

func (realMachine) libcudaPath() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	return mappedLibrary(string(maps), "libcuda.so")
}

// mappedLibrary finds the file of a loaded library in /proc/self/maps.
func mappedLibrary(maps, prefix string) string {
	for line := range strings.Lines(maps) {
		if at := strings.IndexByte(line, '/'); at >= 0 {
			path := strings.TrimSpace(line[at:])
			if strings.HasPrefix(filepath.Base(path), prefix) {
				return path
			}
		}
	}
	return ""
}

func (realMachine) kernelDriver() string { return cuda.KernelDriverVersion() }

func (realMachine) nvml() (gpuinfo.Report, error) {
	s, err := gpuinfo.Open()
	if err != nil {
		return gpuinfo.Report{}, err
	}
	defer s.Close()
	return s.Report()
}

func (realMachine) eventQueue() error { return faults.CheckNode() }

func (realMachine) tracing() error { return faults.CheckAttach() }

func (realMachine) patched() (bool, error) { return uvm.ProbePatch() }

func (realMachine) environment() faults.Environment { return faults.LookAround() }

func (realMachine) wsl() bool { return cuda.RunningUnderWSL() }

func (realMachine) kernelRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func (realMachine) hostMemory() (hostmem.Memory, error) { return hostmem.Available() }

func (realMachine) executable() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real // a link in /usr/local/bin: the libraries are beside the file
	}
	return exe, nil
}

func (realMachine) libraryFolder() string { return os.Getenv("PENSTOCK_LIB") }

func (realMachine) pythonPackage(exe, libraries string) (string, error) {
	l, err := findRunLayout(exe, libraries)
	return l.python, err
}

func (realMachine) libraryError(path string) error {
	f, err := elf.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist", path)
	}
	if err != nil {
		return fmt.Errorf("%s is not a library (%v)", path, err)
	}
	defer f.Close()
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("%s is not a shared library", path)
	}
	return nil
}

// pythonTimeout is generous: an interpreter on a cold network file system takes seconds to start.
const pythonTimeout = 10 * time.Second

// pythonProgram reads the version of torch without importing it, which would
// take seconds and might start CUDA.
const pythonProgram = `import sys, json
try:
    from importlib import metadata
    torch = metadata.version("torch")
except Exception:
    torch = ""
print(json.dumps({"path": sys.executable, "version": sys.version.split()[0], "torch": torch or ""}))`

func (realMachine) python(ctx context.Context) (pythonFacts, error) {
	path, err := exec.LookPath("python3")
	if err != nil {
		return pythonFacts{}, errors.New("no python3 on PATH")
	}
	return askPython(ctx, path, pythonTimeout)
}

func askPython(ctx context.Context, path string, timeout time.Duration) (pythonFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-c", pythonProgram)
	// A wrapper script may leave a child holding the pipe: do not wait for it.
	cmd.WaitDelay = time.Second
	var errText bytes.Buffer
	cmd.Stderr = &errText
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return pythonFacts{}, fmt.Errorf("%s did not answer within %v", path, timeout)
	}
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(errText.String()), "\n")
		if line != "" {
			line = ": " + line
		}
		return pythonFacts{}, fmt.Errorf("%s does not run (%v%s)", path, err, line)
	}
	// The last line: a site module may print something of its own first.
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var f pythonFacts
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &f); err != nil || f.Version == "" {
		return pythonFacts{}, fmt.Errorf("%s answers oddly", path)
	}
	return f, nil
}
