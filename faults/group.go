package faults

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Group is the queues of every managed address space of one process. It is a
// Source. A process has one for each time that CUDA was initialised in it; which
// of its descriptors own one is found by trying.
type Group struct {
	queues []*Queue
	pid    int
	pidfd  int // -1 for this process
}

// OpenAll listens to every managed address space of this process.
func OpenAll(o Options) (*Group, error) {
	g := &Group{pid: os.Getpid(), pidfd: -1}
	k := linux{}
	fds, err := k.spaces()
	if err != nil {
		return nil, &Unavailable{Why: "cannot list this process's descriptors (" + err.Error() + ")", WhatToDo: "mount /proc", Cause: err}
	}
	if err := g.bind(o, k, fds, fds); err != nil {
		return nil, err
	}
	return g, nil
}

// Attach listens to every managed address space of another process, which needs
// no preparation. It takes the right to ptrace it (the same user; under Yama, a
// descendant or CAP_SYS_PTRACE). The error is *Unavailable; for one that has not
// started CUDA yet it wraps ErrNoSpace, and it is worth trying again.
func Attach(pid int, o Options) (*Group, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, attachFailure(pid, "finding it", err)
	}
	g := &Group{pid: pid, pidfd: pidfd}
	theirs, err := uvmDescriptors(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		_ = unix.Close(pidfd)
		return nil, attachFailure(pid, "listing its descriptors", err)
	}
	var copies []int
	defer func() {
		for _, fd := range copies {
			_ = unix.Close(fd) // each queue has its own duplicate
		}
	}()
	for _, fd := range theirs {
		own, err := unix.PidfdGetfd(pidfd, fd, 0)
		if err != nil {
			_ = unix.Close(pidfd)
			return nil, attachFailure(pid, fmt.Sprintf("copying its descriptor %d", fd), err)
		}
		copies = append(copies, own)
	}
	if err := g.bind(o, linux{}, copies, theirs); err != nil {
		_ = unix.Close(pidfd)
		return nil, err
	}
	return g, nil
}

// ErrNoSpace is wrapped by the error for a process in which CUDA has not been started yet.
var ErrNoSpace = errors.New("no managed address space yet")

func attachFailure(pid int, what string, err error) *Unavailable {
	u := &Unavailable{Why: fmt.Sprintf("process %d cannot be listened to: %s failed (%v)", pid, what, err), Cause: err}
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, os.ErrNotExist):
		u.WhatToDo = "check the process id: it has ended, or lives in another container"
	case errors.Is(err, unix.EPERM), errors.Is(err, os.ErrPermission):
		u.WhatToDo = "run as the same user and allow tracing (sysctl kernel.yama.ptrace_scope=0, or root), or start it with `penstock faults record -- command`"
	case errors.Is(err, unix.ENOSYS):
		u.WhatToDo = "this needs Linux 5.6 or newer and no sandbox that filters pidfd_getfd; start it with `penstock faults record -- command`"
	default:
		u.WhatToDo = "start it with `penstock faults record -- command` instead"
	}
	return u
}

// bind opens a queue for each descriptor that owns an address space. fds are
// ours to use, theirs the same ones as the process numbers them.
func (g *Group) bind(o Options, k kernel, fds, theirs []int) error {
	if len(fds) == 0 {
		return &Unavailable{Why: fmt.Sprintf("CUDA has made no context in process %d yet", g.pid), WhatToDo: "try again when it has", Cause: ErrNoSpace}
	}
	var last error
	var bound []int
	owners := ownersOf(k, fds, g.maps())
	for i, fd := range fds {
		if len(owners) > 0 && !slices.Contains(owners, fd) {
			continue
		}
		if slices.ContainsFunc(bound, func(b int) bool { return sameFile(g.pid, theirs[b], theirs[i], len(owners) > 0 || g.pidfd >= 0) }) {
			continue // a duplicate of one that has its queue already
		}
		o.SpaceFD = fd
		q, err := open(o, k)
		if err != nil {
			last = err
			continue
		}
		g.queues, bound = append(g.queues, q), append(bound, i)
	}
	if len(g.queues) > 0 {
		return nil
	}
	var u *Unavailable
	if errors.As(last, &u) && errors.Is(u.Cause, Status(0x16)) {
		u.Cause = fmt.Errorf("%w: %w", ErrNoSpace, u.Cause)
	}
	return last
}

// maps is the file that lists the process's mappings.
func (g *Group) maps() string { return fmt.Sprintf("/proc/%d/maps", g.pid) }

// ioctlValidate asks whether an address space has a range.
const ioctlValidate = 72

// ownersOf are the descriptors whose address space has the managed memory that the
// process maps; none when it maps none.
func ownersOf(k kernel, fds []int, maps string) (owners []int) {
	base, bytes := managedMapping(maps)
	if bytes == 0 {
		return nil
	}
	for _, fd := range fds {
		block := make([]byte, 24)
		binary.LittleEndian.PutUint64(block, base)
		binary.LittleEndian.PutUint64(block[8:], bytes)
		if k.ioctl(fd, ioctlValidate, block) == nil && binary.LittleEndian.Uint32(block[16:]) == statusOK {
			owners = append(owners, fd)
		}
	}
	return owners
}

// managedMapping is the last mapping of /dev/nvidia-uvm that a process has, which
// is managed memory if there is any; 0 bytes when there is none.
func managedMapping(maps string) (base, bytes uint64) {
	f, err := os.Open(maps)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if !strings.HasSuffix(line, "/nvidia-uvm") {
			continue
		}
		from, rest, ok := strings.Cut(line, "-")
		to, _, ok2 := strings.Cut(rest, " ")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if ok && ok2 && err1 == nil && err2 == nil && b > a {
			base, bytes = a, b-a
		}
	}
	return base, bytes
}

// sameFile says whether two descriptors of a process are one open file; unsure
// is the answer where the kernel does not say.
func sameFile(pid, a, b int, unsure bool) bool {
	const kcmpFile = 0
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(pid), kcmpFile, uintptr(a), uintptr(b), 0)
	if errno != 0 {
		return unsure
	}
	return r == 0
}

// uvmDescriptors are the numbers in a /proc/PID/fd folder that are /dev/nvidia-uvm.
func uvmDescriptors(folder string) ([]int, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var node unix.Stat_t
	known := unix.Stat("/dev/nvidia-uvm", &node) == nil && node.Mode&unix.S_IFMT == unix.S_IFCHR
	var fds []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		path := filepath.Join(folder, e.Name())
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		link, _ := os.Readlink(path)
		if known && st.Rdev == node.Rdev || filepath.Base(link) == "nvidia-uvm" {
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

// Drain implements Source.
func (g *Group) Drain(dst []Event) []Event {
	for _, q := range g.queues {
		dst = q.Drain(dst)
	}
	return dst
}

// Flush implements Source.
func (g *Group) Flush() (first error) {
	for _, q := range g.queues {
		if err := q.Flush(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Lost implements Source.
func (g *Group) Lost() (sum Lost) {
	for _, q := range g.queues {
		l := q.Lost()
		sum.Driver += l.Driver
		sum.Reader += l.Reader
	}
	return sum
}

// Counters starts the driver's own counters of every address space.
func (g *Group) Counters() (all []*Counters, err error) {
	for _, q := range g.queues {
		c, err := q.Counters()
		if err != nil {
			for _, c := range all {
				_ = c.Close()
			}
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Coverage implements Source.
func (g *Group) Coverage() Coverage { return g.queues[0].Coverage() }

// Alive says whether the process is still there. The driver cannot take its
// memory down before a Group that listens to it is closed.
func (g *Group) Alive() bool {
	if g.pidfd < 0 {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(g.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err != nil || n == 0
}

// Close implements Source.
func (g *Group) Close() (first error) {
	for _, q := range g.queues {
		if err := q.Close(); err != nil && first == nil {
			first = err
		}
	}
	if g.pidfd >= 0 {
		_ = unix.Close(g.pidfd)
		g.pidfd = -1
	}
	return first
}
