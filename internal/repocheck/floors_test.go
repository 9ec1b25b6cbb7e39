package repocheck

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// aHouse is a folder without a fault.
func aHouse() map[string][]byte {
	return map[string][]byte{
		"README.md": []byte("# A house\n\n## Floors\n\n| floor | files | |\n| --- | --- | --- |\n" +
			"| roof | `map` | all |\n| rooms | `launch` `wait` | two |\n| cellar | `ring` | one |\n| ground | `shared` | |\n\n## Else\n\n| a | `b` | |\n"),
		"shared.h": []byte("#define PSK_LIKELY(x) (x)\n"),
		"ring.h":   []byte("#include \"shared.h\"\nvoid psk_put(int x);\nextern int psk_head;\ntypedef struct psk_ring {\n    int n;\n} psk_ring;\nenum { PSK_FULL };\n"),
		"ring.c":   []byte("#include \"ring.h\"\nint psk_head = 1;\nstatic int own(void) { return 0; }\nvoid psk_put(int x) {\n    if (PSK_LIKELY(x)) own();\n}\n"),
		"wait.h":   []byte("#include \"ring.h\"\nvoid psk_wait(psk_ring *r);\n"),
		"wait.c":   []byte("/* psk_substitute is only spoken of */\n#include \"wait.h\"\nvoid psk_wait(psk_ring *r) { psk_put(r->n); }\n"),
		"launch.c": []byte("#include \"ring.h\"\n#include \"wait.h\"\nCUresult psk_w_cuLaunch(void) {\n    psk_wait(0);\n    return PSK_FULL;\n}\n"),
		"map.c":    []byte("#define PSK_SYM(name) extern char psk_w_##name[];\n#include \"symbols.def\"\n"),
	}
}

func TestFloorProblems(t *testing.T) {
	for _, test := range []struct {
		name        string
		file, after string // what is put at the end of a file
		want        string
	}{
		{"fine", "", "", ""},
		{"upward", "ring.c", "#include \"wait.h\"\n", "a/ring.c: needs wait, which is above it"},
		{"upward by a header", "ring.h", "#include \"wait.h\"\n", "a/ring.h: needs wait, which is above it"},
		{"circle on a floor", "wait.c", "#include \"launch.h\"\n", "a circle: launch -> wait -> launch"},
		{"by the names of all wrappers", "ring.c", "#define PSK_SYM(name) extern char psk_w_##name[];\n#include \"symbols.def\"\n", "a/ring.c: needs launch, which is above it"},
		{"not included", "map.c", "static int f(void) { return psk_head; }\n", "a/map.c: uses psk_head without including ring.h"},
		{"not included, in assembly", "map.c", "asm(\"call psk_put\");\n", "a/map.c: uses psk_put without including ring.h"},
		{"not included, a constant", "map.c", "static int f(void) { return PSK_FULL; }\n", "a/map.c: uses PSK_FULL without including ring.h"},
		{"by a header of a header", "map.c", "#include \"wait.h\"\nstatic psk_ring r;\n", "a/map.c: uses psk_ring without including ring.h"},
		{"declared for itself", "map.c", "void psk_put(int x);\n", "a/map.c: declares psk_put itself"},
		{"declared within a function", "map.c", "static void f(void) {\n    CUresult cuCtxSynchronize(void);\n}\n", "a/map.c: declares cuCtxSynchronize itself"},
		{"in no header", "ring.c", "int psk_more(void) { return 1; }\n", "a/ring.c: psk_more is neither static nor in ring.h"},
		{"a variable in no header", "ring.c", "int psk_more[4];\n", "a/ring.c: psk_more is neither static nor in ring.h"},
		{"in another's header", "launch.c", "void psk_wait(psk_ring *r) { }\n", "a/launch.c: defines psk_wait, which wait.h declares"},
		{"on no floor", "more.c", "\n", "a/more.c: on no floor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := aHouse()
			if test.file != "" {
				files[test.file] = append(files[test.file], test.after...)
			}
			if test.name == "circle on a floor" {
				files["launch.h"] = []byte("void psk_launch(void);\n")
			}
			got := floorProblems("a", files)
			found := slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, test.want) })
			if test.want == "" && len(got) > 0 || test.want != "" && !found {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestFloorsMustBeTold(t *testing.T) {
	files := aHouse()
	delete(files, "wait.c")
	delete(files, "wait.h")
	files["launch.c"] = []byte("CUresult psk_w_cuLaunch(void) {\n    return 0;\n}\n")
	if got, want := floorProblems("a", files), []string{"a/README.md: names wait, which is not there"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	files["README.md"] = []byte("# A house\n")
	if got := floorProblems("a", files); len(got) != 1 || !strings.Contains(got[0], "no table of floors") {
		t.Errorf("got %q, want one problem: no table", got)
	}
}

// The rule sees a fault that is planted into the hook itself, whatever file it is in.
func TestFloorsOfTheHook(t *testing.T) {
	files := filesOf(t, "cabi/hook")
	for _, plant := range []struct{ file, text, want string }{
		{"ring.c", "#include \"issue.h\"\n", "ring.c: needs issue, which is above it"},
		{"stay.c", "#include \"nccl.h\"\n", "a circle"},
		{"address.c", "#include \"map.h\"\n", "address.c: needs map, which is above it"},
		{"launch.c", "static bool f(void) { return psk_have_memops(); }\n", "launch.c: uses psk_have_memops without including progress.h"},
	} {
		planted := maps.Clone(files)
		planted[plant.file] = append(slices.Clone(files[plant.file]), plant.text...)
		got := floorProblems("cabi/hook", planted)
		if !slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, plant.want) }) {
			t.Errorf("with %q in %s: got %q, want %q", plant.text, plant.file, got, plant.want)
		}
	}
}
