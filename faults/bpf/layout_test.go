//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestLayoutOf(t *testing.T) {
	for _, major := range []int{0, 470, 534, 596, 1 << 30} {
		if _, err := layoutOf(major); err == nil {
			t.Errorf("a layout for driver %d", major)
		}
	}
	// The cause of a migration, whose place changed most often, and what moved with it.
	for _, c := range []struct {
		major                                       int
		cause, address, entry, cpuWrite, accessBits uint32
	}{
		{535, 44, 24, 24, 32, 357}, {545, 44, 24, 24, 32, 357},
		{550, 52, 32, 24, 32, 357}, {555, 52, 32, 24, 32, 357},
		{560, 52, 32, 24, 32, 358},
		{565, 52, 32, 24, 36, 358}, {570, 52, 32, 24, 36, 358}, {575, 52, 32, 24, 36, 358},
		{580, 56, 32, 16, 28, 358}, {590, 56, 32, 16, 28, 358}, {595, 56, 32, 16, 28, 358},
	} {
		l, err := layoutOf(c.major)
		if err != nil {
			t.Fatal(err)
		}
		if l.MigrationCause != c.cause || l.MigrationAddress != c.address || l.FaultEntry != c.entry || l.CpuWrite != c.cpuWrite || l.EntryAccessBit != c.accessBits {
			t.Errorf("driver %d: %+v", c.major, l)
		}
	}
}

func TestBranchOf(t *testing.T) {
	for version, want := range map[string]int{"580.142": 580, "535.288.01": 535, "595": 595, "": 0, "x.1": 0, "-5.1": 0, ".": 0} {
		if got, err := branchOf(version); got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v", version, got, err)
		}
	}
}

// driverTypes is the driver's structures of branch 580, in Go's terms, with the
// place of one member to be chosen.
func driverTypes(causeAt btf.Bits) []btf.Type {
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	u64 := &btf.Int{Name: "unsigned long", Size: 8}
	pointer := &btf.Pointer{Target: u64}
	at := func(name string, bytes int, t btf.Type) btf.Member {
		return btf.Member{Name: name, Type: t, Offset: btf.Bits(bytes * 8)}
	}
	bit := func(name string, at, width btf.Bits) btf.Member {
		return btf.Member{Name: name, Type: u32, Offset: at, BitfieldSize: width}
	}
	source := &btf.Struct{Size: 12, Members: []btf.Member{bit("client_type", 0, 2)}}
	entry := &btf.Struct{Name: "uvm_fault_buffer_entry_struct", Size: 96, Members: []btf.Member{
		at("fault_address", 0, u64), at("timestamp", 8, u64), at("fault_source", 32, source),
		bit("fault_type", 352, 6), bit("fault_access_type", 358, 4), at("va_space", 48, pointer),
	}}
	gpu := &btf.Struct{Size: 16, Members: []btf.Member{at("buffer_entry", 0, pointer), at("batch_id", 8, u32), at("is_duplicate", 12, u32)}}
	cpu := &btf.Struct{Size: 24, Members: []btf.Member{at("fault_va", 0, u64), at("is_write", 12, u32)}}
	either := &btf.Union{Size: 24, Members: []btf.Member{at("gpu", 0, gpu), at("cpu", 0, cpu)}}
	fault := &btf.Struct{Size: 40, Members: []btf.Member{at("block", 0, pointer), at("proc_id", 8, u32), at("", 16, either)}}
	migration := &btf.Struct{Size: 72, Members: []btf.Member{
		at("dst", 16, u32), at("src", 20, u32), at("address", 32, u64), at("bytes", 40, u64), {Name: "cause", Type: u32, Offset: causeAt},
	}}
	data := &btf.Union{Size: 72, Members: []btf.Member{at("fault", 0, fault), at("migration", 0, migration)}}
	events := &btf.Struct{Size: 192, Members: []btf.Member{at("va_space", 184, pointer)}}
	block := &btf.Struct{Name: "uvm_va_block_struct", Size: 64, Members: []btf.Member{at("start", 48, u64), at("end", 56, u64)}}
	named := func(name string, t btf.Type) btf.Type { return &btf.Typedef{Name: name, Type: t} }
	return []btf.Type{
		named("uvm_fault_buffer_entry_t", entry), named("uvm_perf_event_data_t", data),
		named("uvm_perf_va_space_events_t", events), named("uvm_va_block_t", block),
	}
}

func marshal(t testing.TB, types []btf.Type) []byte {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestLayoutFromBTF(t *testing.T) {
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(marshal(t, driverTypes(56*8))))
	if err != nil {
		t.Fatal(err)
	}
	want, err := layoutOf(580)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := layoutFromBTF(spec); err != nil || got != want {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, want)
	}
}

// TestLayoutFromBadBTF: what is missing or unbelievable is named.
func TestLayoutFromBadBTF(t *testing.T) {
	types := driverTypes(56 * 8)
	for name, c := range map[string]struct {
		types []btf.Type
		want  string
	}{
		"no type":      {types[:1], "uvm_perf_va_space_events_t"},
		"far":          {driverTypes(1 << 28), "not believable"},
		"between":      {driverTypes(56*8 + 3), "bit field"},
		"wrong member": {append(types[:0:0], types[0], types[1], types[2], &btf.Typedef{Name: "uvm_va_block_t", Type: &btf.Int{Name: "int", Size: 4}}), "uvm_va_block_t.start"},
	} {
		spec, err := btf.LoadSpecFromReader(bytes.NewReader(marshal(t, c.types)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := layoutFromBTF(spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Structures in each other without end cannot be written, but read.
	endless := &btf.Struct{Name: "s", Size: 8}
	endless.Members = []btf.Member{{Type: endless}, {Type: endless}}
	if _, _, err := member(endless, []string{"x"}); err == nil {
		t.Error("found a member in an endless structure")
	}
}

// TestTableAgainstDriver compares the table with the driver's own type
// information: files VERSION.btf, made from compiled sources with
// `pahole --btf_encode_detached VERSION.btf nvidia-uvm.o`.
func TestTableAgainstDriver(t *testing.T) {
	folder := os.Getenv("PENSTOCK_UVM_BTF")
	if folder == "" {
		t.Skip("PENSTOCK_UVM_BTF names no folder with type information of compiled drivers")
	}
	files, err := filepath.Glob(folder + "/*.btf")
	if err != nil || len(files) == 0 {
		t.Fatalf("no .btf files in %s (%v)", folder, err)
	}
	for _, file := range files {
		major, err := branchOf(strings.TrimSuffix(filepath.Base(file), ".btf"))
		if err != nil {
			t.Fatal(err)
		}
		spec, err := btf.LoadSpec(file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := layoutFromBTF(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := layoutOf(major); err != nil || got != want {
			t.Errorf("%s: %v\ntable  %+v\ndriver %+v", file, err, got, want)
		}
	}
}

func FuzzLayoutFromBTF(f *testing.F) {
	f.Add(marshal(f, driverTypes(56*8)))
	f.Add(marshal(f, driverTypes(1<<28)))
	f.Add([]byte{0x9f, 0xeb, 1, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		// The header's claims: the library sets memory aside for them before it looks further.
		// (The kernel has checked what it publishes.)
		if len(raw) < 24 || len(raw) > 1<<16 || slices.ContainsFunc([]int{4, 8, 12, 16, 20}, func(at int) bool {
			return int(binary.LittleEndian.Uint32(raw[at:])) > len(raw)
		}) {
			return
		}
		spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
		if err != nil {
			return
		}
		l, err := layoutFromBTF(spec)
		if err != nil {
			return
		}
		for _, field := range fieldsOf(&l) {
			if field.bytes != nil && *field.bytes >= maxOffsetBytes || field.bit != nil && (*field.bit/8 >= maxOffsetBytes || *field.bits == 0 || *field.bits > 16) {
				t.Errorf("%s.%s: %+v", field.typ, field.path, l)
			}
		}
	})
}
