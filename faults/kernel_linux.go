package faults

import (
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// linux is the real kernel.
type linux struct{}

func (linux) openTools() (int, error) {
	fd, err := unix.Open(toolsNode, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: toolsNode, Err: err}
	}
	return fd, nil
}

// spaces looks at every descriptor: the one we want is a character device with
// the number, or failing that the name, of /dev/nvidia-uvm.
func (linux) spaces() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
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
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if known && st.Rdev == node.Rdev || filepath.Base(link) == "nvidia-uvm" {
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

func (linux) ioctl(fd int, number uintptr, block []byte) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), number, uintptr(unsafe.Pointer(&block[0])))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

func (linux) duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (linux) close(fd int) error { return unix.Close(fd) }

func (linux) environment() Environment { return LookAround() }
