//go:build linux

package uvm

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
)

// Requests on /dev/nvidia-uvm.
const (
	reqMigrate         = 51
	reqUUIDTable       = 64
	reqValidateVARange = 72
	reqDiscard         = 80
)

// Offsets and sizes of their parameter blocks, in bytes.
const (
	migrateBytes     = 80
	migrateNode      = 52
	migrateStatus    = 72
	validateBytes    = 24
	validateStatus   = 16
	discardBytes     = 32
	discardFlags     = 16
	discardStatus    = 24
	discardUnmap     = 1
	uuidTableEntries = 512
	uuidBytes        = 16
)

const (
	statusOK          = 0
	statusNothingToDo = 0x10006
)

// StatusError is a failure that the driver reported.
type StatusError struct {
	Request string
	Status  uint32 // NV_STATUS
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s failed with driver status %#x", e.Request, e.Status)
}

// ErrNoDescriptor is returned by Open when no descriptor of this process owns the address.
var ErrNoDescriptor = errors.New("no /dev/nvidia-uvm descriptor of this process owns the managed memory")

// Space is a managed address space of this process. Its methods may be called
// from any thread, at the same time.
type Space struct {
	fd        int
	gpu, host [uuidBytes]byte
	patched   bool
	keepsDead atomic.Bool // it does not know how to discard
}

// Open finds the descriptor whose address space holds a managed range, and
// readies it to move memory between the host and the device.
func Open(r cuda.Range, d cuda.DeviceInfo) (*Space, error) {
	gpu, err := parseUUID(d.UUID)
	if err != nil {
		return nil, err
	}
	fds, err := descriptors()
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if validate(fd, r) != nil {
			continue
		}
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("duplicating descriptor %d: %w", fd, err)
		}
		s := &Space{fd: own, gpu: gpu}
		if err := s.findHost(); err != nil {
			_ = unix.Close(own) // the first error says more
			return nil, err
		}
		s.patched = hasPatch(own)
		return s, nil
	}
	return nil, fmt.Errorf("%w (%d descriptors tried)", ErrNoDescriptor, len(fds))
}

// descriptors are the open descriptors of /dev/nvidia-uvm.
func descriptors() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("looking for the driver's descriptor: %w", err)
	}
	var fds []int
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || !strings.HasSuffix(target, "/nvidia-uvm") {
			continue
		}
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

func parseUUID(text string) (id [uuidBytes]byte, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(text, "GPU-"), "MIG-"), "-", ""))
	if err != nil || len(raw) != uuidBytes {
		return id, fmt.Errorf("%q is not a device UUID", text)
	}
	copy(id[:], raw)
	return id, nil
}

// ioctl is the system call; tests put a driver in its place.
var ioctl = func(fd int, request uintptr, params []byte) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&params[0])))
	return errno
}

func call(fd int, request uintptr, name string, params []byte, statusAt int) error {
	if errno := ioctl(fd, request, params); errno != 0 {
		return fmt.Errorf("%s: %w", name, errno)
	}
	switch status := binary.LittleEndian.Uint32(params[statusAt:]); status {
	case statusOK, statusNothingToDo:
		return nil
	default:
		return &StatusError{Request: name, Status: status}
	}
}

func putRange(p []byte, r cuda.Range) {
	binary.LittleEndian.PutUint64(p[0:], uint64(r.Base))
	binary.LittleEndian.PutUint64(p[8:], uint64(r.Bytes))
}

func validate(fd int, r cuda.Range) error {
	var p [validateBytes]byte
	putRange(p[:], r)
	return call(fd, reqValidateVARange, "UVM_VALIDATE_VA_RANGE", p[:], validateStatus)
}

// findHost reads the driver's name for the host: entry 0 of its table of processors.
func (s *Space) findHost() error {
	table := make([]byte, uuidTableEntries*uuidBytes)
	read := func(versioned bool) error {
		var p [24]byte
		binary.LittleEndian.PutUint64(p[0:], uint64(uintptr(unsafe.Pointer(&table[0]))))
		if versioned { // driver 560
			binary.LittleEndian.PutUint32(p[8:], 1)
		}
		if errno := ioctl(s.fd, reqUUIDTable, p[:]); errno != 0 {
			return fmt.Errorf("UVM_TOOLS_GET_PROCESSOR_UUID_TABLE: %w", errno)
		}
		return nil
	}
	for _, versioned := range []bool{false, true} {
		if err := read(versioned); err != nil {
			return err
		}
		copy(s.host[:], table)
		for i := uuidBytes; i+uuidBytes <= len(table); i += uuidBytes {
			if string(table[i:i+uuidBytes]) == string(s.gpu[:]) {
				return nil
			}
		}
	}
	return fmt.Errorf("the driver's table of processors does not list device %s", hex.EncodeToString(s.gpu[:]))
}

// Migrate moves a range to a side and returns when it is there.
func (s *Space) Migrate(r cuda.Range, to cuda.Location) error {
	var p [migrateBytes]byte
	putRange(p[:], r)
	id := s.gpu
	if to == cuda.Host {
		id = s.host
	}
	copy(p[16:], id[:])
	binary.LittleEndian.PutUint32(p[migrateNode:], ^uint32(0)) // any NUMA node
	return call(s.fd, reqMigrate, "UVM_MIGRATE", p[:], migrateStatus)
}

// Discard lets go of a range's contents. The caller guarantees that nothing
// touches it; the next write or migration brings it back with unspecified contents. A
// driver that does not know the request (before 580) moves the range to the host
// instead, so that it is on the device no more there, either.
func (s *Space) Discard(r cuda.Range) error {
	if s.keepsDead.Load() {
		return s.Evict(r)
	}
	var p [discardBytes]byte
	putRange(p[:], r)
	// With the unmap flag a write ends the discard, so that memory which is handed
	// out again keeps what is written to it even if it was never migrated.
	binary.LittleEndian.PutUint64(p[discardFlags:], discardUnmap)
	err := call(s.fd, reqDiscard, "UVM_DISCARD", p[:], discardStatus)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) { // unknown; what the driver itself refuses has a status
		s.keepsDead.Store(true)
		return s.Evict(r)
	}
	return err
}

// FD is the descriptor of the address space. It stays the Space's own.
func (s *Space) FD() int { return s.fd }

// Close gives the descriptor back.
func (s *Space) Close() error { return unix.Close(s.fd) }
