//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Where things lie in the driver's structures, by driver branch, measured in the
// debug information of 535.288.01, 550.90.07, 570.211.01, 580.142 and 595.45.04
// built for Linux 6.1. What is not said is as in the row above. The structures
// of an event and of a fault hold no locks: for them the driver's version is all
// that counts. The address space's place among its events and the bounds of a
// block lie behind locks, which lockdep and PREEMPT_RT make larger; the programs
// notice (Stats.Mismatched).
var layoutRows = []struct {
	major  int
	change func(*uvmLayout)
}{
	{535, func(l *uvmLayout) {
		*l = uvmLayout{
			EventsSpace:    184,
			FaultProcessor: 16, FaultEntry: 24, FaultBatch: 32, FaultDuplicate: 36,
			CpuAddress: 24, CpuWrite: 32,
			MigrationTarget: 16, MigrationSource: 20, MigrationAddress: 24, MigrationBytes: 32, MigrationCause: 44,
			EntryAddress: 0, EntryTime: 8, EntrySpace: 48,
			EntryClientBit: 32 * 8, EntryClientBits: 2,
			EntryTypeBit: 44 * 8, EntryTypeBits: 5,
			EntryAccessBit: 44*8 + 5, EntryAccessBits: 4,
			BlockStart: 48, BlockEnd: 56,
		}
	}},
	{550, func(l *uvmLayout) { l.MigrationAddress, l.MigrationBytes, l.MigrationCause = 32, 40, 52 }},
	{560, func(l *uvmLayout) { l.EntryTypeBits, l.EntryAccessBit = 6, 44*8+6 }},
	{565, func(l *uvmLayout) { l.CpuWrite = 36 }},
	{580, func(l *uvmLayout) {
		l.FaultProcessor, l.FaultEntry, l.FaultBatch, l.FaultDuplicate = 8, 16, 24, 28
		l.CpuAddress, l.CpuWrite, l.MigrationCause = 16, 28, 56
	}},
}

// newestMajor is the newest driver branch whose structures were measured.
const newestMajor = 595

// subProcessorsFrom is the branch since which a processor's number counts the
// partitions of a GPU, eight to each.
const subProcessorsFrom = 550

// layoutOf is the table's layout for a driver branch.
func layoutOf(major int) (uvmLayout, error) {
	var l uvmLayout
	if major < layoutRows[0].major || major > newestMajor {
		return l, fmt.Errorf("the layout of driver %d is not known (known: %d to %d)", major, layoutRows[0].major, newestMajor)
	}
	for _, row := range layoutRows {
		if major >= row.major {
			row.change(&l)
		}
	}
	return l, nil
}

// field is a member to find in the type information.
type field struct {
	typ, path string
	bytes     *uint32 // its place in bytes, or
	bit, bits *uint32 // of a bit field
}

func fieldsOf(l *uvmLayout) []field {
	const (
		events = "uvm_perf_va_space_events_t"
		data   = "uvm_perf_event_data_t"
		entry  = "uvm_fault_buffer_entry_t"
		block  = "uvm_va_block_t"
	)
	return []field{
		{typ: events, path: "va_space", bytes: &l.EventsSpace},
		{typ: data, path: "fault.proc_id", bytes: &l.FaultProcessor},
		{typ: data, path: "fault.gpu.buffer_entry", bytes: &l.FaultEntry},
		{typ: data, path: "fault.gpu.batch_id", bytes: &l.FaultBatch},
		{typ: data, path: "fault.gpu.is_duplicate", bytes: &l.FaultDuplicate},
		{typ: data, path: "fault.cpu.fault_va", bytes: &l.CpuAddress},
		{typ: data, path: "fault.cpu.is_write", bytes: &l.CpuWrite},
		{typ: data, path: "migration.dst", bytes: &l.MigrationTarget},
		{typ: data, path: "migration.src", bytes: &l.MigrationSource},
		{typ: data, path: "migration.address", bytes: &l.MigrationAddress},
		{typ: data, path: "migration.bytes", bytes: &l.MigrationBytes},
		{typ: data, path: "migration.cause", bytes: &l.MigrationCause},
		{typ: entry, path: "fault_address", bytes: &l.EntryAddress},
		{typ: entry, path: "timestamp", bytes: &l.EntryTime},
		{typ: entry, path: "va_space", bytes: &l.EntrySpace},
		{typ: entry, path: "fault_source.client_type", bit: &l.EntryClientBit, bits: &l.EntryClientBits},
		{typ: entry, path: "fault_type", bit: &l.EntryTypeBit, bits: &l.EntryTypeBits},
		{typ: entry, path: "fault_access_type", bit: &l.EntryAccessBit, bits: &l.EntryAccessBits},
		{typ: block, path: "start", bytes: &l.BlockStart},
		{typ: block, path: "end", bytes: &l.BlockEnd},
	}
}

// layoutFromBTF finds every member in a module's type information.
func layoutFromBTF(spec *btf.Spec) (uvmLayout, error) {
	var l uvmLayout
	for _, f := range fieldsOf(&l) {
		if err := f.find(spec); err != nil {
			return uvmLayout{}, fmt.Errorf("the module's type information: %s.%s: %w", f.typ, f.path, err)
		}
	}
	return l, nil
}

// Bounds on what a sound structure has: hostile type information must not lead
// astray. The whole of nvidia-uvm has fewer structures than maxVisits.
const (
	maxOffsetBytes = 1 << 16
	maxVisits      = 10_000
	maxNames       = 16
)

var errNoMember = errors.New("not there")

func (f field) find(spec *btf.Spec) error {
	types, err := spec.AnyTypesByName(f.typ)
	if err != nil {
		return err
	}
	err = errNoMember
	for _, t := range types {
		var at uint64 // bits
		var width uint32
		if at, width, err = member(t, strings.Split(f.path, ".")); err != nil {
			continue
		}
		if at/8 >= maxOffsetBytes {
			return fmt.Errorf("at byte %d, which is not believable", at/8)
		}
		switch {
		case f.bytes == nil && (width == 0 || width > 16):
			return fmt.Errorf("a bit field of %d bits", width)
		case f.bytes != nil && (width != 0 || at%8 != 0):
			return errors.New("a bit field where none was")
		case f.bytes == nil:
			*f.bit, *f.bits = uint32(at), width
		default:
			*f.bytes = uint32(at / 8)
		}
		return nil
	}
	return err
}

// member follows a path of names through structures and unions and gives the
// place in bits and, for a bit field, the width.
func member(t btf.Type, path []string) (at uint64, width uint32, err error) {
	visits := maxVisits
	for i, name := range path {
		m, offset, err := memberNamed(t, name, &visits)
		if err != nil {
			return 0, 0, err
		}
		at += offset
		t = m.Type
		if i == len(path)-1 {
			return at, uint32(m.BitfieldSize), nil
		}
	}
	return 0, 0, errNoMember
}

// memberNamed also looks into members that have no name, as C does.
func memberNamed(t btf.Type, name string, visits *int) (btf.Member, uint64, error) {
	if *visits--; *visits < 0 {
		return btf.Member{}, 0, errors.New("too many structures in each other")
	}
	var members []btf.Member
	switch v := underlying(t).(type) {
	case *btf.Struct:
		members = v.Members
	case *btf.Union:
		members = v.Members
	default:
		return btf.Member{}, 0, errNoMember
	}
	for _, m := range members {
		if m.Name == name {
			return m, uint64(m.Offset), nil
		}
	}
	for _, m := range members {
		if m.Name != "" {
			continue
		}
		if inner, at, err := memberNamed(m.Type, name, visits); err == nil {
			return inner, uint64(m.Offset) + at, nil
		}
	}
	return btf.Member{}, 0, errNoMember
}

// underlying skips names and qualifiers; type information can be circular.
func underlying(t btf.Type) btf.Type {
	for range maxNames {
		switch v := t.(type) {
		case *btf.Typedef:
			t = v.Type
		case *btf.Const:
			t = v.Type
		case *btf.Volatile:
			t = v.Type
		default:
			return t
		}
	}
	return nil
}

// moduleVersion is the loaded driver's version, "" when it cannot be read.
func moduleVersion() string {
	for _, module := range []string{"nvidia_uvm", "nvidia"} {
		if b, err := os.ReadFile("/sys/module/" + module + "/version"); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// branchOf is the first number of a version: 580 of 580.142.
func branchOf(version string) (int, error) {
	head, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(head)
	if err != nil || major < 1 {
		return 0, fmt.Errorf("%q is not a driver version", version)
	}
	return major, nil
}
