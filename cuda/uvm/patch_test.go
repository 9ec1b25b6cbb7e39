//go:build linux

package uvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
)

// fakeDriver answers requests as the driver does, with the patch or without.
type fakeDriver struct {
	version uint32 // of the patch; 0 is none
	status  uint32
	log     []string
}

func (f *fakeDriver) ioctl(_ int, request uintptr, p []byte) unix.Errno {
	le := binary.LittleEndian
	asked := fmt.Sprintf("%d+%d", le.Uint64(p), le.Uint64(p[min(8, len(p)-8):]))
	switch {
	case request == reqMigrate:
		f.log = append(f.log, "migrate "+asked)
		le.PutUint32(p[migrateStatus:], f.status)
	case f.version == 0:
		return unix.ENOSYS
	case request == reqPatchVersion:
		le.PutUint32(p, f.version)
		le.PutUint32(p[patchVersionStatus:], f.status)
	case request == reqPatchEvict:
		f.log = append(f.log, "evict "+asked)
		if len(p) != 32 || le.Uint32(p[24:]) != 0 {
			f.log = append(f.log, "wrong flags")
		}
		le.PutUint32(p[patchEvictStatus:], f.status)
	case request == reqPatchHint:
		f.log = append(f.log, fmt.Sprintf("hint %s gpu %x where %d", asked, p[16], le.Uint32(p[32:])))
		if len(p) != 48 || le.Uint32(p[40:]) != 0 {
			f.log = append(f.log, "wrong reserved")
		}
		le.PutUint32(p[patchHintStatus:], f.status)
	default:
		return unix.ENOSYS
	}
	return 0
}

func TestPatch(t *testing.T) {
	real := ioctl
	defer func() { ioctl = real }()
	r := cuda.Range{Base: 2 << 20, Bytes: 4 << 20}
	for _, c := range []struct {
		version uint32
		want    []string
	}{
		{0, []string{"migrate 2097152+4194304", "migrate 2097152+4194304"}},
		{patchVersion, []string{"evict 2097152+4194304", "hint 2097152+4194304 gpu ab where 2"}},
		{patchVersion + 1, []string{"migrate 2097152+4194304", "migrate 2097152+4194304"}}, // one that speaks otherwise
	} {
		f := &fakeDriver{version: c.version}
		ioctl = f.ioctl
		s := &Space{fd: -1, gpu: [uuidBytes]byte{0xab}}
		s.patched = hasPatch(s.fd)
		if s.Patched() != (c.version == patchVersion) {
			t.Errorf("version %d: patched %t", c.version, s.Patched())
		}
		if err := errors.Join(s.Evict(r), s.Touch(r)); err != nil || !slices.Equal(f.log, c.want) {
			t.Errorf("version %d: %v, did %q", c.version, err, f.log)
		}
		f.status = 0x1e
		var failed *StatusError
		if err := s.Evict(r); !errors.As(err, &failed) || failed.Status != 0x1e || !strings.Contains(err.Error(), "0x1e") {
			t.Errorf("version %d: %v", c.version, err)
		}
	}
	f := &fakeDriver{version: patchVersion, status: 0x16}
	ioctl = f.ioctl
	if hasPatch(-1) {
		t.Error("a refused version was taken for the patch")
	}
}
