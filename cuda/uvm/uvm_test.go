//go:build linux

package uvm

import (
	"errors"
	"strings"
	"testing"

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
