package cuda

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

// MinimumCUDAVersion is the oldest driver interface that Open accepts: 12.0,
// which came with driver 525.
const MinimumCUDAVersion = 12000

// Options of Open. The zero value is the first device with no limit.
type Options struct {
	// Ordinal is the device, as CUDA counts within this process.
	Ordinal int
	// ManagedLimitBytes caps the sum of live managed memory; 0 is no cap.
	ManagedLimitBytes int64
	// Exportable makes physical memory of which other processes can be given handles.
	Exportable bool
	// Library replaces "libcuda.so.1".
	Library string
	// Resolve replaces dlsym: it returns the function of that name or nil.
	// Needed where dlsym is wrapped (see the package comment).
	Resolve func(name string) unsafe.Pointer
}

// Survey is what Probe finds.
type Survey struct {
	Devices      int // that this process sees
	Info         DeviceInfo
	Capabilities Capabilities
}

// ManagedEngineError says why memory beyond the device cannot be had through
// unified memory on a device with these capabilities; nil when it can.
func ManagedEngineError(c Capabilities) error {
	switch {
	case !c.ManagedMemory:
		return &OpenError{Reason: ErrUnavailable, What: "this device or driver has no managed memory",
			Do: "use a Pascal or newer GPU with driver 525 or newer"}
	case !c.ConcurrentManagedAccess && runningUnderWSL(procVersion()):
		return &OpenError{Reason: ErrUnavailable, What: "WSL has no concurrent managed access, so managed memory cannot exceed the GPU",
			Do: "run on native Linux, or use `penstock simulate`"}
	case !c.ConcurrentManagedAccess:
		return &OpenError{Reason: ErrUnavailable, What: "this device has no concurrent managed access, so managed memory cannot exceed the GPU",
			Do: "use a Pascal or newer GPU on native Linux (not MIG with vGPU), or use `penstock simulate`"}
	}
	return nil
}

// RunningUnderWSL says whether this is a Windows Subsystem for Linux kernel.
func RunningUnderWSL() bool { return runningUnderWSL(procVersion()) }

func procVersion() string {
	b, _ := os.ReadFile("/proc/version")
	return string(b)
}

func runningUnderWSL(version string) bool {
	return strings.Contains(strings.ToLower(version), "microsoft")
}

// KernelDriverVersion is the version of the loaded NVIDIA kernel module, such
// as "580.159.03"; empty when there is none or it cannot be read.
func KernelDriverVersion() string {
	if b, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		if v := strings.TrimSpace(string(b)); v != "" {
			return v
		}
	}
	b, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	return parseDriverVersion(string(b))
}

// parseDriverVersion finds the version in /proc/driver/nvidia/version: the
// first dotted number of its first line.
func parseDriverVersion(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	for _, f := range strings.Fields(line) {
		if major, rest, ok := strings.Cut(f, "."); ok && rest != "" && allDigits(major) && allDigits(strings.ReplaceAll(rest, ".", "")) {
			return f
		}
	}
	return ""
}

func allDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// driverMajor is 580 for "580.159.03", and 0 when unknown.
func driverMajor(version string) int {
	m, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(m)
	if err != nil {
		return 0
	}
	return n
}

// FormatCUDAVersion writes 13000 as "13.0".
func FormatCUDAVersion(v int) string {
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}
