//go:build linux

package uvm

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
)

// Requests that a driver with kmod-patch answers, numbers and layouts as in its uvm_penstock.h.
const (
	reqPatchVersion = 0x50534b01
	reqPatchEvict   = 0x50534b02
	reqPatchHint    = 0x50534b03

	patchVersion       = 1 // the one spoken here
	patchVersionBytes  = 8
	patchVersionStatus = 4
	patchEvictBytes    = 32
	patchEvictStatus   = 28
	patchHintBytes     = 48
	patchHintGPU       = 16
	patchHintWhere     = 32
	patchHintStatus    = 44
	patchHintLast      = 2
)

// hasPatch asks whether the driver carries the patch. One without it does not know the request.
func hasPatch(fd int) bool {
	var p [patchVersionBytes]byte
	err := call(fd, reqPatchVersion, "PENSTOCK_VERSION", p[:], patchVersionStatus)
	return err == nil && binary.LittleEndian.Uint32(p[:]) == patchVersion
}

// ProbePatch asks the same of the machine's driver, without a space. The error
// is that of opening its device.
func ProbePatch() (bool, error) {
	fd, err := unix.Open("/dev/nvidia-uvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: "/dev/nvidia-uvm", Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return hasPatch(fd), nil
}

// Patched says whether the driver carries kmod-patch.
func (s *Space) Patched() bool { return s.patched }

// Evict moves what of a range is on the device to the host and returns when it
// is there. With kmod-patch the driver leaves out its pass that maps every page
// for the CPU; without, this is Migrate.
func (s *Space) Evict(r cuda.Range) error {
	if !s.patched {
		return s.Migrate(r, cuda.Host)
	}
	var p [patchEvictBytes]byte
	putRange(p[:], r)
	return call(s.fd, reqPatchEvict, "PENSTOCK_EVICT", p[:], patchEvictStatus)
}

// Touch makes a range on the device the last that the driver evicts. Without
// kmod-patch that takes a migration to where it is already.
func (s *Space) Touch(r cuda.Range) error {
	if !s.patched {
		return s.Migrate(r, cuda.Device)
	}
	var p [patchHintBytes]byte
	putRange(p[:], r)
	copy(p[patchHintGPU:], s.gpu[:])
	binary.LittleEndian.PutUint32(p[patchHintWhere:], patchHintLast)
	return call(s.fd, reqPatchHint, "PENSTOCK_HINT", p[:], patchHintStatus)
}
