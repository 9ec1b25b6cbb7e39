package repocheck

import (
	"bytes"
	"errors"
	"go/format"
	"io/fs"

	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// tree lists the files of the repository, relative to its root.
func tree(t *testing.T) []string {
	t.Helper()
	git := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir = root
	if out, err := git.Output(); err == nil && len(out) > 0 {
		var files []string
		for _, f := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			// Deleted in the working tree, but not yet in the index.
			if info, err := os.Stat(filepath.Join(root, f)); err == nil && info.Mode().IsRegular() {
				files = append(files, f)
			}
		}
		return files
	}
	var files []string
	skip := []string{"bin", "lib", "build", "__pycache__"}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(entry.Name(), ".") && rel != "." && rel != ".ci"
		if entry.IsDir() && (hidden || slices.Contains(skip, entry.Name())) {
			return filepath.SkipDir
		}
		if entry.Type().IsRegular() {
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// read gives a file's content; nil when it has just gone.
func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return content
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var out []goFile
	for _, file := range tree(t) {
		if !strings.HasSuffix(file, ".go") {
			continue
		}
		content := read(t, file)
		if content == nil {
			continue
		}
		f, err := parseGo(file, content)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		out = append(out, f)
	}
	if len(out) < 20 {
		t.Fatalf("only %d Go files found from %s: the check looks at the wrong place", len(out), root)
	}
	return out
}

func TestEveryPackageTellsItsStory(t *testing.T) {
	packages := map[string][]goFile{}
	for _, f := range goFiles(t) {
		if !f.isTest() {
			packages[f.folder] = append(packages[f.folder], f)
		}
	}
	for folder, files := range packages {
		if problem := docProblem(files); problem != "" {
			t.Errorf("%s: %s", folder, problem)
		}
	}
}

func TestGofmt(t *testing.T) {
	for _, file := range tree(t) {
		if !strings.HasSuffix(file, ".go") {
			continue
		}
		content := read(t, file)
		formatted, err := format.Source(content)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		} else if !bytes.Equal(content, formatted) {
			t.Errorf("%s: not formatted, run gofmt -w", file)
		}
	}
}

func TestCoreStaysSmall(t *testing.T) {
	all := importsOf(goFiles(t))
	for _, folder := range core {
		if _, exists := all[folder]; !exists {
			t.Errorf("%s: no such package: correct the list in rules.go", folder)
		}
		if trail := all.pathTo(folder, notInCore); trail != nil {
			t.Errorf("%s must not import %s: %s", folder, trail[len(trail)-1], strings.Join(trail, " -> "))
		}
	}
}

func TestLibraryStaysSmall(t *testing.T) {
	all := importsOf(goFiles(t))
	for _, folder := range []string{"cabi", "cmd/penstock"} {
		trail := all.pathTo(folder, notInLibrary)
		if library := folder == "cabi"; library && trail != nil {
			t.Errorf("libpenstock.so must not have %s: %s", trail[len(trail)-1], strings.Join(trail, " -> "))
		} else if !library && trail == nil {
			t.Errorf("%s has none of %v: correct the list in rules.go", folder, notInLibrary)
		}
	}
}

func TestDirectionOfImports(t *testing.T) {
	for folder, imported := range importsOf(goFiles(t)) {
		allowed, listed := mayImport[folder]
		for _, i := range imported {
			target, ok := local(i)
			if !ok {
				continue
			}
			if strings.HasPrefix(target, "cmd/") {
				t.Errorf("%s imports the command %s", folder, target)
			}
			if listed && !slices.Contains(allowed, target) {
				t.Errorf("%s imports %s: it may import %v only (rules.go)", folder, target, allowed)
			}
		}
	}
}

func TestNoWorkplaceInTheTree(t *testing.T) {
	for _, file := range tree(t) {
		content := read(t, file)
		if !isText(content) || strings.HasPrefix(file, "internal/repocheck/") {
			continue
		}
		if problem := workplaceProblem(file, content); problem != "" {
			t.Error(problem)
		}
	}
}

func TestNoConflictMarkers(t *testing.T) {
	marker := regexp.MustCompile(`(?m)^(<{7}|>{7}) \S`)
	for _, file := range tree(t) {
		if content := read(t, file); isText(content) && marker.Match(content) {
			t.Errorf("%s: a merge left %q in it", file, marker.Find(content))
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	// What git has, and not what happens to lie on this disk: an empty folder is not in a clone.
	exists := map[string]bool{}
	files := tree(t)
	for _, file := range files {
		for ; file != "."; file = path.Dir(file) {
			exists[file] = true
		}
	}
	seen := 0
	for _, file := range files {
		if !strings.HasSuffix(file, ".md") {
			continue
		}
		for _, target := range linksOf(file, read(t, file)) {
			seen++
			if !exists[target] {
				t.Errorf("%s: link to %s, which is not in the repository", file, target)
			}
		}
		for _, target := range sectionsOf(file, read(t, file)) {
			page, section, _ := strings.Cut(target, "#")
			if exists[page] && !anchorsOf(read(t, page))[section] {
				t.Errorf("%s: link to %s, a section that is not there", file, target)
			}
		}
	}
	if seen == 0 {
		t.Error("no links found in any Markdown file: the check looks at the wrong place")
	}
}

func TestArchitectureNamesWhatIsThere(t *testing.T) {
	seen := 0
	for _, x := range thingsIn(read(t, architecture)) {
		seen++
		if _, err := os.Stat(filepath.Join(root, x.file)); err != nil {
			t.Errorf("%s names %s, which is not there", architecture, x.file)
		} else if x.name != "" && !declares(x.file, read(t, x.file), x.name) {
			t.Errorf("%s names %s in %s, which declares no such thing", architecture, x.name, x.file)
		}
	}
	if seen < 40 {
		t.Errorf("only %d names found in %s: the check looks at the wrong place", seen, architecture)
	}
}

// The build must work where only a module proxy can be reached.
func TestBuildNamesNoHosts(t *testing.T) {
	host := regexp.MustCompile(`[a-z]+://|\b(curl|wget)\b`)
	for _, file := range tree(t) {
		name := filepath.Base(file)
		if name != "Makefile" && !strings.HasSuffix(name, ".mk") && !strings.HasPrefix(file, ".ci/") {
			continue
		}
		if m := host.Find(read(t, file)); m != nil {
			t.Errorf("%s: contains %q: the build fetches nothing by address", file, m)
		}
	}
}

func TestScriptsRun(t *testing.T) {
	for _, file := range tree(t) {
		if !bytes.HasPrefix(read(t, file), []byte("#!")) {
			continue
		}
		info, err := os.Stat(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o100 == 0 {
			t.Errorf("%s: starts with #! but is not executable: chmod +x, or drop the line", file)
		}
	}
}

// filesOf reads the files of one folder, by name.
func filesOf(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, file := range tree(t) {
		if path.Dir(file) == folder {
			files[path.Base(file)] = read(t, file)
		}
	}
	return files
}

func TestFloors(t *testing.T) {
	for _, folder := range inFloors {
		for _, problem := range floorProblems(folder, filesOf(t, folder)) {
			t.Error(problem)
		}
	}
}

// The engines in a process are named where one of them is chosen, and nowhere else.
func TestEnginesAreChosenOnce(t *testing.T) {
	for _, problem := range namedElsewhere(goFiles(t)) {
		t.Error(problem)
	}
}

// A message that a user meets is in docs/troubleshooting.md, and what that page explains is still said.
func TestTroubleshootingIsCurrent(t *testing.T) {
	entries := messagesIn(read(t, troubleshooting))
	if len(entries) < 50 {
		t.Fatalf("only %d messages found in %s: the check looks at the wrong place", len(entries), troubleshooting)
	}
	stands := make([]bool, len(entries))
	for _, file := range tree(t) {
		ext := path.Ext(file)
		if !slices.Contains([]string{".go", ".py", ".c", ".cpp"}, ext) || isTestFile(file) {
			continue
		}
		source := read(t, file)
		for _, line := range strings.Split(string(source), "\n") {
			for i, pieces := range entries {
				stands[i] = stands[i] || explains(pieces, line)
			}
		}
		for _, message := range said(source) {
			if !slices.ContainsFunc(entries, func(pieces []string) bool { return explains(pieces, message) }) {
				t.Errorf("%s says %q, which %s does not explain", file, message, troubleshooting)
			}
		}
	}
	for i, pieces := range entries {
		if !stands[i] {
			t.Errorf("%s explains %q, which nothing says any more", troubleshooting, strings.Join(pieces, " … "))
		}
	}
}

// What a newcomer is asked to read stays short: the README, and docs without the page of options, which is generated.
func TestDocumentationStaysShort(t *testing.T) {
	if lines := bytes.Count(read(t, "README.md"), []byte("\n")); lines > readmeLines {
		t.Errorf("README.md has %d lines, at most are %d: what explains more belongs into docs", lines, readmeLines)
	}
	total := 0
	for _, file := range tree(t) {
		if path.Dir(file) == "docs" && path.Ext(file) == ".md" && path.Base(file) != "options.md" {
			total += words(read(t, file))
		}
	}
	if total > docsWords {
		t.Errorf("docs has %d words, at most are %d", total, docsWords)
	}
}
