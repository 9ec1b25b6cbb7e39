package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/bpf"
	"github.com/penstock-gpu/penstock/internal/gpuinfo"
	"github.com/penstock-gpu/penstock/internal/hostmem"
	"github.com/penstock-gpu/penstock/internal/size"
)

// doctorMachine is what the doctor asks; a seam for tests.
type doctorMachine interface {
	probe(ordinal int) (cuda.Survey, error)
	libcudaPath() string // of the library loaded in this process; "" when unknown
	kernelDriver() string
	nvml() (gpuinfo.Report, error)
	eventQueue() error // nil when it can be opened
	tracing() error    // nil when other processes of this user can be listened to
	probeNeeds() []bpf.Need
	patched() (bool, error)
	environment() faults.Environment
	wsl() bool
	kernelRelease() string
	hostMemory() (hostmem.Memory, error)
	executable() (string, error)
	libraryFolder() string          // PENSTOCK_LIB
	libraryError(path string) error // nil when it is there and a shared library
	pythonPackage(exe, libraries string) (dir string, err error)
	python(ctx context.Context) (pythonFacts, error)
	selfTest(ctx context.Context, hook, engine string) (selfTestReport, error)
	pinning() (pinningFacts, error)
}

// Names of checks that answers are made of.
const (
	managedMemory = "managed memory"
	launchHook    = "launch hook"
)

// pythonFacts is what the python3 on PATH says about itself.
type pythonFacts struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Torch   string `json:"torch"` // "" when it is not installed
}

// diagnose looks at everything. It does not fail: what cannot be found out is a check too.
func diagnose(ctx context.Context, m doctorMachine) diagnosis {
	if ctx == nil {
		ctx = context.Background()
	}
	d := diagnosis{Version: version}
	add := func(c ...doctorCheck) { d.Checks = append(d.Checks, c...) }
	add(checkEnvironment(m))
	surveys, checks := checkDriver(m)
	add(checks...)
	add(checkDevices(m, surveys)...)
	add(checkHostMemory(m))
	pinned, pinning := checkPinning(m)
	add(pinned...)
	add(checkEvents(m), checkLayout(m), checkTracing(m), checkProbes(m))
	add(checkPatch(m)...)
	add(checkLibraries(ctx, m, surveys)...)
	add(checkPython(ctx, m)...)

	d.Faults = faultAnswers(m, d.Checks)
	d.WhyNotExplicit = explicitAnswer(surveys, pinning, d.Checks)
	d.ExplicitEngine = d.WhyNotExplicit == ""
	d.ManagedEngine = true
	for _, c := range d.Checks {
		if c.Required && c.Status == checkMissing {
			d.ManagedEngine = false
			if d.Why == "" {
				d.Why = c.Name + ": " + c.Found
			}
		}
	}
	return d
}

func checkEnvironment(m doctorMachine) doctorCheck {
	c := doctorCheck{Name: "environment", Status: checkOK}
	env := m.environment()
	what := "native Linux"
	switch {
	case env.GVisor:
		what, c.Status = "gVisor sandbox", checkWarn
		c.Do = "fault counts are not available under gVisor; everything else is probed below"
	case m.wsl():
		what, c.Status = "WSL", checkWarn
		c.Do = "use native Linux: WSL cannot hold more managed memory than the GPU"
	case env.Container:
		what = "container"
	}
	c.Found = strings.TrimSpace(what + ", kernel " + m.kernelRelease())
	return c
}

// checkDriver probes libcuda and every device it offers.
func checkDriver(m doctorMachine) ([]cuda.Survey, []doctorCheck) {
	lib := doctorCheck{Name: "libcuda", Required: true}
	first, err := m.probe(0)
	kernel := doctorCheck{Name: "kernel driver", Status: checkOK, Found: m.kernelDriver()}
	switch {
	case kernel.Found == "":
		kernel.Status, kernel.Found = checkMissing, "no NVIDIA kernel module loaded"
		kernel.Do = "install the NVIDIA driver (580 is best)"
		if err == nil { // WSL has none of its own
			kernel.Status, kernel.Found, kernel.Do = checkWarn, "version not readable", ""
		}
	case versionMajor(kernel.Found) < 580:
		kernel.Status = checkWarn
		kernel.Do = "580 or newer lets Penstock drop dead memory without moving it"
	}
	if err != nil {
		lib.Status, lib.Found = checkMissing, err.Error()
		var o *cuda.OpenError
		if errors.As(err, &o) {
			lib.Found, lib.Do = o.What, o.Do
		}
		return nil, []doctorCheck{lib, kernel}
	}
	lib.Status = checkOK
	lib.Found = "CUDA " + cuda.FormatCUDAVersion(first.Info.CUDAVersion)
	if p := m.libcudaPath(); p != "" {
		lib.Found += ", " + p
	}
	surveys := []cuda.Survey{first}
	checks := []doctorCheck{lib, kernel}
	for i := 1; i < first.Devices; i++ {
		s, err := m.probe(i)
		if err != nil {
			checks = append(checks, doctorCheck{Name: deviceName(i), Status: checkWarn, Found: err.Error()})
			continue
		}
		surveys = append(surveys, s)
	}
	return surveys, checks
}

func deviceName(i int) string { return "device " + strconv.Itoa(i) }

// checkDevices describes the devices and what their unified memory can do.
// Penstock's default is device 0: only its checks are required.
func checkDevices(m doctorMachine, surveys []cuda.Survey) []doctorCheck {
	facts, nvmlErr := m.nvml()
	var checks []doctorCheck
	for _, s := range surveys {
		checks = append(checks, checkDevice(s, facts))
		checks = append(checks, checkCapabilities(s)...)
	}
	n := doctorCheck{Name: "NVML", Status: checkOK, Found: fmt.Sprintf("%d devices on this machine", len(facts.Devices))}
	if len(facts.Devices) == 1 {
		n.Found = "1 device on this machine"
	}
	if nvmlErr != nil {
		n.Status, n.Found = checkWarn, nvmlErr.Error()
		var u *gpuinfo.Unavailable
		if errors.As(nvmlErr, &u) {
			n.Found, n.Do = u.Why, u.WhatToDo
		}
	}
	return append(checks, n)
}

func checkDevice(s cuda.Survey, facts gpuinfo.Report) doctorCheck {
	i := s.Info
	parts := []string{i.Name, size.Text(i.TotalBytes), fmt.Sprintf("compute %d.%d", i.ComputeMajor, i.ComputeMinor)}
	c := doctorCheck{Name: deviceName(i.Ordinal), Status: checkOK}
	if d, ok := facts.ByUUID(i.UUID); ok {
		if d.UsedBytes > 0 {
			parts[1] += " (" + size.Text(d.UsedBytes) + " in use)"
		}
		if d.PCIeMaxGen > 0 && d.PCIeMaxWidth > 0 {
			parts = append(parts, fmt.Sprintf("PCIe %d x%d", d.PCIeMaxGen, d.PCIeMaxWidth))
		}
		if d.PCIeWidth > 0 && d.PCIeWidth < d.PCIeMaxWidth {
			c.Status = checkWarn
			parts = append(parts, fmt.Sprintf("now x%d", d.PCIeWidth))
			c.Do = "the link runs narrower than it can: reseat the card or use another slot"
		}
	}
	c.Found = strings.Join(parts, ", ")
	return c
}

func checkCapabilities(s cuda.Survey) []doctorCheck {
	on := func(name string) string {
		if s.Info.Ordinal == 0 {
			return name
		}
		return fmt.Sprintf("%s (%d)", name, s.Info.Ordinal)
	}
	managed := doctorCheck{Name: on(managedMemory), Status: checkOK, Found: "may exceed the GPU (concurrent managed access)", Required: s.Info.Ordinal == 0}
	if err := cuda.ManagedEngineError(s.Capabilities); err != nil {
		managed.Status, managed.Found = checkMissing, err.Error()
		var o *cuda.OpenError
		if errors.As(err, &o) {
			managed.Found, managed.Do = o.What, o.Do
		}
	}
	checks := []doctorCheck{managed}
	optional := func(able bool, name, found, not, do string) {
		c := doctorCheck{Name: on(name), Status: checkOK, Found: found}
		if !able {
			c.Status, c.Found, c.Do = checkWarn, not, do
		}
		checks = append(checks, c)
	}
	c := s.Capabilities
	optional(c.PrefetchBatch, "batched prefetch", "yes", "no: one call per range", "install driver 580 or newer")
	optional(c.DiscardBatch, "discard", "yes", "no: dead memory must be moved or waited out", "install driver 580 or newer")
	optional(c.StreamMemOps, "stream gates", "yes (stream memory operations)", "no stream memory operations", "install a newer driver")
	optional(c.FunctionParamInfo, "kernel parameters", "yes (cuFuncGetParamInfo)", "no cuFuncGetParamInfo: access sets come from faults alone", "install driver 550 or newer")
	optional(c.VirtualMemory, "virtual memory", "yes", "no virtual memory management", "the explicit engine needs it, the managed one does not")
	optional(c.Kernels, "device code", "yes", "no cuLaunchKernel for Penstock's own kernels", "the explicit engine needs it, the managed one does not")
	// Only a fact: Penstock gains nothing from it, and loses nothing without it.
	hmm := "no HMM or ATS: ordinary host memory is not visible to the GPU (not needed)"
	if c.PageableMemoryAccess {
		hmm = "HMM or ATS: the GPU can read ordinary host memory"
	}
	return append(checks, doctorCheck{Name: on("pageable access"), Status: checkOK, Found: hmm})
}

// lowHostBytes is the least that makes sending memory to the host worth a try.
const lowHostBytes = 4 << 30

func checkHostMemory(m doctorMachine) doctorCheck {
	c := doctorCheck{Name: "host memory", Status: checkOK}
	memory, err := m.hostMemory()
	if err != nil {
		c.Status, c.Found = checkWarn, "not known ("+err.Error()+")"
		return c
	}
	c.Found = fmt.Sprintf("%s available of %s (%s)", size.Text(memory.AvailableBytes), size.Text(memory.TotalBytes), memory.LimitedBy)
	if memory.AvailableBytes < lowHostBytes {
		c.Status, c.Do = checkWarn, "what does not fit on the GPU goes here: free some, or set --host-budget"
	}
	return c
}

func checkEvents(m doctorMachine) doctorCheck {
	c := doctorCheck{Name: "fault events", Status: checkOK, Found: "the driver's event queue can be opened"}
	if err := m.eventQueue(); err != nil {
		c.Status, c.Found = checkWarn, err.Error()
		var u *faults.Unavailable
		if errors.As(err, &u) {
			c.Found, c.Do = u.Why, u.WhatToDo+" (Penstock works without, but cannot count faults)"
		}
	}
	return c
}

// checkLibraries looks for the parts of this installation, where `penstock run` does.
func checkLibraries(ctx context.Context, m doctorMachine, surveys []cuda.Survey) []doctorCheck {
	exe, err := m.executable()
	if err != nil {
		return []doctorCheck{{Name: "libraries", Status: checkMissing, Required: true, Found: "cannot tell where penstock itself is (" + err.Error() + ")", Do: "run it by its full path"}}
	}
	named, do := m.libraryFolder(), "run `make build`, or keep bin/ and lib/ together"
	if named != "" {
		do = "correct or unset PENSTOCK_LIB, which names this folder"
	}
	dir, err := findLibraries(exe, named)
	if err != nil {
		return []doctorCheck{{Name: "libraries", Status: checkMissing, Required: true, Found: err.Error(), Do: do}}
	}
	var checks []doctorCheck
	whole := true
	for _, l := range []struct{ name, file string }{{"hook library", hookLibrary}, {"engine library", engineLibrary}, {"torch library", torchLibrary}} {
		path := filepath.Join(dir, l.file)
		c := doctorCheck{Name: l.name, Status: checkOK, Found: path, Required: true}
		if err := m.libraryError(path); err != nil {
			c.Status, c.Found, c.Do = checkMissing, err.Error(), do
			whole = false
		}
		checks = append(checks, c)
	}
	if !whole {
		return checks // the Python package is looked for beside them
	}
	c := doctorCheck{Name: "python package", Status: checkOK, Required: true}
	if c.Found, err = m.pythonPackage(exe, named); err != nil {
		c.Status, c.Found, c.Do = checkMissing, err.Error(), "`make build` in a checkout puts everything in place"
	}
	return append(checks, c, checkHook(ctx, m, dir, surveys))
}

func checkPython(ctx context.Context, m doctorMachine) []doctorCheck {
	py := doctorCheck{Name: "python", Status: checkOK}
	f, err := m.python(ctx)
	if err != nil {
		py.Status, py.Found, py.Do = checkWarn, err.Error(), "put the python3 of your training environment first on PATH"
		return []doctorCheck{py}
	}
	py.Found = strings.TrimSpace(f.Version + ", " + f.Path)
	torch := doctorCheck{Name: "torch", Status: checkOK, Found: f.Torch}
	if f.Torch == "" {
		torch.Status, torch.Found, torch.Do = checkWarn, "not installed for this python", "pip install torch, or put the right python3 first on PATH"
	} else if major := versionMajor(f.Torch); major < 2 {
		torch.Status, torch.Do = checkWarn, "use torch 2.0 or newer: older ones have no pluggable allocator"
	}
	return []doctorCheck{py, torch}
}

// versionMajor is the first number of a dotted version, 0 when there is none.
func versionMajor(version string) int {
	head, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(head)
	if err != nil {
		return 0
	}
	return n
}
