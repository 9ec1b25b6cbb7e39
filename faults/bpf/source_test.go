//go:build linux

package bpf

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/penstock-gpu/penstock/faults"
)

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{RingBytes: 1}, {RingBytes: 1<<20 + 1}, {RingBytes: -1 << 20}, {RingBytes: 1 << 31}, {Attach: "uprobe"},
		{Process: -1}, {Process: 1 << 30}, {Cgroup: "/no/such/group"}, {Cgroup: "["}} {
		_, err := Open(o)
		var u *faults.Unavailable
		if err == nil || errors.As(err, &u) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestUnavailable: without the driver Open says that in one line.
func TestUnavailable(t *testing.T) {
	if _, err := os.Stat("/sys/module/nvidia_uvm"); err == nil {
		t.Skip("nvidia-uvm is loaded here")
	}
	s, err := Open(Options{})
	var u *faults.Unavailable
	if s != nil || !errors.As(err, &u) || u.Why == "" || u.WhatToDo == "" || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, %v", s, err)
	}
}

// TestVerifier: this machine's kernel takes every program that needs no driver, and the iterator runs.
func TestVerifier(t *testing.T) {
	l, err := layoutOf(580)
	if err != nil {
		t.Fatal(err)
	}
	ld, err := newLoader(l, 0, 1<<16)
	if err != nil {
		t.Skipf("BPF is refused here: %v", err)
	}
	defer ld.close()
	for name, program := range ld.spec.Programs {
		if program.Type != ebpf.Kprobe {
			continue
		}
		if _, err := ld.load(name, ""); err != nil {
			var v *ebpf.VerifierError
			if !errors.As(err, &v) {
				t.Skipf("BPF is refused here: %v", err)
			}
			t.Errorf("%s: %+v", name, v)
		}
	}
	if err := ld.findSpaces(); err != nil {
		t.Logf("the iterator: %v", err) // type information of the kernel may be missing
	}
}

// TestObjectsAreAsRecorded vouches for the objects where their clang is not: they, and the sources
// that they were made of, are those of the record.
func TestObjectsAreAsRecorded(t *testing.T) {
	record, err := os.ReadFile("objects.sha256")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(record)) {
		sum, file, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		text, err := os.ReadFile(file)
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || got != sum {
			t.Errorf("%s has the checksum %s, recorded is %s (%v): run go generate ./faults/bpf and write objects.sha256 anew", file, got, sum, err)
		}
		checked++
	}
	if checked != 4 || !strings.Contains(string(record), objectsClang) {
		t.Errorf("%d files are recorded, want 4, made by clang %s", checked, objectsClang)
	}
}

const objectsClang = "14.0.6"

// TestObjectsAreCurrent makes the objects again and compares.
func TestObjectsAreCurrent(t *testing.T) {
	clang, err := exec.Command("clang", "--version").Output()
	if err != nil {
		t.Skipf("no clang on this machine: %v", err)
	}
	if first, _, _ := strings.Cut(string(clang), "\n"); !strings.Contains(first, objectsClang) {
		t.Skipf("the objects were made by clang %s, and others write others; this is %s", objectsClang, first)
	}
	for _, need := range []string{"/usr/include/bpf/bpf_helpers.h", "/usr/include/x86_64-linux-gnu/asm/types.h"} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("%v: install libbpf-dev", err)
		}
	}
	if _, err := exec.LookPath("llvm-strip"); err != nil {
		t.Skip("no llvm-strip on this machine")
	}
	text, err := os.ReadFile("generate.go")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "//go:generate ")
	line, _, _ = strings.Cut(line, "\n")
	folder := t.TempDir()
	args := strings.Fields(strings.Replace(line, " uvm ", " -output-dir "+folder+" uvm ", 1))
	make := exec.Command(args[0], args[1:]...)
	make.Env = append(os.Environ(), "GOPACKAGE=bpf")
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	made, err := filepath.Glob(folder + "/uvm_*")
	if err != nil || len(made) != 4 {
		t.Fatalf("made %q, %v", made, err)
	}
	for _, file := range made {
		fresh, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if committed, err := os.ReadFile(filepath.Base(file)); err != nil || string(committed) != string(fresh) {
			t.Errorf("%s is not what kmod-patch/bpf makes (%v): run go generate ./faults/bpf", filepath.Base(file), err)
		}
	}
}

func write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestNeeds(t *testing.T) {
	d := t.TempDir()
	for text, want := range map[string]string{
		"CapEff:\t000001ffffffffff\n":           "",
		"Name:\tx\nCapEff:\t000000c000000000\n": "",
		"CapEff:\t0000000000200000\n":           "",
		"CapEff:\t0000008000000000\n":           "CAP_PERFMON",
		"CapEff:\t0000000000000000\n":           "CAP_BPF and CAP_PERFMON",
		"CapEff:\tnothing\n":                    "cannot be told",
	} {
		if got := rightsProblem(write(t, d+"/status", text)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q", text, got)
		}
	}
	if lockdownProblem(write(t, d+"/lockdown", "none integrity [confidentiality]\n")) == "" || lockdownProblem(write(t, d+"/lockdown", "none [integrity] confidentiality\n")) != "" {
		t.Error("lockdown")
	}
	symbols := write(t, d+"/kallsyms", "0000000000000000 T uvm_perf_event_notify\t[nvidia_uvm]\n0 t uvm_other [nvidia_uvm]\n")
	if symbolProblem(symbols, "uvm_perf_event_notify") != "" || symbolProblem(symbols, "uvm_perf") == "" || symbolProblem(d+"/nothing", "x") == "" {
		t.Error("symbols")
	}
	for _, c := range []struct {
		how          Attach
		kprobes, btf bool
		missing      bool
	}{{"", true, false, false}, {"", false, true, false}, {"", false, false, true}, {AttachKprobe, false, true, true}, {AttachFentry, true, false, true}, {AttachFentry, false, true, false}} {
		if got := wayInMissing(c.how, c.kprobes, c.btf); got != c.missing || wayInProblem(c.how) == "" {
			t.Errorf("%+v: %t", c, got)
		}
	}
	if majorIn("Character devices:\n  1 mem\n511 nvidia-uvm\n", "nvidia-uvm") != 511 || majorIn("", "nvidia-uvm") != 0 {
		t.Error("major number")
	}
}

func TestProcesses(t *testing.T) {
	proc := t.TempDir()
	add := func(pid, stat, cgroup string) {
		write(t, proc+"/"+pid+"/stat", stat)
		write(t, proc+"/"+pid+"/cgroup", cgroup)
	}
	add("10", "10 (sh) S 1 10", "0::/box\n")
	add("11", "11 (a) b) c ) S 10 11", "0::/box/inner\n")
	add("12", "12 (x) S 11 11", "0::/boxes\n")
	add("20", "20 (y) S 1 20", "4:memory:/box/c\n0::/\n")
	add("30", "damaged", "damaged")
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "0 10 11 12 20 30 99"},
		{Options{Process: 10}, "10 11 12"},
		{Options{Process: 99}, "99"},
		{Options{Cgroup: "/sys/fs/cgroup/box"}, "10 11 20"},
		{Options{Cgroup: "box/"}, "10 11 20"},
		{Options{Process: 10, Cgroup: "/box"}, "10 11"},
		{Options{Cgroup: "/"}, "10 11 12 20"},
	} {
		p := newProcesses(c.o)
		p.proc = proc
		var got []string
		for _, pid := range []uint32{0, 10, 11, 12, 20, 30, 99} {
			if p.wants(pid) {
				got = append(got, map[uint32]string{0: "0", 10: "10", 11: "11", 12: "12", 20: "20", 30: "30", 99: "99"}[pid])
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v: %q, want %q", c.o, s, c.want)
		}
	}
	p := newProcesses(Options{Process: 10})
	p.proc = proc
	p.wants(12)
	p.forget(12)
	if len(p.known) != 0 {
		t.Error("a process that ended is remembered")
	}
}

// TestClockOffset: readings agree with each other far better than a thread is interrupted for.
func TestClockOffset(t *testing.T) {
	first := clockOffset()
	for range 100 {
		if d := clockOffset() - first; d < -1_000_000 || d > 1_000_000 {
			t.Fatalf("two readings differ by %d ns", d)
		}
	}
}
