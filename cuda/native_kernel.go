//go:build cgo && linux

package cuda

// #include "libcuda.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// LoadModule loads device code into the current context. A refusal carries what
// the driver's compiler says.
func (n *Native) LoadModule(image []byte) (Module, error) {
	const call = "cuModuleLoadDataEx"
	if len(image) == 0 {
		return 0, invalid(call, "empty image")
	}
	text := C.CString(string(image)) // PTX is read up to its NUL
	defer C.free(unsafe.Pointer(text))
	var complaint [4096]C.char
	var m C.uintptr_t
	err := check(C.psk_relaxed_load_module(n.fn, &m, unsafe.Pointer(text), &complaint[0], C.size_t(len(complaint))), call)
	if e, ok := err.(*Error); ok {
		if why := strings.Join(strings.Fields(C.GoString(&complaint[0])), " "); why != "" {
			err = e.WithDetail(errors.New(why))
		}
	}
	return Module(m), err
}

// UnloadModule drops device code, once nothing of it runs.
func (n *Native) UnloadModule(m Module) error {
	return check(C.psk_relaxed_cuModuleUnload(n.fn, C.uintptr_t(m)), "cuModuleUnload")
}

// ModuleFunction finds a kernel by name.
func (n *Native) ModuleFunction(m Module, name string) (Function, error) {
	const call = "cuModuleGetFunction"
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	var f C.uintptr_t
	err := check(C.psk_cuModuleGetFunction(n.fn, &f, C.uintptr_t(m), s), call)
	if e, ok := err.(*Error); ok {
		err = e.WithDetail(fmt.Errorf("kernel %q", name))
	}
	return Function(f), err
}

// Launch queues a kernel with at most 16 parameters of 8 bytes.
func (n *Native) Launch(f Function, grid, block [3]uint32, s Stream, args ...uint64) error {
	const call = "cuLaunchKernel"
	if len(args) > C.PSK_MAX_ARGUMENTS {
		return invalid(call, "%d arguments, at most %d are possible", len(args), int(C.PSK_MAX_ARGUMENTS))
	}
	var values [C.PSK_MAX_ARGUMENTS]C.uint64_t
	var g, b [3]C.uint
	for i, a := range args {
		values[i] = C.uint64_t(a)
	}
	for i := range g {
		g[i], b[i] = C.uint(grid[i]), C.uint(block[i])
	}
	return check(C.psk_launch(n.fn, C.uintptr_t(f), &g[0], &b[0], C.uintptr_t(s), &values[0], C.int(len(args))), call)
}

// LaunchAgain queues a launch that the program has made.
func (n *Native) LaunchAgain(l *RecordedLaunch, s Stream) error {
	call := "cuLaunchKernel"
	if l.Cluster[0] > 0 {
		call = "cuLaunchKernelEx"
	}
	if len(l.Params) == 0 {
		return invalid(call, "a launch without parameters, which was not recorded")
	}
	var g, b, c [3]C.uint
	for i := range g {
		g[i], b[i], c[i] = C.uint(l.Grid[i]), C.uint(l.Block[i]), C.uint(l.Cluster[i])
	}
	params := C.CBytes(l.Params) // the driver takes a pointer to a pointer
	defer C.free(params)
	return check(C.psk_launch_again(n.fn, C.uintptr_t(l.Function), &g[0], &b[0], &c[0], C.uint(l.ClusterPolicy), C.uint(l.SharedBytes), C.uintptr_t(s), params, C.size_t(len(l.Params))), call)
}
