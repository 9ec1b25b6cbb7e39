//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// Attach is a way into the driver's functions.
type Attach string

// Ways in. The zero value takes kprobes, and fentry where the kernel has none.
const (
	AttachKprobe Attach = "kprobe"
	AttachFentry Attach = "fentry"
)

// point is one function of the driver and the programs that watch it.
type point struct {
	symbols     []string // by preference: drivers have renamed it
	entry, exit string   // programs, without the prefix of the way in
	lacks       string   // what is missing without it; "" when nothing works without it
}

var points = []point{
	{symbols: []string{"uvm_perf_event_notify"}, entry: "notify"},
	{symbols: []string{"uvm_va_space_create"}, entry: "create", exit: "created", lacks: "processes that start CUDA later are not told apart"},
	{symbols: []string{"uvm_va_space_destroy"}, entry: "destroy", lacks: "an address space that ends is not noticed"},
	{symbols: []string{"uvm_va_block_evict_chunks"}, entry: "evict", exit: "evicted", lacks: "no times of evictions"},
	// The older name is that of drivers up to 555.
	{symbols: []string{"uvm_parent_gpu_service_replayable_faults", "uvm_gpu_service_replayable_faults"}, entry: "service", exit: "serviced", lacks: "no times of the fault handler"},
}

// loader loads programs so that they share one set of maps.
type loader struct {
	spec  *ebpf.CollectionSpec
	maps  map[string]*ebpf.Map
	links []link.Link
	progs []*ebpf.Program
	// notify sends faults and migrations; the others are about the driver's own work.
	notify *ebpf.Program
}

// sharedMaps are used by more than one program.
var sharedMaps = []string{uvmMapCounters, uvmMapRing, uvmMapSpacesBorn, uvmMapSpans, uvmMapUnwanted}

func newLoader(l uvmLayout, device uint32, ringBytes int) (*loader, error) {
	spec, err := loadUvm()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(spec.Variables[uvmVarAt].Set(l), spec.Variables[uvmVarUvmDevice].Set(device),
		spec.Variables[uvmVarReader].Set(uint32(os.Getpid()))); err != nil {
		return nil, err
	}
	spec.Maps[uvmMapRing].MaxEntries = uint32(ringBytes)
	ld := &loader{spec: spec, maps: map[string]*ebpf.Map{}}
	for _, name := range sharedMaps {
		m, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			ld.close()
			return nil, fmt.Errorf("making the map %s: %w", name, err)
		}
		ld.maps[name] = m
	}
	return ld, nil
}

// load brings one program into the kernel.
func (ld *loader) load(name, attachTo string) (*ebpf.Program, error) {
	spec := ld.spec.Copy()
	program := spec.Programs[name]
	switch program.Type {
	case ebpf.Tracing:
		if attachTo != "" {
			program.AttachTo = attachTo
		}
	case ebpf.Kprobe:
		// Where to attach is said later. With it the library would read all of the
		// kernel's symbols for each program, in search of type information to relocate by.
		program.AttachTo = ""
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{name: program}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: ld.maps})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p := c.DetachProgram(name)
	ld.progs = append(ld.progs, p)
	return p, nil
}

// attach watches a point through one way in. Where a function has had two
// names, the one that exists is taken.
func (ld *loader) attach(p point, how Attach) error {
	var all []error
	for _, symbol := range p.symbols {
		err := ld.attachTo(p, how, symbol)
		if err == nil {
			return nil
		}
		all = append(all, err)
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, btf.ErrNotFound) && !errors.Is(err, ebpf.ErrNotSupported) {
			break
		}
	}
	return errors.Join(all...)
}

func (ld *loader) attachTo(p point, how Attach, symbol string) error {
	for i, program := range []string{p.entry, p.exit} {
		if program == "" {
			continue
		}
		name := map[Attach]string{AttachKprobe: "probe_", AttachFentry: "trace_"}[how] + program
		prog, err := ld.load(name, symbol)
		if err != nil {
			return fmt.Errorf("loading %s: %w", name, err)
		}
		var l link.Link
		switch {
		case how == AttachFentry:
			l, err = link.AttachTracing(link.TracingOptions{Program: prog})
		case i == 0:
			l, err = link.Kprobe(symbol, prog, nil)
		default:
			l, err = link.Kretprobe(symbol, prog, nil)
		}
		if err != nil {
			return fmt.Errorf("attaching %s to %s: %w", name, symbol, err)
		}
		ld.links = append(ld.links, l)
		if program == points[0].entry {
			ld.notify = prog
		}
	}
	return nil
}

// findSpaces runs the iterator over all open files once.
func (ld *loader) findSpaces() error {
	p, err := ld.load(uvmProgFindSpaces, "")
	if err != nil {
		return err
	}
	it, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	r, err := it.Open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	var b [1]byte // it writes nothing: it puts records into the ring
	for {
		if n, err := r.Read(b[:]); n == 0 || err != nil {
			return nil
		}
	}
}

// detach ends the programs; maps stay readable.
func (ld *loader) detach() (first error) {
	for _, l := range ld.links {
		if err := l.Close(); err != nil && first == nil {
			first = err
		}
	}
	ld.links = nil
	return first
}

// missed is how often the kernel skipped the program that sends events, because
// one was running on that processor.
func (ld *loader) missed() (sum uint64) {
	if ld.notify == nil {
		return 0
	}
	st, err := ld.notify.Stats()
	if err != nil {
		return 0 // before Linux 5.12 it is not counted
	}
	return st.RecursionMisses
}

func (ld *loader) close() {
	for _, p := range ld.progs {
		_ = p.Close()
	}
	for _, m := range ld.maps {
		_ = m.Close()
	}
}
