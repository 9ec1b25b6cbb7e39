package repocheck

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// aParted is a package without a fault.
func aParted() (parted, map[string][]byte) {
	p := parted{folder: "a", owns: map[string]string{"left": "l", "right": "r"}, chooser: "choose.go", data: []string{"Counts"}}
	return p, map[string][]byte{
		"a.go":          []byte("package a\n\ntype way interface{ move(slow bool) }\n\ntype House struct {\n\tway way\n\tcounts *Counts\n\tlane int\n}\n"),
		"choose.go":     []byte("package a\n\nvar ways = []way{left{}, right{}}\n"),
		"left.go":       []byte("package a\n\nimport _ \"" + modulePath + "/l\"\n\ntype left struct{ h *House }\n\ntype Counts struct{ N int }\n"),
		"left_moves.go": []byte("package a\n\nconst lane = 1\n\nfunc (l left) move(slow bool) { l.h.lane = lane }\n"),
		"right.go":      []byte("package a\n\ntype right struct{}\n\nfunc (right) move(slow bool) { _ = slow }\n\nfunc (right) left() Counts { return Counts{} }\n"),
	}
}

func TestPartProblems(t *testing.T) {
	for _, test := range []struct {
		name        string
		file, after string // what is put at the end of a file
		want        string
	}{
		{"fine", "", "", ""},
		{"one part of another", "right.go", "func f() any { return left{} }\n", "a/right.go: uses left of the part left"},
		{"a constant", "right.go", "var n = lane + 1\n", "a/right.go: uses lane of the part left"},
		{"in a type", "a.go", "var all []*right\n", "a/a.go: uses right of the part right"},
		{"what is asked for a way", "a.go", "func is(w way) bool { _, ok := w.(left); return ok }\n", "a/a.go: uses left of the part left"},
		{"a method of what is common", "left.go", "func (h *House) swap() {}\n", "a/left.go: House.swap is a method of what is not of the part left"},
		{"a package of a part", "a.go", "", "a/a.go: imports l, which is for the part left"},
		{"a part that is gone", "right.go", "", "a: no file of the part right"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, files := aParted()
			switch test.name {
			case "a package of a part":
				files["a.go"] = []byte("package a\n\nimport \"" + modulePath + "/l\"\n\nvar x = l.X\n")
			case "a part that is gone":
				delete(files, "right.go")
			default:
				if test.file != "" {
					files[test.file] = append(files[test.file], test.after...)
				}
			}
			got := p.problems(files)
			if test.want == "" && len(got) > 0 || test.want != "" && !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, test.want) }) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The rule sees a fault that is planted into um/live itself.
func TestPartsOfLive(t *testing.T) {
	p := inParts[0]
	files := filesOf(t, p.folder)
	maps.DeleteFunc(files, func(name string, _ []byte) bool {
		return !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go")
	})
	for file, text := range map[string]string{
		"alloc.go":          "func (l *Live) isExplicit() bool { _, ok := l.engine.(*swap); return ok }\n",
		"paged_faults.go":   "var _ = swap{}\n",
		"explicit_grant.go": "func (e *swap) other() *paged { return nil }\n",
		"explicit_alloc.go": "func (l *Live) more() {}\n",
	} {
		planted := maps.Clone(files)
		planted[file] = append(slices.Clone(files[file]), text...)
		if got := p.problems(planted); len(got) != 1 || !strings.HasPrefix(got[0], "um/live/"+file) {
			t.Errorf("with %q in %s: got %q", text, file, got)
		}
	}
}
