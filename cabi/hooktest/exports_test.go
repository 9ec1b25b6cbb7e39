package hooktest

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var rowPattern = regexp.MustCompile(`(?m)^PSK_(?:SYM|KNOWN|NCCL)\((\w+)(?:, (\w+), (\d+), ([01]))?\)$`)

// table reads a .def file: the exported names in order.
func table(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rowPattern.FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	if lines := strings.Count(string(text), "\nPSK_"); lines != len(names) {
		t.Fatalf("%s: %d rows, %d of them understood", path, lines, len(names))
	}
	return names
}

func dynamicExports(t *testing.T, path string) (names []string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || elf.ST_TYPE(s.Info) == elf.STT_OBJECT && s.Section == elf.SHN_ABS {
			continue
		}
		name := s.Name
		if name == "dlsym" {
			name += "@" + s.Version
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestExports: exactly the intended names leave the library.
func TestExports(t *testing.T) {
	t.Parallel()
	want := append(append(table(t, "../hook/symbols.def"), table(t, "../hook/nccl.def")...),
		"cudaGetDriverEntryPoint", "cudaGetDriverEntryPoint_ptsz", "cudaGetDriverEntryPointByVersion", "cudaGetDriverEntryPointByVersion_ptsz",
		"penstock_hook_attach", "penstock_hook_expect_lists", "penstock_hook_real",
		"dlsym@GLIBC_2.2.5", "dlsym@GLIBC_2.34")
	slices.Sort(want)
	for _, level := range []string{"-O0", "-O2"} {
		got := dynamicExports(t, hook(t, level))
		for _, n := range got {
			if !slices.Contains(want, n) {
				t.Errorf("%s: %s is exported and should not be", level, n)
			}
		}
		for _, n := range want {
			if !slices.Contains(got, n) {
				t.Errorf("%s: %s is not exported", level, n)
			}
		}
	}
}

// TestNoConstructorsNoDependencies: the library does nothing when it is loaded
// and brings nothing along.
func TestNoConstructorsNoDependencies(t *testing.T) {
	t.Parallel()
	f, err := elf.Open(hook(t, "-O2"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// crtbegin's frame_dummy and __do_global_dtors_aux, one pointer each, register no code of ours.
	for _, name := range []string{".init_array", ".fini_array", ".ctors", ".dtors", ".preinit_array"} {
		if s := f.Section(name); s != nil && (s.Size > 8 || strings.HasSuffix(name, "ctors") || strings.HasSuffix(name, "dtors")) {
			t.Errorf("%s has %d bytes: a constructor or destructor was added", name, s.Size)
		}
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
	for _, l := range libs {
		if !slices.Contains(allowed, l) {
			t.Errorf("needs %s", l)
		}
	}
}

// TestTable: the table, the wrappers in the source and the names deliberately left out agree.
func TestTable(t *testing.T) {
	t.Parallel()
	rows := table(t, "../hook/symbols.def")
	known := table(t, "../hook/known.def")
	all := append(slices.Clone(rows), known...)
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Errorf("%s is listed twice", all[i])
		}
	}
	text, err := os.ReadFile("../hook/symbols.def")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rowPattern.FindAllStringSubmatch(string(text), -1) {
		name, base, perThread := m[1], m[2], m[4]
		if !strings.HasPrefix(name, base) {
			t.Errorf("%s: its base name is %s", name, base)
		}
		if own := strings.HasSuffix(name, "_ptsz") || strings.HasSuffix(name, "_ptds"); own != (perThread == "1") {
			t.Errorf("%s: per-thread column is %s", name, perThread)
		}
	}

	// Every wrapper of the source is a row, and the reverse: a missing one fails to link.
	f, err := elf.Open(hook(t, "-O0"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	wrappers := 0
	for _, s := range symbols {
		name, ok := strings.CutPrefix(s.Name, "psk_w_")
		if !ok || s.Section == elf.SHN_UNDEF {
			continue
		}
		wrappers++
		if !slices.Contains(rows, name) {
			t.Errorf("%s has a wrapper and no row in symbols.def", name)
		}
	}
	if wrappers != len(rows) {
		t.Errorf("%d wrappers for %d rows", wrappers, len(rows))
	}

	// The per-thread sibling of a row is a row: a missed variant is a missed launch.
	for _, base := range rows {
		if strings.HasPrefix(base, "cuLaunch") && !strings.HasSuffix(base, "_ptsz") && base != "cuLaunchCooperativeKernelMultiDevice" && !slices.Contains(rows, base+"_ptsz") {
			t.Errorf("%s has no per-thread variant", base)
		}
	}
}

// TestStubExports: the stub has what its version has, and the hook's whole table at the current one.
func TestStubExports(t *testing.T) {
	t.Parallel()
	got := dynamicExports(t, filepath.Join(stub(t, current), "libcuda.so.1"))
	wrapped, beyond := table(t, "../hook/symbols.def"), table(t, "../stub/stub.def")
	for _, n := range beyond {
		if slices.Contains(wrapped, n) {
			t.Errorf("%s is in both tables", n)
		}
	}
	for _, n := range append(wrapped, beyond...) {
		if !slices.Contains(got, n) {
			t.Errorf("the stub lacks %s", n)
		}
	}
	old := dynamicExports(t, filepath.Join(stub(t, "11080"), "libcuda.so.1"))
	for _, n := range []string{"cuLibraryUnload", "cuMemcpyBatchAsync", "cuFuncGetParamInfo", "cuGetProcAddress_v2"} {
		if slices.Contains(old, n) {
			t.Errorf("the stub of CUDA 11.8 has %s", n)
		}
	}
}
