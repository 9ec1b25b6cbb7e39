package gpuinfo

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// fake is a machine of two devices: one that answers everything, one that answers only its name.
func fake() *mock.Interface {
	good := &mock.Device{
		GetNameFunc:                   func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:                   func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 150 << 30, Used: 3 << 30}, nvml.SUCCESS },
		GetMaxPcieLinkGenerationFunc:  func() (int, nvml.Return) { return 5, nvml.SUCCESS },
		GetMaxPcieLinkWidthFunc:       func() (int, nvml.Return) { return 16, nvml.SUCCESS },
		GetCurrPcieLinkGenerationFunc: func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		GetCurrPcieLinkWidthFunc:      func() (int, nvml.Return) { return 16, nvml.SUCCESS },
		GetPcieThroughputFunc: func(c nvml.PcieUtilCounter) (uint32, nvml.Return) {
			if c == nvml.PCIE_UTIL_RX_BYTES {
				return 48_000_000, nvml.SUCCESS
			}
			return 9_000_000, nvml.SUCCESS
		},
	}
	no := nvml.ERROR_NOT_SUPPORTED
	poor := &mock.Device{
		GetNameFunc:                   func() (string, nvml.Return) { return "GRID", nvml.SUCCESS },
		GetUUIDFunc:                   func() (string, nvml.Return) { return "garbage", no },
		GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 7}, no },
		GetMaxPcieLinkGenerationFunc:  func() (int, nvml.Return) { return 9, no },
		GetMaxPcieLinkWidthFunc:       func() (int, nvml.Return) { return 9, no },
		GetCurrPcieLinkGenerationFunc: func() (int, nvml.Return) { return 9, no },
		GetCurrPcieLinkWidthFunc:      func() (int, nvml.Return) { return 9, no },
		GetPcieThroughputFunc:         func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 9, no },
	}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "580.159.03", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 3, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			switch i {
			case 0:
				return good, nvml.SUCCESS
			case 1:
				return poor, nvml.SUCCESS
			}
			return nil, nvml.ERROR_NO_PERMISSION
		},
		DeviceGetHandleByUUIDFunc: func(u string) (nvml.Device, nvml.Return) {
			switch u {
			case "GPU-1":
				return good, nvml.SUCCESS
			case "poor":
				return poor, nvml.SUCCESS
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
	}
}

func TestReport(t *testing.T) {
	s, err := open(fake())
	if err != nil {
		t.Fatal(err)
	}
	rep, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	want := Report{DriverVersion: "580.159.03", Devices: []Device{
		{Index: 0, Name: "NVIDIA H200", UUID: "GPU-1", TotalBytes: 150 << 30, UsedBytes: 3 << 30, PCIeMaxGen: 5, PCIeMaxWidth: 16, PCIeGen: 1, PCIeWidth: 16},
		{Index: 1, Name: "GRID"}, // what was not answered is not guessed
		{Index: 2},
	}}
	if !reflect.DeepEqual(rep, want) {
		t.Errorf("got  %+v\nwant %+v", rep, want)
	}
	if d, ok := rep.ByUUID("GPU-1"); !ok || d.Index != 0 {
		t.Errorf("by UUID: %+v %v", d, ok)
	}
	if d, ok := rep.ByUUID(""); ok { // an unknown UUID must not match a device without one
		t.Errorf("by no UUID: %+v", d)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestLiveNumbers(t *testing.T) {
	s, err := open(fake())
	if err != nil {
		t.Fatal(err)
	}
	if used, err := s.UsedBytes("GPU-1"); used != 3<<30 || err != nil {
		t.Errorf("used %d %v", used, err)
	}
	if in, out, err := s.PCIeThroughput("GPU-1"); in != 48e9 || out != 9e9 || err != nil {
		t.Errorf("PCIe %d %d %v", in, out, err)
	}
	for _, uuid := range []string{"poor", "nobody"} {
		if _, err := s.UsedBytes(uuid); err == nil || !strings.Contains(err.Error(), uuid) {
			t.Errorf("used bytes of %s: %v", uuid, err)
		}
		if _, _, err := s.PCIeThroughput(uuid); err == nil || !strings.Contains(err.Error(), uuid) {
			t.Errorf("PCIe traffic of %s: %v", uuid, err)
		}
	}
}

func TestUnavailable(t *testing.T) {
	tests := []struct {
		code nvml.Return
		text string
	}{
		{nvml.ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 not found"},
		{nvml.ERROR_DRIVER_NOT_LOADED, "not loaded"},
		{nvml.ERROR_LIB_RM_VERSION_MISMATCH, "different versions"},
		{nvml.ERROR_NO_PERMISSION, "/dev/nvidiactl"},
		{nvml.ERROR_UNKNOWN, "NVML error 999"},
	}
	for _, tt := range tests {
		lib := fake()
		lib.InitFunc = func() nvml.Return { return tt.code }
		s, err := open(lib)
		var u *Unavailable
		if s != nil || !errors.As(err, &u) || u.Code != tt.code || u.WhatToDo == "" || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%d: %v", tt.code, err)
		}
	}
}

func TestCountFails(t *testing.T) {
	lib := fake()
	lib.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
	s, err := open(lib)
	if err != nil {
		t.Fatal(err)
	}
	if rep, err := s.Report(); err == nil || rep.DriverVersion != "580.159.03" {
		t.Errorf("%+v, %v", rep, err)
	}
}

// Whatever this machine has, asking is safe.
func TestOpenHere(t *testing.T) {
	s, err := Open()
	if err != nil {
		var u *Unavailable
		if !errors.As(err, &u) {
			t.Errorf("%v is not *Unavailable", err)
		}
		return
	}
	defer s.Close()
	if _, err := s.Report(); err != nil {
		t.Log(err)
	}
}
