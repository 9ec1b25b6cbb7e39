package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestErrorMatching(t *testing.T) {
	oom := NewError(2, "cuMemAlloc")
	wrapped := fmt.Errorf("growing the pool: %w", oom)
	tests := []struct {
		name   string
		err    error
		target error
		want   bool
	}{
		{"same code", oom, ErrOutOfMemory, true},
		{"through a wrapper", wrapped, ErrOutOfMemory, true},
		{"another code", oom, ErrNotReady, false},
		{"the same call", oom, NewError(2, "cuMemAlloc"), true},
		{"another call", oom, NewError(2, "cuMemCreate"), false},
		{"detail", oom.WithDetail(&ManagedLimitError{}), ErrManagedLimit, true},
		{"detail keeps the code", oom.WithDetail(&ManagedLimitError{}), ErrOutOfMemory, true},
		{"no detail on the original", oom, ErrManagedLimit, false},
		{"open error reason", &OpenError{Reason: ErrNoDevice, Cause: NewError(100, "cuInit")}, ErrNoDevice, true},
		{"open error cause", &OpenError{Reason: ErrNoDevice, Cause: NewError(999, "cuInit")}, ErrUnknown, true},
		{"open error without cause", &OpenError{Reason: ErrNoLibrary}, ErrNoDevice, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := errors.Is(tt.err, tt.target); got != tt.want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", tt.err, tt.target, got, tt.want)
			}
		})
	}
	var e *Error
	if !errors.As(wrapped, &e) || e.Call != "cuMemAlloc" || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("errors.As gave %+v", e)
	}
}

func TestErrorText(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{NewError(700, "cuStreamSynchronize"), "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)"},
		{NewError(31337, "cuNew"), "cuNew: CUDA_ERROR_31337 (31337)"},
		{ErrNotSupported, "CUDA_ERROR_NOT_SUPPORTED (801)"},
		{NewError(1, "f").WithDetail(errors.New("why")), "f: CUDA_ERROR_INVALID_VALUE (1): why"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	limit := (&ManagedLimitError{RequestedBytes: 7, LiveBytes: 90, LimitBytes: 95}).Error()
	for _, number := range []string{"7 bytes", "90 bytes", "95 bytes"} {
		if !strings.Contains(limit, number) {
			t.Errorf("%q does not name %s", limit, number)
		}
	}
}

func TestResultNames(t *testing.T) {
	seen := map[string]int{}
	for code, name := range resultNames {
		if other, dup := seen[name]; dup {
			t.Errorf("%s is both %d and %d", name, code, other)
		}
		seen[name] = code
		if !strings.HasPrefix(name, "CUDA_") {
			t.Errorf("%d is called %q", code, name)
		}
	}
	for _, s := range []*Error{ErrInvalidValue, ErrOutOfMemory, ErrNotInitialized, ErrDeinitialized, ErrInvalidDevice, ErrInvalidContext, ErrNotReady, ErrNotSupported, ErrUnknown} {
		if _, known := resultNames[s.Code]; !known {
			t.Errorf("sentinel with unknown code %d", s.Code)
		}
	}
}

func TestParseDriverVersion(t *testing.T) {
	tests := []struct {
		text  string
		want  string
		major int
	}{
		{"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc version 12.3.0\n", "535.104.05", 535},
		{"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (builder@host)  Tue\n", "580.159.03", 580},
		{"NVRM version: something else\nGCC version: gcc 12.3.0\n", "", 0},
		{"", "", 0},
		{"a.b 1. .2 3.4", "3.4", 3},
	}
	for _, tt := range tests {
		got := parseDriverVersion(tt.text)
		if got != tt.want || driverMajor(got) != tt.major {
			t.Errorf("%q: got %q major %d, want %q major %d", tt.text, got, driverMajor(got), tt.want, tt.major)
		}
	}
}

func TestManagedEngineError(t *testing.T) {
	if err := ManagedEngineError(Capabilities{ManagedMemory: true, ConcurrentManagedAccess: true}); err != nil {
		t.Errorf("able device: %v", err)
	}
	for _, c := range []Capabilities{{}, {ManagedMemory: true}} {
		err := ManagedEngineError(c)
		var o *OpenError
		if !errors.As(err, &o) || o.Do == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if !runningUnderWSL("Linux version 5.15.90.1-microsoft-standard-WSL2 (gcc)") || runningUnderWSL("Linux version 6.8.0-generic (gcc)") {
		t.Error("WSL is told apart wrongly")
	}
}

func FuzzParseDriverVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 12.3.0\n")
	f.Add("1.2")
	f.Add(" . .. 5. .5 \n580.1")
	f.Fuzz(func(t *testing.T, text string) {
		v := parseDriverVersion(text)
		if v == "" {
			return
		}
		if first, _, _ := strings.Cut(text, "\n"); !strings.Contains(first, v) || strings.Trim(v, "0123456789.") != "" || !strings.Contains(v, ".") {
			t.Errorf("%q: version %q", text, v)
		}
		if driverMajor(v) < 0 {
			t.Errorf("%q: major %d", v, driverMajor(v))
		}
	})
}
