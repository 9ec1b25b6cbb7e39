package hostmem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory is what may still be taken.
type Memory struct {
	TotalBytes     int64 // of the machine
	AvailableBytes int64
	// LimitedBy says what sets it: "free memory", or the control group.
	LimitedBy string
}

// Available reads the present state of this machine.
func Available() (Memory, error) { return read(os.DirFS("/")) }

// Every one of these files is small; more than this is not read.
const maxFileBytes = 1 << 20

func readFile(root fs.FS, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	return string(b), err
}

func read(root fs.FS) (Memory, error) {
	text, err := readFile(root, "proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("cannot tell how much memory is free: %w", err)
	}
	total, ok1 := value(text, "MemTotal:")
	available, ok2 := value(text, "MemAvailable:")
	if !ok1 || !ok2 || max(total, available) > math.MaxInt64>>10 {
		return Memory{}, errors.New("cannot tell how much memory is free: /proc/meminfo has no MemTotal and MemAvailable")
	}
	m := Memory{total << 10, available << 10, "free memory"}
	text, err = readFile(root, "proc/self/cgroup")
	if err != nil {
		return m, nil
	}
	for _, g := range groups(text) {
		if left, ok := g.left(root); ok && left < m.AvailableBytes {
			m.AvailableBytes, m.LimitedBy = left, "the memory limit of control group "+g.path
		}
	}
	return m, nil
}

// value finds the first number behind a name in lines of names and numbers.
func value(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			return number(f[1])
		}
	}
	return 0, false
}

func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil && n >= 0
}

// group is a control group that may limit memory.
type group struct {
	version int
	path    string
}

// maxGroups bounds what is looked at: groups nest a few deep.
const maxGroups = 64

// groups are those of /proc/self/cgroup that govern memory, with their ancestors.
func groups(text string) (out []group) {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		if len(f) != 3 || !strings.HasPrefix(f[2], "/") {
			continue
		}
		version := 0
		if f[1] == "" {
			version = 2
		}
		for _, controller := range strings.Split(f[1], ",") {
			if controller == "memory" {
				version = 1
			}
		}
		// path.Clean keeps ".." from leaving the root.
		for at := path.Clean(f[2]); version > 0 && len(out) < maxGroups; at = path.Dir(at) {
			out = append(out, group{version, at})
			if at == "/" {
				break
			}
		}
	}
	return out
}

// left is what the group leaves of its limit; ok is false when it has none, or
// is not visible from here.
func (g group) left(root fs.FS) (int64, bool) {
	folder, limitFile, useFile, cache := "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
	if g.version == 1 {
		folder, limitFile, useFile, cache = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	folder = path.Join(folder, g.path)
	get := func(file string) (int64, bool) {
		text, err := readFile(root, path.Join(folder, file))
		if err != nil {
			return 0, false
		}
		return number(text) // "max" is no number
	}
	limit, ok := get(limitFile)
	if !ok {
		return 0, false
	}
	used, ok := get(useFile)
	if !ok {
		return 0, false
	}
	stat, _ := readFile(root, path.Join(folder, "memory.stat"))
	droppable, _ := value(stat, cache)
	return max(0, limit-max(0, used-min(used, droppable))), true
}
