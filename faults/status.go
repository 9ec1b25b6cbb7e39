package faults

import (
	"errors"
	"fmt"
	"syscall"
)

const statusOK = 0

// Status is an NV_STATUS of the driver.
type Status uint32

var statusNames = map[Status]string{
	0x03: "BUSY_RETRY", 0x16: "ILLEGAL_ACTION", 0x17: "IN_USE", 0x1b: "INSUFFICIENT_PERMISSIONS", 0x1e: "INVALID_ADDRESS",
	0x1f: "INVALID_ARGUMENT", 0x26: "INVALID_DEVICE", 0x40: "INVALID_STATE", 0x4d: "MORE_PROCESSING_REQUIRED",
	0x51: "NO_MEMORY", 0x56: "NOT_SUPPORTED", 0x10005: "WARN_MORE_PROCESSING_REQUIRED", 0x10006: "WARN_NOTHING_TO_DO",
}

func (s Status) Error() string {
	if n, ok := statusNames[s]; ok {
		return "NV_" + n
	}
	return fmt.Sprintf("NV_STATUS(%#x)", uint32(s))
}

// reason is the cause of a failed request: the system call's error, or else the driver's status.
func reason(status uint32, err error) error {
	if err != nil {
		return err
	}
	return Status(status)
}

// refused explains a request that the driver turned down.
func refused(what string, status uint32, err error) *Unavailable {
	cause := reason(status, err)
	u := &Unavailable{Why: fmt.Sprintf("%s failed (%v)", what, cause), Cause: cause}
	switch {
	case Status(status) == 0x16:
		u.WhatToDo = "open the event queue after CUDA has made its first context"
	case Status(status) == 0x51:
		u.WhatToDo = "use a smaller ring or free host memory"
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOTTY), errors.Is(err, syscall.ENOSYS), Status(status) == 0x56:
		u.WhatToDo = "use driver 535 to 595, outside sandboxes that filter ioctls"
	default:
		u.WhatToDo = "report this with the driver version"
	}
	return u
}
