package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckAttach says whether processes of this user that are no children of this
// one could be listened to; the error is *Unavailable. It copies a descriptor of
// a process that it starts, and reads the kernel's rule for other processes.
func CheckAttach() error {
	if err := tryCopy(); err != nil {
		return err
	}
	rule, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil || os.Geteuid() == 0 {
		return nil
	}
	switch strings.TrimSpace(string(rule)) {
	case "0":
		return nil
	case "1":
		return &Unavailable{Why: "only descendants can be listened to (kernel.yama.ptrace_scope is 1)", WhatToDo: "run as root, or set kernel.yama.ptrace_scope to 0 (sysctl)"}
	}
	return &Unavailable{Why: "this user may trace no process (kernel.yama.ptrace_scope is " + strings.TrimSpace(string(rule)) + ")", WhatToDo: "run as root, or set kernel.yama.ptrace_scope to 0 (sysctl)"}
}

// tryCopy copies a descriptor out of a child.
func tryCopy() error {
	cmd := exec.Command("sleep", "10")
	if err := cmd.Start(); err != nil {
		return nil // cannot be tried; that says nothing
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		return attachRefused("opening a process", err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, 0, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd)
	case !errors.Is(err, unix.EBADF): // it had closed its descriptor: the right to ask was there
		return attachRefused("copying its descriptor", err)
	}
	return nil
}

func attachRefused(what string, err error) *Unavailable {
	u := &Unavailable{Why: fmt.Sprintf("processes cannot be listened to from outside: %s failed (%v)", what, err), WhatToDo: "run outside the container or sandbox, or allow SYS_PTRACE (docker run --cap-add SYS_PTRACE)", Cause: err}
	if errors.Is(err, unix.ENOSYS) {
		u.WhatToDo = "this needs Linux 5.6 or newer, outside sandboxes that filter system calls"
	}
	return u
}
