package cuda

import (
	"errors"
	"fmt"
)

// Error is a failed call of the CUDA driver, real or simulated.
type Error struct {
	Code   int    // the CUresult
	Name   string // its name, such as "CUDA_ERROR_OUT_OF_MEMORY"
	Call   string // the driver function, such as "cuMemAlloc"; empty in the sentinels
	Detail error  // what Penstock knows beyond the driver; may be nil
}

// NewError is the error of a call that returned code. The code must not be 0.
func NewError(code int, call string) *Error {
	return &Error{Code: code, Name: ResultName(code), Call: call}
}

// WithDetail is a copy of e that says more.
func (e *Error) WithDetail(detail error) *Error {
	c := *e
	c.Detail = detail
	return &c
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s (%d)", e.Name, e.Code)
	if e.Call != "" {
		s = e.Call + ": " + s
	}
	if e.Detail != nil {
		s += ": " + e.Detail.Error()
	}
	return s
}

// Is makes errors.Is(err, cuda.ErrOutOfMemory) true for every call that
// returned that code. A target with a call matches only that call.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Call == "" || t.Call == e.Call)
}

// EndsContext says whether the driver answers every later call in the process with the same
// error: work on the device has failed, Penstock's or the program's.
func (e *Error) EndsContext() bool {
	switch e.Code {
	case 214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719: // ECC, NVLink, and what kernels do
		return true
	}
	return false
}

// Unwrap is the detail.
func (e *Error) Unwrap() error { return e.Detail }

// The codes that Penstock acts upon.
const (
	codeInvalidValue  = 1
	codeOutOfMemory   = 2
	codeDeinitialized = 4
	codeStubLibrary   = 34
	codeNewerDriver   = 36
	codeNoDevice      = 100
	codeInvalidDevice = 101
	codeNotReady      = 600
	codeNotSupported  = 801
	codeMismatch      = 803
)

// Sentinels for errors.Is, one for each code that some part of Penstock tells from the others.
var (
	ErrInvalidValue      = sentinel(codeInvalidValue)
	ErrOutOfMemory       = sentinel(codeOutOfMemory)
	ErrNotInitialized    = sentinel(3)
	ErrDeinitialized     = sentinel(codeDeinitialized)
	ErrInvalidDevice     = sentinel(codeInvalidDevice)
	ErrInvalidContext    = sentinel(201)
	ErrAlreadyMapped     = sentinel(208)
	ErrNotMapped         = sentinel(211)
	ErrInvalidHandle     = sentinel(400)
	ErrNotReady          = sentinel(codeNotReady)
	ErrIllegalAddress    = sentinel(700)
	ErrHostRegistered    = sentinel(712)
	ErrHostNotRegistered = sentinel(713)
	ErrLaunchFailed      = sentinel(719)
	ErrNotPermitted      = sentinel(800)
	ErrNotSupported      = sentinel(codeNotSupported)
	ErrCaptureUnsup      = sentinel(900)
	ErrUnknown           = sentinel(999)
)

func sentinel(code int) *Error { return &Error{Code: code, Name: ResultName(code)} }

// ErrManagedLimit is in the chain of the out-of-memory error that
// MemAllocManaged returns when Options.ManagedLimitBytes would be exceeded.
var ErrManagedLimit = errors.New("managed memory limit")

// ManagedLimitError says by how much an allocation went past the limit.
type ManagedLimitError struct {
	RequestedBytes int64
	LiveBytes      int64
	LimitBytes     int64
}

func (e *ManagedLimitError) Error() string {
	return fmt.Sprintf("%d bytes asked for with %d bytes of managed memory live would exceed the managed limit of %d bytes: raise PENSTOCK_MANAGED_LIMIT or use less",
		e.RequestedBytes, e.LiveBytes, e.LimitBytes)
}

// Is matches ErrManagedLimit.
func (e *ManagedLimitError) Is(target error) bool { return target == ErrManagedLimit }

// Why a driver could not be opened.
var (
	ErrNoLibrary    = errors.New("CUDA driver library not found")
	ErrDriverTooOld = errors.New("CUDA driver too old")
	ErrNoDevice     = errors.New("no CUDA device")
	ErrUnavailable  = errors.New("CUDA driver unavailable")
)

// OpenError says why Open failed and what to do about it, in one line.
type OpenError struct {
	Reason error  // one of ErrNoLibrary, ErrDriverTooOld, ErrNoDevice, ErrUnavailable
	What   string // what was wrong
	Do     string // what to do
	Cause  error  // the driver's error, or nil
}

func (e *OpenError) Error() string { return e.What + ": " + e.Do }

// Unwrap gives errors.Is both the reason and the driver's error.
func (e *OpenError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Cause}
}
