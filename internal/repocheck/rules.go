package repocheck

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const modulePath = "github.com/penstock-gpu/penstock"

// core are the packages that decide and move. They know nothing of how people
// or other programs look at them, in themselves and in all they import.
var core = []string{"cuda", "cuda/sim", "cuda/kernels", "trace", "trace/phase", "trace/roles", "evict", "correlate", "prefetch", "prefetch/again"}

// notInCore are the imports that core packages go without. A trailing slash
// stands for everything below.
var notInCore = []string{"net/http", "net/http/", "html/template", "github.com/spf13/", "github.com/prometheus/", "github.com/charmbracelet/"}

// notInLibrary is what libpenstock.so goes without: a training process carries neither the simulator nor the oracle, nor what
// tests put in its place. The command has the first two, and finds the bound of a job by what the job leaves in its report.
var notInLibrary = []string{modulePath + "/cuda/sim", modulePath + "/oracle", modulePath + "/oracle/", modulePath + "/replay", modulePath + "/report", modulePath + "/um/live/livetest"}

// mayImport are the packages of this module that a package may import, for
// those where DESIGN's direction of dependence is easily lost. Packages not
// listed are free.
var mayImport = map[string][]string{
	"cuda":             {},
	"cuda/sim":         {"cuda"},
	"trace":            {"internal/pickle"},
	"trace/phase":      {},
	"trace/roles":      {"trace"},
	"correlate":        {"trace"},
	"evict":            {"correlate", "internal/heap", "trace"},
	"prefetch":         {"correlate", "evict", "internal/heap", "trace"},
	"prefetch/again":   {},
	"pool":             {"cuda", "internal/segments", "trace", "pool/front", "pool/plan", "pool/planned", "pool/stitch"},
	"faults":           {"trace"},
	"faults/analyse":   {"trace", "trace/phase"},
	"faults/record":    {"faults", "faults/analyse", "faults/bpf", "trace"},
	"faults/symbol":    {},
	"faults/view":      {"faults/analyse", "faults/symbol", "internal/size", "trace/phase"},
	"faults/export":    {"faults/analyse", "faults/symbol", "internal/size", "trace"},
	"faults/metrics":   {"faults/analyse"},
	"faults/watch":     {"faults", "faults/analyse", "faults/record", "trace"},
	"faults/top":       {"faults/analyse", "faults/symbol", "faults/view", "internal/screen", "internal/size"},
	"faults/bpf":       {"faults", "trace"},
	"oracle":           {"trace"},
	"oracle/rewrite":   {"prefetch/again", "trace", "trace/roles"},
	"internal/jobs":    {},
	"pool/plan":        {"trace"},
	"um":               {"cuda", "evict", "correlate", "trace", "internal/segments", "internal/size", "um/internal/queue"},
	"um/live/bound":    {"trace"},
	"um/live/timeline": {"trace/phase"},
	"um/live/stats":    {"internal/size", "um/live/bound"},
	"um/live/process":  {"cuda", "faults", "internal/hook", "internal/hostmem", "pool/stitch", "um", "um/live/stats", "um/live/timeline"},
	"um/managed":       {"cuda", "evict", "prefetch", "correlate", "trace", "internal/segments", "internal/size", "um", "um/internal/queue"},

	"pool/front":           {"cuda"},
	"pool/planned":         {"cuda", "internal/segments", "pool/follow", "pool/front", "pool/plan", "pool/stitch"},
	"pool/stitch":          {"cuda", "internal/segments"},
	"pool/follow":          {"cuda", "pool/plan"},
	"um/explicit":          {"cuda", "cuda/kernels", "evict", "prefetch", "correlate", "trace", "internal/segments", "internal/size", "um", "um/internal/queue"},
	"cuda/kernels":         {"cuda"},
	"um/explicit/hostpool": {"cuda", "internal/hostmem", "internal/size"},
}

// onlyIn are packages that one file names, and no other that is no test.
var onlyIn = map[string]string{
	"um/live/paged":   "um/live/choose.go",
	"um/live/swapped": "um/live/choose.go",
}

// namedElsewhere says which other files name them.
func namedElsewhere(files []goFile) (problems []string) {
	for _, f := range files {
		for _, i := range f.imports {
			folder, ok := local(i)
			if in := onlyIn[folder]; ok && in != "" && !f.isTest() && path.Join(f.folder, f.name) != in {
				problems = append(problems, fmt.Sprintf("%s/%s imports %s: %s alone may (rules.go)", f.folder, f.name, folder, in))
			}
		}
	}
	return problems
}

// The workplace patterns are put together so that this file does not match itself.
var workplace = regexp.MustCompile(`(^|[^A-Za-z0-9_.])/wor` + `k/|\.libr` + `ary\b|bash_` + `jobs`)

// sharedFolder is data that tests may use where it exists; nothing else may.
var sharedFolder = regexp.MustCompile(`\.\./shar` + `ed\b`)

// workplaceWords are what either pattern needs.
var workplaceWords = [][]byte{[]byte("/wor" + "k/"), []byte(".libr" + "ary"), []byte("bash_" + "jobs"), []byte("../shar" + "ed")}

// A package's story has at least this much to it.
const (
	docSentences = 3
	docWords     = 35
)

// goFile is what the rules need to know of one file.
type goFile struct {
	folder, name string
	pkg          string
	doc          string
	imports      []string
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

func parseGo(file string, source []byte) (goFile, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return goFile{}, err
	}
	f := goFile{folder: path.Dir(file), name: path.Base(file), pkg: tree.Name.Name, doc: docOf(tree)}
	for _, spec := range tree.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return goFile{}, err
		}
		f.imports = append(f.imports, name)
	}
	return f, nil
}

func docOf(tree *ast.File) string {
	if tree.Doc == nil {
		return ""
	}
	return tree.Doc.Text()
}

var sentenceEnd = regexp.MustCompile(`[.!?:]["')\]]*(\s|$)`)

// docProblem says what a package's documentation lacks; "" when it is fine.
// files are those of one package, without tests.
func docProblem(files []goFile) string {
	var with []goFile
	hasDocFile := false
	for _, f := range files {
		if f.doc != "" {
			with = append(with, f)
		}
		hasDocFile = hasDocFile || f.name == "doc.go"
	}
	if len(with) == 0 {
		return "no package comment: write one in doc.go"
	}
	if len(with) > 1 {
		return fmt.Sprintf("package comments in %s and in %s: keep one, in doc.go", with[0].name, with[1].name)
	}
	f := with[0]
	// A command's comment stands in main.go, and a package of one file needs no second one.
	if f.name != "doc.go" && f.name != "main.go" && (hasDocFile || len(files) > 1) {
		return fmt.Sprintf("package comment in %s: move it to doc.go", f.name)
	}
	want := "Package " + f.pkg + " "
	if f.pkg != "main" && !strings.HasPrefix(f.doc, want) {
		return fmt.Sprintf("the package comment starts with %.30q, not with %q", f.doc, want)
	}
	sentences, words := len(sentenceEnd.FindAllString(f.doc, -1)), len(strings.Fields(f.doc))
	if sentences < docSentences || words < docWords {
		return fmt.Sprintf("the package comment has %d sentences and %d words: tell what the package does, its invariants and its caveats (at least %d and %d)",
			sentences, words, docSentences, docWords)
	}
	return ""
}

// imports are the non-test imports of each folder of the module.
type imports map[string][]string

func importsOf(files []goFile) imports {
	all := imports{}
	for _, f := range files {
		if !f.isTest() {
			all[f.folder] = append(all[f.folder], f.imports...)
		}
	}
	return all
}

// local gives the folder of a package of this module.
func local(importPath string) (folder string, ok bool) {
	return strings.CutPrefix(importPath, modulePath+"/")
}

// pathTo finds how a folder comes to import something of the list, through this
// module's packages; nil when it does not.
func (all imports) pathTo(folder string, unwanted []string) []string {
	type step struct{ trail []string }
	seen := map[string]bool{folder: true}
	queue := []step{{[]string{folder}}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, imported := range all[at.trail[len(at.trail)-1]] {
			trail := append(append([]string(nil), at.trail...), imported)
			for _, u := range unwanted {
				if imported == u || strings.HasSuffix(u, "/") && strings.HasPrefix(imported, u) {
					return trail
				}
			}
			if next, ok := local(imported); ok && !seen[next] {
				seen[next] = true
				trail[len(trail)-1] = next
				queue = append(queue, step{trail})
			}
		}
	}
	return nil
}

// isText is git's own test: no NUL early in the file.
func isText(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), 8000)], 0) < 0
}

// workplaceProblem names the first line that points to the machine the tree was written on.
func workplaceProblem(file string, content []byte) string {
	name := path.Base(file)
	if !slices.ContainsFunc(workplaceWords, func(w []byte) bool { return bytes.Contains(content, w) }) {
		return "" // as nearly always, and much faster than the patterns
	}
	isTest := strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test_") || strings.HasPrefix(name, "conftest")
	for i, line := range strings.Split(string(content), "\n") {
		if m := workplace.FindString(line); m != "" {
			return fmt.Sprintf("%s:%d: contains %q, which exists on one machine only", file, i+1, m)
		}
		if m := sharedFolder.FindString(line); m != "" && !isTest {
			return fmt.Sprintf("%s:%d: refers to %q: only tests may, and they skip without it", file, i+1, m)
		}
	}
	return ""
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)[^)]*\)`)
	htmlLink     = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
)

var (
	heading    = regexp.MustCompile("(?m)^#{1,6} +(.*?) *$")
	fenced     = regexp.MustCompile("(?ms)^```.*?^```")
	linkTarget = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchorsOf are the sections of a Markdown file, by the names that GitHub gives them in links.
func anchorsOf(content []byte) map[string]bool {
	anchors := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(content), ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkTarget.ReplaceAllString(m[1], "$1"))
		anchors[name] = true
	}
	return anchors
}

// sectionsOf are the sections that a Markdown file refers to: file#section, relative to the root.
func sectionsOf(file string, content []byte) []string {
	var out []string
	for _, m := range markdownLink.FindAllSubmatch(content, -1) {
		target, section, found := strings.Cut(string(m[1]), "#")
		switch {
		case !found || strings.Contains(target, "://"):
		case target == "":
			out = append(out, file+"#"+section)
		case strings.HasSuffix(target, ".md"):
			out = append(out, path.Join(path.Dir(file), target)+"#"+section)
		}
	}
	return out
}

// linksOf are the files that a Markdown file refers to, relative to the root.
func linksOf(file string, content []byte) []string {
	var out []string
	for _, pattern := range []*regexp.Regexp{markdownLink, htmlLink} {
		for _, m := range pattern.FindAllSubmatch(content, -1) {
			target, _, _ := strings.Cut(string(m[1]), "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			out = append(out, path.Join(path.Dir(file), target))
		}
	}
	return out
}
