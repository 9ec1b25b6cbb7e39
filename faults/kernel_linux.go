package faults

import (
	"os"
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
func (linux) spaces() ([]int, error) { return uvmDescriptors("/proc/self/fd") }

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
