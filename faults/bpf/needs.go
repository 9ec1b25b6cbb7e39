//go:build linux

package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/faults"
)

// Need is one thing that Open depends on, and whether it is there.
type Need struct {
	What     string
	Problem  string // "" when it is there
	WhatToDo string
	Optional bool // Open works without it, and Coverage says what is lost
}

// Needs looks at everything that Open depends on, in the order in which a person would put it right.
func Needs(o Options) []Need {
	module := "nvidia_uvm"
	_, hasBTF := os.Stat("/sys/kernel/btf/" + module)
	_, hasKernelBTF := os.Stat("/sys/kernel/btf/vmlinux")
	_, kprobes := os.Stat("/sys/bus/event_source/devices/kprobe")
	kernel := kernelVersion()
	return []Need{
		need("a kernel that is not gVisor", faults.LookAround().GVisor, "gVisor runs no BPF programs", "run outside gVisor"),
		need("Linux 5.8 or newer", kernel < kernelNumber(5, 8), fmt.Sprintf("this is Linux %d.%d", kernel>>16, kernel&0xffff), "use a newer kernel, or the driver's event queue (uvm-tools)"),
		{What: "the rights to trace", Problem: rightsProblem("/proc/self/status"), WhatToDo: "run as root, or with CAP_BPF and CAP_PERFMON (in a container: --cap-add BPF --cap-add PERFMON, or --privileged)"},
		{What: "a kernel that is not locked down", Problem: lockdownProblem("/sys/kernel/security/lockdown"), WhatToDo: "boot without lockdown=confidentiality"},
		bpfNeed(),
		need("the nvidia-uvm module", absent("/sys/module/"+module), "it is not loaded", "run `nvidia-modprobe -u -c 0` as root"),
		{What: "the function " + points[0].symbols[0], Problem: symbolProblem("/proc/kallsyms", points[0].symbols[0]), WhatToDo: "use the driver's event queue (uvm-tools): this kernel hides its symbols, or the driver has another structure"},
		need("a way into the function", wayInMissing(o.Attach, kprobes == nil, hasBTF == nil), wayInProblem(o.Attach), "use a kernel with CONFIG_KPROBE_EVENTS, or build the driver's module with type information (BTF)"),
		optional(need("type information of the module", hasBTF != nil, "the kernel has none for nvidia_uvm: offsets come from the table of driver versions", "install the kernel's vmlinux before the driver's module is built")),
		optional(need("type information of the kernel", hasKernelBTF != nil, "/sys/kernel/btf/vmlinux is missing: processes that use CUDA already are not told apart", "use a kernel with CONFIG_DEBUG_INFO_BTF")),
		optional(need("the initial PID namespace", !initialPIDs(), "process ids are those of the host, not of this container", "run with --pid=host")),
	}
}

func need(what string, missing bool, problem, whatToDo string) Need {
	n := Need{What: what, WhatToDo: whatToDo}
	if missing {
		n.Problem = problem
	}
	return n
}

func optional(n Need) Need {
	n.Optional = true
	return n
}

// firstMissing is the first need that nothing works without.
func firstMissing(needs []Need) error {
	for _, n := range needs {
		if n.Problem != "" && !n.Optional {
			return &faults.Unavailable{Why: n.What + ": " + n.Problem, WhatToDo: n.WhatToDo}
		}
	}
	return nil
}

// refused explains what the kernel turned down although nothing was seen to be missing.
func refused(err error) *faults.Unavailable {
	u := &faults.Unavailable{Why: "the kernel refused the programs (" + err.Error() + ")", Cause: err, WhatToDo: "report this with the versions of the kernel and the driver"}
	var verifier *ebpf.VerifierError
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES) && !errors.As(err, &verifier):
		u.WhatToDo = "run as root on the host: a security module, a seccomp filter or kernel.perf_event_paranoid forbids it here"
	case errors.Is(err, unix.ENOMEM):
		u.WhatToDo = "use a smaller ring or raise the limit on locked memory (ulimit -l)"
	case errors.Is(err, os.ErrNotExist):
		u.WhatToDo = "use the driver's event queue (uvm-tools): this driver or kernel lacks the function"
	}
	return u
}

func bpfNeed() Need {
	n := Need{What: "the bpf system call with ring buffers", WhatToDo: "run on the host, or allow bpf in the container's seccomp profile; the kernel needs CONFIG_BPF_SYSCALL"}
	if err := features.HaveMapType(ebpf.RingBuf); err != nil {
		n.Problem = err.Error()
	}
	return n
}

// Capabilities by their numbers in linux/capability.h.
const (
	capSysAdmin = 21
	capPerfmon  = 38
	capBPF      = 39
)

func rightsProblem(status string) string {
	b, err := os.ReadFile(status)
	if err != nil {
		return "they cannot be told: " + err.Error()
	}
	for line := range strings.Lines(string(b)) {
		text, found := strings.CutPrefix(line, "CapEff:")
		if !found {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil {
			break
		}
		has := func(c int) bool { return set>>c&1 == 1 }
		if has(capSysAdmin) {
			return ""
		}
		var lacking []string
		if !has(capBPF) {
			lacking = append(lacking, "CAP_BPF")
		}
		if !has(capPerfmon) {
			lacking = append(lacking, "CAP_PERFMON")
		}
		if len(lacking) > 0 {
			return "this process lacks " + strings.Join(lacking, " and ")
		}
		return ""
	}
	return "they cannot be told from " + status
}

func lockdownProblem(file string) string {
	if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), "[confidentiality]") {
		return "its confidentiality mode forbids reading kernel memory"
	}
	return ""
}

func symbolProblem(kallsyms, symbol string) string {
	f, err := os.Open(kallsyms)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		// address, type, name, [module]
		if fields := strings.Fields(in.Text()); len(fields) >= 3 && fields[2] == symbol {
			return ""
		}
	}
	return "the kernel does not list it"
}

func wayInMissing(how Attach, kprobes, moduleBTF bool) bool {
	switch how {
	case AttachKprobe:
		return !kprobes
	case AttachFentry:
		return !moduleBTF
	}
	return !kprobes && !moduleBTF
}

func wayInProblem(how Attach) string {
	switch how {
	case AttachKprobe:
		return "this kernel has no kprobes"
	case AttachFentry:
		return "fentry takes type information of the module, and there is none"
	}
	return "this kernel has no kprobes, and without type information of the module there is no fentry"
}

func absent(path string) bool {
	_, err := os.Stat(path)
	return err != nil
}

func kernelNumber(major, minor int) int { return major<<16 | minor }

func kernelVersion() int {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return 0
	}
	return kernelNumber(major, minor)
}

// initialPIDs: the first PID namespace always has this inode (PROC_PID_INIT_INO).
func initialPIDs() bool {
	link, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && link == "pid:[4026531836]"
}

// majorIn finds a driver's number in /proc/devices.
func majorIn(devices, name string) uint32 {
	for line := range strings.Lines(devices) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name {
			n, _ := strconv.ParseUint(f[0], 10, 12)
			return uint32(n)
		}
	}
	return 0
}
