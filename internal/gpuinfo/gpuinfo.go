package gpuinfo

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is what NVML says about one GPU. Zero values are unknown.
type Device struct {
	Index        int    `json:"index"` // of NVML
	Name         string `json:"name,omitempty"`
	UUID         string `json:"uuid,omitempty"`
	TotalBytes   int64  `json:"total_bytes,omitempty"`
	UsedBytes    int64  `json:"used_bytes,omitempty"`
	PCIeMaxGen   int    `json:"pcie_max_generation,omitempty"`
	PCIeMaxWidth int    `json:"pcie_max_width,omitempty"`
	PCIeGen      int    `json:"pcie_generation,omitempty"` // now
	PCIeWidth    int    `json:"pcie_width,omitempty"`      // now
}

// Report is the whole machine.
type Report struct {
	DriverVersion string   `json:"driver_version,omitempty"`
	Devices       []Device `json:"devices"`
}

// Unavailable says in one line why NVML cannot be asked and what to do.
type Unavailable struct {
	Why      string
	WhatToDo string
	Code     nvml.Return
}

func (u *Unavailable) Error() string { return u.Why + ": " + u.WhatToDo }

// Session is an open NVML.
type Session struct{ lib nvml.Interface }

// Open starts NVML.
func Open() (*Session, error) { return open(nvml.New()) }

func open(lib nvml.Interface) (*Session, error) {
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, unavailable(r)
	}
	return &Session{lib: lib}, nil
}

// Close ends NVML.
func (s *Session) Close() error {
	if r := s.lib.Shutdown(); r != nvml.SUCCESS {
		return fmt.Errorf("NVML does not shut down: %s", text(r))
	}
	return nil
}

func unavailable(r nvml.Return) *Unavailable {
	u := &Unavailable{Code: r}
	switch r {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		u.Why, u.WhatToDo = "libnvidia-ml.so.1 not found", "install the NVIDIA driver's utilities"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		u.Why, u.WhatToDo = "the NVIDIA kernel module is not loaded", "run `nvidia-smi` as root once, or reinstall the driver"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		u.Why, u.WhatToDo = "libnvidia-ml.so.1 and the NVIDIA kernel module are of different versions", "reload the kernel module or reboot after a driver update"
	case nvml.ERROR_NO_PERMISSION:
		u.Why, u.WhatToDo = "no permission to ask NVML", "check the permissions of /dev/nvidiactl and /dev/nvidia0"
	default:
		u.Why, u.WhatToDo = fmt.Sprintf("NVML does not start (%s)", text(r)), "check `nvidia-smi`"
	}
	return u
}

// text names a result. The library's own text needs the library, which may be what is missing.
func text(r nvml.Return) string { return fmt.Sprintf("NVML error %d", int32(r)) }

// Report reads every device of the machine.
func (s *Session) Report() (Report, error) {
	var rep Report
	if v, r := s.lib.SystemGetDriverVersion(); r == nvml.SUCCESS {
		rep.DriverVersion = v
	}
	n, r := s.lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return rep, fmt.Errorf("NVML does not count the devices (%s): check `nvidia-smi`", text(r))
	}
	rep.Devices = make([]Device, 0, n)
	for i := range n {
		d := Device{Index: i}
		if h, r := s.lib.DeviceGetHandleByIndex(i); r == nvml.SUCCESS {
			d.read(h)
		}
		rep.Devices = append(rep.Devices, d)
	}
	return rep, nil
}

func (d *Device) read(h nvml.Device) {
	d.Name = known(h.GetName())
	d.UUID = known(h.GetUUID())
	if m, r := h.GetMemoryInfo(); r == nvml.SUCCESS {
		d.TotalBytes, d.UsedBytes = int64(m.Total), int64(m.Used)
	}
	d.PCIeMaxGen = known(h.GetMaxPcieLinkGeneration())
	d.PCIeMaxWidth = known(h.GetMaxPcieLinkWidth())
	d.PCIeGen = known(h.GetCurrPcieLinkGeneration())
	d.PCIeWidth = known(h.GetCurrPcieLinkWidth())
}

// known is a value that was answered, or zero.
func known[T any](v T, r nvml.Return) T {
	if r != nvml.SUCCESS {
		var zero T
		return zero
	}
	return v
}

// ByUUID finds a device.
func (r Report) ByUUID(uuid string) (Device, bool) {
	for _, d := range r.Devices {
		if d.UUID != "" && d.UUID == uuid {
			return d, true
		}
	}
	return Device{}, false
}

// UsedBytes is the memory in use on a device now, by all processes.
func (s *Session) UsedBytes(uuid string) (int64, error) {
	h, err := s.handle(uuid)
	if err != nil {
		return 0, err
	}
	m, r := h.GetMemoryInfo()
	if r != nvml.SUCCESS {
		return 0, fmt.Errorf("NVML does not tell the memory of %s (%s)", uuid, text(r))
	}
	return int64(m.Used), nil
}

// PCIeThroughput is what crosses the bus now, in bytes a second, as NVML samples it.
func (s *Session) PCIeThroughput(uuid string) (toDevice, toHost int64, err error) {
	h, err := s.handle(uuid)
	if err != nil {
		return 0, 0, err
	}
	rx, r := h.GetPcieThroughput(nvml.PCIE_UTIL_RX_BYTES)
	if r == nvml.SUCCESS {
		var tx uint32
		if tx, r = h.GetPcieThroughput(nvml.PCIE_UTIL_TX_BYTES); r == nvml.SUCCESS {
			return int64(rx) * 1000, int64(tx) * 1000, nil // it counts kB/s
		}
	}
	return 0, 0, fmt.Errorf("NVML does not tell the PCIe traffic of %s (%s)", uuid, text(r))
}

func (s *Session) handle(uuid string) (nvml.Device, error) {
	h, r := s.lib.DeviceGetHandleByUUID(uuid)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML knows no device %s (%s)", uuid, text(r))
	}
	return h, nil
}
