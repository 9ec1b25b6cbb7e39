package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/bpf"
	"github.com/penstock-gpu/penstock/internal/gpuinfo"
	"github.com/penstock-gpu/penstock/internal/hostmem"
)

// fakeMachine is a healthy machine with one H200 until a test changes it.
type fakeMachine struct {
	surveys    []cuda.Survey
	probeErr   error
	driver     string
	gpus       gpuinfo.Report
	nvmlErr    error
	eventErr   error
	traceErr   error
	env        faults.Environment
	isWSL      bool
	available  int64
	memoryErr  error
	exeErr     error
	libFolder  string
	libErr     map[string]error // by base name
	packageErr error
	facts      pythonFacts
	pythonErr  error
	probeCalls int
	tested     selfTestReport
	testErr    error
	needs      []bpf.Need
	hasPatch   bool
	patchErr   error
	pins       pinningFacts
	pinErr     error
}

func healthy() *fakeMachine {
	return &fakeMachine{
		surveys: []cuda.Survey{{Devices: 1,
			Info: cuda.DeviceInfo{Name: "NVIDIA H200", UUID: "GPU-1", TotalBytes: 140 << 30, ComputeMajor: 9, CUDAVersion: 13000},
			Capabilities: cuda.Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true, VirtualMemory: true, PrefetchBatch: true,
				DiscardBatch: true, StreamMemOps: true, FunctionParamInfo: true, Kernels: true}}},
		driver:    "580.159.03",
		gpus:      gpuinfo.Report{Devices: []gpuinfo.Device{{Name: "NVIDIA H200", UUID: "GPU-1", UsedBytes: 1 << 30, PCIeMaxGen: 5, PCIeMaxWidth: 16, PCIeGen: 1, PCIeWidth: 16}}},
		available: 100 << 30,
		facts:     pythonFacts{Path: "/usr/bin/python3", Version: "3.12.4", Torch: "2.11.0+cu130"},
		libErr:    map[string]error{},
		pins:      pinningFacts{AvailableBytes: 100 << 30, LimitedBy: "free memory", LockLimitBytes: math.MaxInt64, HugePages: "madvise"},
		tested:    selfTested(`{"hook":true,"routes":[{"name":"dlsym","launches":6,"seen":6},{"name":"cuGetProcAddress_v2","launches":5,"seen":5}]}`),
	}
}

func (m *fakeMachine) probe(i int) (cuda.Survey, error) {
	m.probeCalls++
	if m.probeErr != nil || i >= len(m.surveys) {
		return cuda.Survey{}, m.probeErr
	}
	return m.surveys[i], nil
}
func (m *fakeMachine) libcudaPath() string             { return "/usr/lib/libcuda.so.580.159.03" }
func (m *fakeMachine) kernelDriver() string            { return m.driver }
func (m *fakeMachine) nvml() (gpuinfo.Report, error)   { return m.gpus, m.nvmlErr }
func (m *fakeMachine) eventQueue() error               { return m.eventErr }
func (m *fakeMachine) pinning() (pinningFacts, error)  { return m.pins, m.pinErr }
func (m *fakeMachine) tracing() error                  { return m.traceErr }
func (m *fakeMachine) probeNeeds() []bpf.Need          { return m.needs }
func (m *fakeMachine) patched() (bool, error)          { return m.hasPatch, m.patchErr }
func (m *fakeMachine) environment() faults.Environment { return m.env }
func (m *fakeMachine) wsl() bool                       { return m.isWSL }
func (m *fakeMachine) kernelRelease() string           { return "6.8.0" }
func (m *fakeMachine) hostMemory() (hostmem.Memory, error) {
	return hostmem.Memory{TotalBytes: 128 << 30, AvailableBytes: m.available, LimitedBy: "free memory"}, m.memoryErr
}
func (m *fakeMachine) executable() (string, error) { return "/opt/penstock/bin/penstock", m.exeErr }
func (m *fakeMachine) libraryFolder() string       { return m.libFolder }
func (m *fakeMachine) pythonPackage(exe, libraries string) (string, error) {
	if exe != "/opt/penstock/bin/penstock" || libraries != m.libFolder {
		return "", fmt.Errorf("looked beside %q and %q", exe, libraries)
	}
	return "/opt/penstock/python", m.packageErr
}
func (m *fakeMachine) libraryError(path string) error {
	if want := cmp.Or(m.libFolder, "/opt/penstock/lib"); filepath.Dir(path) != want {
		return fmt.Errorf("%s is not where the libraries are", path)
	}
	return m.libErr[filepath.Base(path)]
}
func (m *fakeMachine) python(context.Context) (pythonFacts, error) { return m.facts, m.pythonErr }

func (m *fakeMachine) selfTest(_ context.Context, hook, engine string) (selfTestReport, error) {
	if want := cmp.Or(m.libFolder, "/opt/penstock/lib"); filepath.Dir(hook) != want || filepath.Dir(engine) != want {
		return selfTestReport{}, fmt.Errorf("tested %s and %s", hook, engine)
	}
	return m.tested, m.testErr
}

func selfTested(text string) (r selfTestReport) {
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		panic(err)
	}
	return r
}

func findCheck(t *testing.T, d diagnosis, name string) doctorCheck {
	t.Helper()
	for _, c := range d.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %q in %+v", name, d.Checks)
	return doctorCheck{}
}

func TestDiagnoseHealthy(t *testing.T) {
	d := diagnose(context.Background(), healthy())
	if !d.ManagedEngine || d.Why != "" {
		t.Errorf("the engine cannot run: %s", d.Why)
	}
	for _, c := range d.Checks {
		if c.Status != checkOK || c.Do != "" {
			t.Errorf("on a healthy machine: %+v", c)
		}
	}
	for name, want := range map[string]string{
		"libcuda":        "CUDA 13.0, /usr/lib/libcuda.so.580.159.03",
		"device 0":       "NVIDIA H200, 140 GiB (1 GiB in use), compute 9.0, PCIe 5 x16",
		"pinned memory":  "100 GiB can be had (free memory); no limit on locked memory",
		"huge pages":     "madvise (transparent)",
		"host memory":    "100 GiB available of 128 GiB (free memory)",
		"hook library":   "/opt/penstock/lib/libpenstock_hook.so",
		"launch hook":    "saw all of 11 launches, by dlsym, cuGetProcAddress_v2",
		"torch library":  "/opt/penstock/lib/libpenstock_torch.so",
		"python package": "/opt/penstock/python",
		"python":         "3.12.4, /usr/bin/python3",
		"torch":          "2.11.0+cu130",
		"environment":    "native Linux, kernel 6.8.0",
	} {
		if got := findCheck(t, d, name).Found; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestDiagnoseTroubles(t *testing.T) {
	noLibrary := &cuda.OpenError{Reason: cuda.ErrNoLibrary, What: "libcuda.so.1 not found", Do: "install the NVIDIA driver, or use `penstock simulate`"}
	tests := []struct {
		name   string
		change func(m *fakeMachine)
		check  string
		status checkStatus
		says   string // in what was found or what to do
		able   bool
	}{
		{"no driver", func(m *fakeMachine) { m.probeErr, m.driver = noLibrary, "" }, "libcuda", checkMissing, "penstock simulate", false},
		{"no kernel module", func(m *fakeMachine) { m.probeErr, m.driver = noLibrary, "" }, "kernel driver", checkMissing, "install the NVIDIA driver", false},
		{"kernel version hidden", func(m *fakeMachine) { m.driver = "" }, "kernel driver", checkWarn, "not readable", true},
		{"driver before discard", func(m *fakeMachine) { m.driver = "535.104.05" }, "kernel driver", checkWarn, "580", true},
		{"WSL", func(m *fakeMachine) { m.isWSL = true }, "environment", checkWarn, "native Linux", true},
		{"gVisor", func(m *fakeMachine) { m.env.GVisor = true }, "environment", checkWarn, "gVisor", true},
		{"container", func(m *fakeMachine) { m.env.Container = true }, "environment", checkOK, "container", true},
		{"no concurrent access", func(m *fakeMachine) { m.surveys[0].Capabilities.ConcurrentManagedAccess = false }, "managed memory", checkMissing, "concurrent managed access", false},
		{"no managed memory", func(m *fakeMachine) { m.surveys[0].Capabilities.ManagedMemory = false }, "managed memory", checkMissing, "Pascal", false},
		{"no discard", func(m *fakeMachine) { m.surveys[0].Capabilities.DiscardBatch = false }, "discard", checkWarn, "580", true},
		{"no parameter info", func(m *fakeMachine) { m.surveys[0].Capabilities.FunctionParamInfo = false }, "kernel parameters", checkWarn, "550", true},
		{"HMM", func(m *fakeMachine) { m.surveys[0].Capabilities.PageableMemoryAccess = true }, "pageable access", checkOK, "HMM or ATS: the GPU", true},
		{"narrow link", func(m *fakeMachine) { m.gpus.Devices[0].PCIeWidth = 4 }, "device 0", checkWarn, "now x4", true},
		{"no NVML", func(m *fakeMachine) {
			m.gpus, m.nvmlErr = gpuinfo.Report{}, &gpuinfo.Unavailable{Why: "libnvidia-ml.so.1 not found", WhatToDo: "install it"}
		}, "NVML", checkWarn, "install it", true},
		{"NVML fails otherwise", func(m *fakeMachine) { m.gpus, m.nvmlErr = gpuinfo.Report{}, errors.New("lost") }, "NVML", checkWarn, "lost", true},
		{"no event queue", func(m *fakeMachine) {
			m.eventErr = &faults.Unavailable{Why: "the node is missing", WhatToDo: "run nvidia-modprobe"}
		}, "fault events", checkWarn, "run nvidia-modprobe", true},
		{"little host memory", func(m *fakeMachine) { m.available = 1 << 30 }, "host memory", checkWarn, "--host-budget", true},
		{"host memory unknown", func(m *fakeMachine) { m.memoryErr = errors.New("no /proc") }, "host memory", checkWarn, "no /proc", true},
		{"no hook", func(m *fakeMachine) { m.libErr["libpenstock_hook.so"] = errors.New("it does not exist") }, "hook library", checkMissing, "make build", false},
		{"no engine library", func(m *fakeMachine) { m.libErr["libpenstock.so"] = errors.New("it does not exist") }, "engine library", checkMissing, "make build", false},
		{"no torch library", func(m *fakeMachine) { m.libErr["libpenstock_torch.so"] = errors.New("it does not exist") }, "torch library", checkMissing, "make build", false},
		{"a route missed", func(m *fakeMachine) {
			m.tested = selfTested(`{"hook":true,"routes":[{"name":"dlsym","launches":6,"seen":6},{"name":"linked symbol","launches":6,"seen":5,"missed":["cuLaunchKernel"]}]}`)
		}, "launch hook", checkWarn, "LD_PRELOAD", true},
		{"hook not loaded", func(m *fakeMachine) { m.tested = selfTestReport{} }, "launch hook", checkWarn, "another python3", true},
		{"no self-test", func(m *fakeMachine) { m.testErr = errors.New("exit status 1") }, "launch hook", checkWarn, "LD_PRELOAD", true},
		{"another folder", func(m *fakeMachine) { m.libFolder = "/srv/lib" }, "hook library", checkOK, "/srv/lib/libpenstock_hook.so", true},
		{"a wrong folder", func(m *fakeMachine) {
			m.libFolder, m.libErr["libpenstock_hook.so"] = "/srv/lib", errors.New("it does not exist")
		}, "hook library", checkMissing, "PENSTOCK_LIB", false},
		{"no python package", func(m *fakeMachine) { m.packageErr = errors.New("it was not found") }, "python package", checkMissing, "not found", false},
		{"no place", func(m *fakeMachine) { m.exeErr = errors.New("no /proc") }, "libraries", checkMissing, "full path", false},
		{"no python", func(m *fakeMachine) { m.pythonErr = errors.New("no python3 on PATH") }, "python", checkWarn, "on PATH", true},
		{"no torch", func(m *fakeMachine) { m.facts.Torch = "" }, "torch", checkWarn, "pip install", true},
		{"old torch", func(m *fakeMachine) { m.facts.Torch = "1.13.1" }, "torch", checkWarn, "2.0", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := healthy()
			tt.change(m)
			d := diagnose(context.Background(), m)
			c := findCheck(t, d, tt.check)
			if c.Status != tt.status || !strings.Contains(c.Found+"\n"+c.Do, tt.says) {
				t.Errorf("%+v, want %s with %q", c, tt.status, tt.says)
			}
			if d.ManagedEngine != tt.able || d.ManagedEngine != (d.Why == "") {
				t.Errorf("managed engine %v (%q), want %v", d.ManagedEngine, d.Why, tt.able)
			}
			for _, c := range d.Checks {
				if c.Found == "" || strings.Contains(c.Found+c.Do, "\n") {
					t.Errorf("%q is not one line", c.Name)
				}
			}
		})
	}
}

func TestDiagnoseSeveralDevices(t *testing.T) {
	m := healthy()
	second := m.surveys[0]
	m.surveys[0].Devices = 2
	second.Info.Ordinal, second.Info.UUID = 1, "GPU-2"
	second.Capabilities.ConcurrentManagedAccess = false
	m.surveys = append(m.surveys, second)
	d := diagnose(context.Background(), m)
	if c := findCheck(t, d, "managed memory (1)"); c.Status != checkMissing || c.Required {
		t.Errorf("second device: %+v", c)
	}
	if !d.ManagedEngine {
		t.Error("a device that is not used keeps the engine from running")
	}
	// Not in NVML: what the CUDA driver says must do.
	if c := findCheck(t, d, "device 1"); c.Found != "NVIDIA H200, 140 GiB, compute 9.0" {
		t.Errorf("second device: %+v", c)
	}
	if m.probeCalls != 2 {
		t.Errorf("%d probes of 2 devices", m.probeCalls)
	}
}

func TestWriteDiagnosis(t *testing.T) {
	m := healthy()
	m.libErr["libpenstock_hook.so"] = errors.New("/opt/penstock/lib/libpenstock_hook.so does not exist")
	d := diagnose(context.Background(), m)
	var text, data bytes.Buffer
	if err := writeDiagnosis(&text, d, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nmissing  hook library       /opt/penstock/lib/libpenstock_hook.so does not exist\n",
		"-> run `make build`",
		"\nThe managed engine cannot run here: hook library: /opt/penstock/lib/libpenstock_hook.so does not exist.\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	if err := writeDiagnosis(&data, d, true); err != nil {
		t.Fatal(err)
	}
	var back diagnosis
	if err := json.Unmarshal(data.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.ManagedEngine || len(back.Checks) != len(d.Checks) || back.Checks[0] != d.Checks[0] {
		t.Errorf("JSON does not come back: %+v", back)
	}
}

// The real machine, whatever it is: one answer, no crash, and the status says the same as the report.
func TestDoctorHere(t *testing.T) {
	status := 0
	exitDoctor = func(code int) { status = code }
	defer func() { exitDoctor = os.Exit }()
	cmd := newDoctorCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var d diagnosis
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if want := map[bool]int{true: 0, false: 1}[d.ManagedEngine]; status != want {
		t.Errorf("exit status %d with managed engine %v", status, d.ManagedEngine)
	}
	for _, name := range []string{"environment", "libcuda", "kernel driver", "NVML", "host memory", "fault events", "hook library", "python"} {
		if c := findCheck(t, d, name); c.Status != checkOK && c.Do == "" && name != "kernel driver" {
			t.Errorf("%+v does not say what to do", c)
		}
	}
	if err := func() error {
		c := newDoctorCommand()
		c.SetArgs([]string{"x"})
		c.SilenceErrors = true
		return c.Execute()
	}(); err == nil {
		t.Error("an argument was taken")
	}
}

func TestAskPython(t *testing.T) {
	script := func(body string) string {
		path := filepath.Join(t.TempDir(), "python3")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := []struct {
		name string
		body string
		want pythonFacts
		err  string
	}{
		{"torch", `echo '{"path":"/x","version":"3.12.4","torch":"2.4.0"}'`, pythonFacts{"/x", "3.12.4", "2.4.0"}, ""},
		{"chatter before", `echo hello; echo '{"path":"/x","version":"3.12.4","torch":""}'`, pythonFacts{"/x", "3.12.4", ""}, ""},
		{"fails", `echo "no encodings" >&2; echo more >&2; exit 1`, pythonFacts{}, "exit status 1: no encodings)"},
		{"not JSON", `echo hello`, pythonFacts{}, "answers oddly"},
		{"silent", `exit 0`, pythonFacts{}, "answers oddly"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := askPython(context.Background(), script(tt.body), time.Minute)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	if _, err := askPython(context.Background(), script("exec sleep 60"), 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "within 50ms") {
		t.Errorf("a python that hangs: %v", err)
	}
}

func TestMappedLibrary(t *testing.T) {
	maps := "55d0-55d1 r--p 00000000 08:01 12 /usr/bin/penstock\n" +
		"7f00-7f01 r-xp 00000000 08:01 34                 /usr/lib/x86_64-linux-gnu/libcuda.so.580.1\n" +
		"7fff-8000 rw-p 00000000 00:00 0                          [stack]\n"
	if got := mappedLibrary(maps, "libcuda.so"); got != "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1" {
		t.Errorf("got %q", got)
	}
	if got := mappedLibrary(maps, "libcudart.so"); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestLibraryError(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "lib.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (realMachine{}).libraryError(text); err == nil || !strings.Contains(err.Error(), "not a library") {
		t.Errorf("text: %v", err)
	}
	if err := (realMachine{}).libraryError(filepath.Join(dir, "gone.so")); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("gone: %v", err)
	}
}

// TestDoctorKernel: what eBPF lacks is named, and the managed engine does not depend on it.
func TestDoctorKernel(t *testing.T) {
	m := healthy()
	if c := findCheck(t, diagnose(context.Background(), m), "eBPF probes"); c.Status != checkOK || !strings.Contains(c.Found, "can be watched") {
		t.Errorf("%+v", c)
	}
	m.needs = []bpf.Need{{What: "rights", WhatToDo: "be root"}, {What: "BTF", Problem: "there is none", Optional: true}}
	if c := findCheck(t, diagnose(context.Background(), m), "eBPF probes"); c.Status != checkOK || !strings.HasSuffix(c.Found, "there is none") {
		t.Errorf("%+v", c)
	}
	m.needs[0].Problem = "this process lacks CAP_BPF"
	d := diagnose(context.Background(), m)
	if c := findCheck(t, d, "eBPF probes"); c.Status != checkWarn || c.Found != "rights: this process lacks CAP_BPF" || !strings.HasPrefix(c.Do, "be root") || !d.ManagedEngine {
		t.Errorf("%+v, %t", c, d.ManagedEngine)
	}
	if c := findCheck(t, d, "driver patch"); c.Status != checkOK || !strings.HasPrefix(c.Found, "not in this driver") {
		t.Errorf("%+v", c)
	}
	m.hasPatch = true
	if c := findCheck(t, diagnose(context.Background(), m), "driver patch"); !strings.HasPrefix(c.Found, "in this driver") {
		t.Errorf("%+v", c)
	}
	m.patchErr = errors.New("no driver")
	for _, c := range diagnose(context.Background(), m).Checks {
		if c.Name == "driver patch" {
			t.Errorf("%+v", c)
		}
	}
}
