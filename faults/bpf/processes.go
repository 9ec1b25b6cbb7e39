//go:build linux

package bpf

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// processes decides which processes are reported, and remembers it.
type processes struct {
	proc    string // /proc
	process uint32 // this one and its descendants; 0 is no such condition
	cgroup  string // this control group and those below it; "" is no such condition
	self    uint32 // never reported: it may hold copies of others' descriptors
	known   map[uint32]bool
}

func newProcesses(o Options) *processes {
	p := &processes{proc: "/proc", process: uint32(o.Process), self: uint32(os.Getpid()), known: map[uint32]bool{}}
	if o.Cgroup != "" {
		p.cgroup = cgroupPath(o.Cgroup)
	}
	return p
}

const cgroupRoot = "/sys/fs/cgroup"

// cgroupPath is a group's path below the root of its hierarchy.
func cgroupPath(group string) string { return path.Clean("/" + strings.TrimPrefix(group, cgroupRoot)) }

// check refuses conditions that no process can meet.
func (o Options) check() error {
	if o.Process != 0 {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", o.Process)); o.Process < 0 || err != nil {
			return fmt.Errorf("bpf: there is no process %d", o.Process)
		}
	}
	if o.Cgroup != "" {
		// The unified hierarchy lies at the root, each of the older ones in a folder.
		group := cgroupPath(o.Cgroup)
		found, err := filepath.Glob(cgroupRoot + "/*" + group)
		if _, missing := os.Stat(cgroupRoot + group); missing != nil && (err != nil || len(found) == 0) {
			return fmt.Errorf("bpf: there is no control group %s under %s: a process's own is in /proc/PID/cgroup", group, cgroupRoot)
		}
	}
	return nil
}

func (p *processes) everything() bool { return p.process == 0 && p.cgroup == "" }

// wants decides once for a process, while it can still be looked at. Process 0
// is one that was not seen to make its address space.
func (p *processes) wants(pid uint32) bool {
	if p.everything() {
		return true
	}
	if pid == 0 {
		return false
	}
	wanted, known := p.known[pid]
	if !known {
		wanted = p.belongs(pid)
		p.known[pid] = wanted
	}
	return wanted
}

// forget lets a process be decided again: its number may become another's.
func (p *processes) forget(pid uint32) { delete(p.known, pid) }

func (p *processes) belongs(pid uint32) bool {
	if p.process != 0 && !p.descends(pid) {
		return false
	}
	return p.cgroup == "" || p.inCgroup(pid)
}

// descends follows the parents; a family has a bounded number of generations.
func (p *processes) descends(pid uint32) bool {
	for range 256 {
		if pid == p.process {
			return true
		}
		stat, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", p.proc, pid))
		if err != nil {
			return false
		}
		if pid = parentIn(string(stat)); pid <= 1 {
			return false
		}
	}
	return false
}

// parentIn finds the parent in /proc/PID/stat, whose second field is a name in
// parentheses that may hold anything.
func parentIn(stat string) uint32 {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.ParseUint(fields[1], 10, 32)
	return uint32(parent)
}

// inCgroup looks at the process's place in the unified hierarchy, and in any
// other: containers of the older hierarchies have the same path in each.
func (p *processes) inCgroup(pid uint32) bool {
	groups, err := os.ReadFile(fmt.Sprintf("%s/%d/cgroup", p.proc, pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[2] == p.cgroup || strings.HasPrefix(parts[2], strings.TrimSuffix(p.cgroup, "/")+"/")) {
			return true
		}
	}
	return false
}

// CgroupOf is the control group of a process, to be given as Options.Cgroup.
func CgroupOf(pid int) (string, error) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(groups)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && parts[0] == "0" {
			return parts[2], nil
		}
	}
	return "", fmt.Errorf("process %d is in no group of the unified hierarchy (cgroup v2)", pid)
}
