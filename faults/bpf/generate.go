//go:build linux

package bpf

// The objects are committed; make them again with Debian's clang, llvm and libbpf-dev.
// TestObjectsAreCurrent does, where that clang is installed.
//go:generate go tool bpf2go -go-package bpf -target amd64,arm64 -type record uvm ../../kmod-patch/bpf/uvm.bpf.c -- -I../../kmod-patch/bpf -I/usr/include/x86_64-linux-gnu -Wall -Werror
