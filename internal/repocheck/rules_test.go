package repocheck

import (
	"slices"
	"strings"
	"testing"
)

const story = "Package x does this. It does so because of that, which took us a while to find out. " +
	"Nothing in it blocks, and no lock is held while another is taken. Its one caveat is that " +
	"it has a caveat, as everything in this world has one.\n"

func TestDocProblem(t *testing.T) {
	file := func(name, doc string) goFile { return goFile{folder: "x", name: name, pkg: "x", doc: doc} }
	for _, test := range []struct {
		name  string
		files []goFile
		want  string
	}{
		{"fine", []goFile{file("a.go", ""), file("doc.go", story)}, ""},
		{"only file", []goFile{file("a.go", story)}, ""},
		{"none", []goFile{file("a.go", "")}, "no package comment"},
		{"elsewhere", []goFile{file("a.go", story), file("b.go", "")}, "move it to doc.go"},
		{"two", []goFile{file("a.go", story), file("doc.go", story)}, "keep one"},
		{"short", []goFile{file("doc.go", "Package x does this. And that. Too.\n")}, "3 sentences and 7 words"},
		{"one long sentence", []goFile{file("doc.go", "Package x "+strings.Repeat("does this ", 40)+".\n")}, "1 sentences"},
		{"wrong start", []goFile{file("doc.go", "This "+story)}, "starts with"},
	} {
		got := docProblem(test.files)
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestPathTo(t *testing.T) {
	source := func(file, text string) goFile {
		f, err := parseGo(file, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	all := importsOf([]goFile{
		source("trace/a.go", "package trace\nimport \"fmt\"\n"),
		source("trace/a_test.go", "package trace\nimport \"net/http\"\n"),
		source("evict/a.go", "package evict\nimport (\n\"fmt\"\n\""+modulePath+"/web\"\n)\n"),
		source("web/a.go", "package web\nimport (\n\""+modulePath+"/evict\"\n\"github.com/spf13/cobra\"\n)\n"),
	})
	if got := all.pathTo("trace", notInCore); got != nil {
		t.Errorf("trace: got %v, want none (tests may import what they like)", got)
	}
	if got, want := all.pathTo("evict", notInCore), []string{"evict", "web", "github.com/spf13/cobra"}; !slices.Equal(got, want) {
		t.Errorf("evict: got %v, want %v", got, want)
	}
}

func TestWorkplaceProblem(t *testing.T) {
	here := "/wor" + "k/main"
	shared := "../shar" + "ed/traces"
	for _, test := range []struct {
		file, content string
		bad           bool
	}{
		{"a.go", "// fine\n", false},
		{"a.go", "dir := \"" + here + "\"\n", true},
		{"README.md", "see (" + here + ")", true},
		{"README.md", here, true},
		{"a.go", "frame/wor" + "k/x and home/wor" + "k/x", false},
		{"a.go", "the.libr" + "ary", true},
		{"a.go", "a libr" + "ary of functions", false},
		{"a_test.go", shared, false},
		{"test_run.py", shared, false},
		{"a.go", shared, true},
		{"a_test.go", here, true},
	} {
		if got := workplaceProblem(test.file, []byte(test.content)); (got != "") != test.bad {
			t.Errorf("%s %q: got %q, want a problem: %v", test.file, test.content, got, test.bad)
		}
	}
}

func TestLinksOf(t *testing.T) {
	text := "[a](b.md) [c](d/e.md#part) [web](https://x.test/y) [here](#top)\n![p](p.svg \"title\") <img src=\"q.svg\"> <a href=\"../r\">"
	got := linksOf("docs/x.md", []byte(text))
	want := []string{"docs/b.md", "docs/d/e.md", "docs/p.svg", "docs/q.svg", "r"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseGoRefusesBrokenFiles(t *testing.T) {
	if _, err := parseGo("a.go", []byte("pakage x")); err == nil {
		t.Error("a file that is not Go was accepted")
	}
}

func TestDeclares(t *testing.T) {
	goSource := "package x\n\ntype Box[T any] struct{}\n\nfunc (b *Box[T]) Open() {}\n\nfunc Close() { Open() }\n"
	cSource := "#define LEAST 4\nstatic inline int front_take(struct front *f,\n    int n)\n{\n    return other(n);\n}\nint declared(int n);\n"
	for _, c := range []struct {
		file, name string
		want       bool
	}{
		{"x.go", "Box", true}, {"x.go", "Box.Open", true}, {"x.go", "Close", true}, {"x.go", "Open", false}, {"x.go", "Box.Close", false},
		{"x.h", "front_take", true}, {"x.h", "LEAST", true}, {"x.h", "other", false}, {"x.h", "front", false}, {"x.h", "declared", false},
	} {
		source := goSource
		if c.file == "x.h" {
			source = cSource
		}
		if got := declares(c.file, []byte(source), c.name); got != c.want {
			t.Errorf("%s in %s: %v, want %v", c.name, c.file, got, c.want)
		}
	}
	page := []byte("`um/live` and `um/live/live.go:Live.Malloc`, `Check` and libpenstock.so; `go doc ./um`")
	if got, want := thingsIn(page), []thing{{"um/live", ""}, {"um/live/live.go", "Live.Malloc"}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSections(t *testing.T) {
	page := "# The job's CPU\n\n```\n# a comment\n```\n\n## The [hook](x.md): `Go`, C_1\n"
	got := anchorsOf([]byte(page))
	for _, want := range []string{"the-jobs-cpu", "the-hook-go-c_1"} {
		if !got[want] {
			t.Errorf("no %s in %v", want, got)
		}
	}
	if len(got) != 2 {
		t.Errorf("got %v, want two", got)
	}
	links := sectionsOf("docs/x.md", []byte("[a](#top) [b](../b.md#part) [c](c.md) [d](https://x.test/y.md#z) [e](e.go#L1)"))
	if want := []string{"docs/x.md#top", "b.md#part"}; !slices.Equal(links, want) {
		t.Errorf("got %v, want %v", links, want)
	}
}

func TestNamedElsewhere(t *testing.T) {
	planted := goFile{folder: "um/live", name: "alloc.go", imports: []string{"fmt", modulePath + "/um/live/paged"}}
	test, chooser := planted, planted
	test.name, chooser.name = "alloc_test.go", "choose.go"
	if got := namedElsewhere([]goFile{test, chooser, planted}); len(got) != 1 || !strings.HasPrefix(got[0], "um/live/alloc.go imports um/live/paged") {
		t.Errorf("%q", got)
	}
}
