//go:build linux

package uvm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const patchFile = "../../kmod-patch/nvidia-uvm.patch"

func shell(t *testing.T, folder, script string, args ...string) string {
	t.Helper()
	c := exec.Command("bash", append([]string{"-euc", script, "bash"}, args...)...)
	c.Dir = folder
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// watched is a file's full path. It is opened, so that the test's result is not
// taken from the cache when only the file has changed.
func watched(t *testing.T, file string) string {
	t.Helper()
	if _, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	full, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// applied is a tree with the patch in it. The real sources' only file that it
// touches is stood in for by one of the same beginning.
func applied(t *testing.T) string {
	t.Helper()
	patch := watched(t, patchFile)
	folder := t.TempDir()
	shell(t, folder, `mkdir -p kernel-open/nvidia-uvm
printf '%s\n' 'SOURCES ?=' 'OTHERS ?=' '' 'SOURCES += a.c' >kernel-open/nvidia-uvm/nvidia-uvm-sources.Kbuild
git init -q .
git apply --unidiff-zero --check "$1"
git apply --unidiff-zero "$1"`, patch)
	return folder + "/kernel-open/nvidia-uvm"
}

// TestPatchFile: the patch adds lines and shows none of NVIDIA's.
func TestPatchFile(t *testing.T) {
	text, err := os.ReadFile(patchFile)
	if err != nil {
		t.Fatal(err)
	}
	hunk := false
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "diff --git "):
			hunk = false
		case strings.HasPrefix(line, "@@ "):
			hunk = true
		case hunk && !strings.HasPrefix(line, "+"):
			t.Errorf("line %d adds nothing: %q", i+1, line)
		}
	}
	folder := applied(t)
	kbuild, err := os.ReadFile(folder + "/nvidia-uvm-sources.Kbuild")
	if err != nil || !strings.Contains(string(kbuild), "OTHERS ?=\n\n# Penstock") || !strings.HasSuffix(string(kbuild), "SOURCES += a.c\n") {
		t.Errorf("%v\n%s", err, kbuild)
	}
}

// TestPatchInterface: the patch's own header and this package agree on numbers and places.
func TestPatchInterface(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc on this machine")
	}
	folder := applied(t)
	for name, content := range map[string]string{
		"nvtypes.h":   "#include <stdint.h>\ntypedef uint64_t NvU64; typedef uint32_t NvU32;\n",
		"nvstatus.h":  "typedef uint32_t NV_STATUS;\n",
		"nvCpuUuid.h": "typedef struct { uint8_t uuid[16]; } NvProcessorUuid;\n",
		"main.c": `#include "uvm_penstock.h"
#include <stddef.h>
#include <stdio.h>
#define AT(t, m) (int)offsetof(UVM_PENSTOCK_##t##_PARAMS, m)
#define SIZE(t) (int)sizeof(UVM_PENSTOCK_##t##_PARAMS)
int main(void)
{
	printf("%#x %#x %#x ", UVM_PENSTOCK_VERSION, UVM_PENSTOCK_EVICT, UVM_PENSTOCK_HINT);
	printf("%d %d %d ", UVM_PENSTOCK_INTERFACE, SIZE(VERSION), AT(VERSION, rmStatus));
	printf("%d %d ", SIZE(EVICT), AT(EVICT, rmStatus));
	printf("%d %d %d %d %d\n", SIZE(HINT), AT(HINT, gpu), AT(HINT, hint), AT(HINT, rmStatus), UVM_PENSTOCK_HINT_LAST);
}
`,
	} {
		if err := os.WriteFile(folder+"/"+name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := shell(t, folder, "gcc -Wall -Werror -I. main.c -o main && ./main")
	want := fmt.Sprintf("%#x %#x %#x ", reqPatchVersion, reqPatchEvict, reqPatchHint) +
		fmt.Sprintln(patchVersion, patchVersionBytes, patchVersionStatus, patchEvictBytes, patchEvictStatus,
			patchHintBytes, patchHintGPU, patchHintWhere, patchHintStatus, patchHintLast)
	if got != want {
		t.Errorf("the header says %q, this package %q", got, want)
	}
}

// TestPatchRuns compiles the patch's code against a driver made up in user space
// (testdata/fakeuvm.h) and runs its requests, for each kind of driver that the
// build tells apart. On a GPU the patch has not been run.
func TestPatchRuns(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc on this machine")
	}
	data := filepath.Dir(watched(t, "testdata/fakeuvm.h"))
	watched(t, "testdata/patchrun.c")
	folder := applied(t)
	code, err := os.ReadFile(folder + "/uvm_penstock.c")
	if err != nil {
		t.Fatal(err)
	}
	includes := regexp.MustCompile(`#include "(.*)"`).FindAllStringSubmatch(string(code), -1)
	includes = append(includes, []string{"", "nvtypes.h"}, []string{"", "nvstatus.h"}, []string{"", "nvCpuUuid.h"})
	for _, m := range includes {
		if m[1] == "uvm_penstock.h" {
			continue
		}
		if err := os.WriteFile(folder+"/"+m[1], []byte("#include \"fakeuvm.h\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, flags := range []string{"", "-DUVM_PENSTOCK_OLD_GPUS", "-DUVM_PENSTOCK_OLD_GPUS -DUVM_PENSTOCK_ALLOC_LIST", "-DUVM_PENSTOCK_ALLOC_LIST"} {
		out := shell(t, folder, `gcc -g -fsanitize=address,undefined -Wall -Wno-unused-function $1 -I. -I"$2" "$2"/patchrun.c -o run && ./run`, flags, data)
		if out != "fine\n" {
			t.Errorf("%q: %s", flags, out)
		}
	}
}
