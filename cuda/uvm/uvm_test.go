//go:build linux

package uvm

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
)

func TestParseUUID(t *testing.T) {
	id, err := parseUUID("GPU-00112233-4455-6677-8899-aabbccddeeff")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range id {
		if int(b) != i*0x11 {
			t.Errorf("byte %d is %#x", i, b)
		}
	}
	for _, bad := range []string{"", "GPU-", "GPU-zz112233-4455-6677-8899-aabbccddeeff", "0011"} {
		if _, err := parseUUID(bad); err == nil || !strings.Contains(err.Error(), "not a device UUID") {
			t.Errorf("parseUUID(%q): %v", bad, err)
		}
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	if fds, err := descriptors(); err != nil || len(fds) > 0 {
		t.Skip("this process has a driver descriptor:", fds, err)
	}
	_, err := Open(cuda.Range{Base: 2 << 20, Bytes: 2 << 20}, cuda.DeviceInfo{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff"})
	if !errors.Is(err, ErrNoDescriptor) {
		t.Errorf("Open without a driver: %v", err)
	}
}

// TestDiscardOfOldDrivers: one that does not know how to discard moves what is dead to the host, and is not asked again;
// what a driver refuses otherwise is an error.
func TestDiscardOfOldDrivers(t *testing.T) {
	real := ioctl
	defer func() { ioctl = real }()
	var asked []uintptr
	var errno unix.Errno
	var status uint32
	var to [uuidBytes]byte
	ioctl = func(_ int, request uintptr, params []byte) unix.Errno {
		asked = append(asked, request)
		switch request {
		case reqDiscard:
			binary.LittleEndian.PutUint32(params[discardStatus:], status)
			return errno
		case reqMigrate:
			copy(to[:], params[16:])
		}
		return 0
	}
	r := cuda.Range{Base: 2 << 20, Bytes: 4 << 20}
	for _, c := range []struct {
		errno  unix.Errno
		status uint32
		fails  bool
		want   []uintptr
	}{
		{0, 0, false, []uintptr{reqDiscard, reqDiscard}},
		{0, 0x1f, true, []uintptr{reqDiscard, reqDiscard}},
		{unix.EFAULT, 0, true, []uintptr{reqDiscard, reqDiscard}},
		{unix.EINVAL, 0, false, []uintptr{reqDiscard, reqMigrate, reqMigrate}},
		{unix.ENOTTY, 0, false, []uintptr{reqDiscard, reqMigrate, reqMigrate}},
	} {
		asked, errno, status, to = nil, c.errno, c.status, [uuidBytes]byte{}
		s := &Space{fd: -1, gpu: [uuidBytes]byte{1}, host: [uuidBytes]byte{2}}
		for range 2 {
			if err := s.Discard(r); (err != nil) != c.fails {
				t.Errorf("errno %d, status %#x: %v", c.errno, c.status, err)
			}
		}
		if !slices.Equal(asked, c.want) || len(c.want) > 2 && to != s.host {
			t.Errorf("errno %d, status %#x: asked for %v, moved to %v", c.errno, c.status, asked, to)
		}
	}
}
