package faults

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Unavailable says, in one line, why the event queue cannot be read here and what to do.
type Unavailable struct {
	Why      string
	WhatToDo string
	Cause    error // may be nil
}

func (u *Unavailable) Error() string {
	return "GPU fault events unavailable: " + u.Why + ": " + u.WhatToDo
}

func (u *Unavailable) Unwrap() error { return u.Cause }

// toolsNode is the event queue's device.
const toolsNode = "/dev/nvidia-uvm-tools"

// Environment is what the advice depends on.
type Environment struct {
	GVisor    bool
	Container bool
	UVMLoaded bool // the nvidia-uvm module is loaded
}

// LookAround reads the environment of this process.
func LookAround() Environment {
	version, _ := os.ReadFile("/proc/version")
	devices, _ := os.ReadFile("/proc/devices")
	return Environment{
		GVisor:    isGVisor(string(version)),
		Container: inContainer(),
		UVMLoaded: listsDriver(string(devices), "nvidia-uvm"),
	}
}

// isGVisor knows the /proc/version that gVisor makes up: newer releases name
// themselves, older ones have always been built on the same day.
func isGVisor(version string) bool {
	return strings.Contains(strings.ToLower(version), "gvisor") || strings.Contains(version, "Sun Jan 10 15:06:54 PST 2016")
}

func inContainer() bool {
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" || os.Getenv("container") != ""
}

func listsDriver(devices, name string) bool {
	for line := range strings.Lines(devices) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name {
			return true
		}
	}
	return false
}

// openFailure explains why the tools node could not be opened.
func openFailure(err error, env Environment) *Unavailable {
	u := &Unavailable{Cause: err}
	switch {
	case env.GVisor:
		u.Why, u.WhatToDo = "gVisor does not forward the driver's event queue", "run outside gVisor, or go on without fault counts"
	case errors.Is(err, fs.ErrNotExist) && !env.UVMLoaded:
		u.Why, u.WhatToDo = "the nvidia-uvm kernel module is not loaded", "run `nvidia-modprobe -u -c 0` as root"
	case errors.Is(err, fs.ErrNotExist) && env.Container:
		u.Why, u.WhatToDo = "this container has no "+toolsNode, "pass it in (docker run --device "+toolsNode+")"
	case errors.Is(err, fs.ErrNotExist):
		u.Why, u.WhatToDo = toolsNode+" is missing", "run `nvidia-modprobe -u -c 0` as root"
	case errors.Is(err, fs.ErrPermission) && env.Container:
		u.Why, u.WhatToDo = "this container may not open "+toolsNode, "pass it in (docker run --device "+toolsNode+")"
	case errors.Is(err, fs.ErrPermission):
		u.Why, u.WhatToDo = "no permission to open "+toolsNode, "give this user read and write access to it (chmod a+rw)"
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		u.Why, u.WhatToDo = toolsNode+" has no driver behind it", "remove it and run `nvidia-modprobe -u -c 0` as root"
	default:
		u.Why, u.WhatToDo = "cannot open "+toolsNode+" ("+err.Error()+")", "check the NVIDIA driver's installation"
	}
	return u
}

// CheckNode says whether the event queue's device can be opened here; the error is *Unavailable.
func CheckNode() error {
	f, err := os.OpenFile(toolsNode, os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	env := LookAround()
	if err == nil && !env.GVisor {
		return nil
	}
	return openFailure(err, env)
}
