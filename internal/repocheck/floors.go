package repocheck

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// inFloors are the folders of C whose files stand in floors: the README of each has the table.
var inFloors = []string{"cabi/hook", "cabi/stub"}

// offered are the names that files of C offer each other. All else in them is static, or an entry point of CUDA or NCCL.
var offered = regexp.MustCompile(`\b(?:psk|PSK|stub|STUB)_\w+`)

// A wrapper of the hook is found by the table symbols.def, not by a header.
const wrapperPrefix = "psk_w_"

var (
	cComment     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	cLineEnd     = regexp.MustCompile(`[ \t]+\n`)
	cInclude     = regexp.MustCompile(`(?m)^#include "([^"]+)"`)
	cDefine      = regexp.MustCompile(`(?m)^#define (\w+)`)
	cFunction    = regexp.MustCompile(`(?m)^[A-Za-z_][\w \t*]*?\b(\w+)\(.*$`)
	cVariable    = regexp.MustCompile(`(?m)^[A-Za-z_][\w \t*]*[ *](\w+)(?:\[[^\]]*\])?(?: __attribute__.*)?(?: = .*)?;$`)
	cTypedef     = regexp.MustCompile(`(?m)^(?:typedef [^{}\n]*|\}.*?)\b(\w+);$`)
	cEnum        = regexp.MustCompile(`(?s)\benum(?: \w+)? \{(.*?)\}`)
	cPrototype   = regexp.MustCompile(`(?m)^[ \t]*(?:extern )?[A-Za-z_][\w \t*]*[ *](\w+)\([^{}"]*\);$`)
	cNoPrototype = regexp.MustCompile(`^(?:static|typedef|return|else)\b`)
	// allWrappers matches what makes a name of every row of symbols.def, in C or in assembly.
	allWrappers = regexp.MustCompile(wrapperPrefix + `(?:##|" ?#)`)
	floorsRow   = regexp.MustCompile("(?m)^\\| [^|]+ \\| ((?:`\\w+` ?)+)\\|")
)

// cFile is what the floors' rule needs to know of one file.
type cFile struct {
	text     string // without comments
	includes []string
}

func parseC(source []byte) cFile {
	f := cFile{text: cLineEnd.ReplaceAllString(cComment.ReplaceAllString(string(source), ""), "\n")}
	for _, m := range cInclude.FindAllStringSubmatch(f.text, -1) {
		f.includes = append(f.includes, m[1])
	}
	return f
}

// declared are the names that a header offers.
func (f cFile) declared() []string {
	var names []string
	for _, pattern := range []*regexp.Regexp{cDefine, cFunction, cVariable, cTypedef} {
		for _, m := range pattern.FindAllStringSubmatch(f.text, -1) {
			names = append(names, m[1])
		}
	}
	for _, m := range cEnum.FindAllStringSubmatch(f.text, -1) {
		names = append(names, offered.FindAllString(m[1], -1)...)
	}
	return slices.DeleteFunc(names, func(n string) bool { return !offered.MatchString(n) })
}

// defined are the functions and variables of a source file that others could be linked with.
func (f cFile) defined() []string {
	var names []string
	for _, pattern := range []*regexp.Regexp{cFunction, cVariable} {
		for _, m := range pattern.FindAllStringSubmatch(f.text, -1) {
			prototype := pattern == cFunction && strings.HasSuffix(m[0], ";")
			forAssembly := strings.HasPrefix(m[0], "__attribute__((used")
			if !prototype && !forAssembly && !strings.HasPrefix(m[0], "static ") && !strings.HasPrefix(m[0], "typedef ") && !strings.HasPrefix(m[0], "PSK_TLS ") {
				names = append(names, m[1])
			}
		}
	}
	return slices.DeleteFunc(names, func(n string) bool { return !offered.MatchString(n) || strings.HasPrefix(n, wrapperPrefix) })
}

// foreign are the functions that a source file declares for itself, though another may define them.
func (f cFile) foreign() []string {
	var names []string
	for _, m := range cPrototype.FindAllStringSubmatch(f.text, -1) {
		line := strings.TrimSpace(m[0])
		if !cNoPrototype.MatchString(line) && !strings.HasPrefix(m[1], wrapperPrefix) {
			names = append(names, m[1])
		}
	}
	return names
}

// floorsOf reads the table of a README: the floor of each file, by its name without an ending. The first row is the highest.
func floorsOf(readme []byte) (floors map[string]int, lowest int) {
	floors = map[string]int{}
	_, section, _ := strings.Cut(string(readme), "\n## Floors\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := floorsRow.FindAllStringSubmatch(section, -1)
	for i, row := range rows {
		for _, name := range strings.Fields(strings.ReplaceAll(row[1], "`", " ")) {
			floors[name] = i
		}
	}
	return floors, len(rows) - 1
}

func stem(file string) string { return strings.TrimSuffix(path.Base(file), path.Ext(file)) }

// floorProblems says where the files of a folder, by name, do not stand in the floors that its README tells: a file looks
// up, files are in a circle, or one uses what it does not include.
func floorProblems(folder string, files map[string][]byte) []string {
	var problems []string
	report := func(format string, args ...any) { problems = append(problems, folder+"/"+fmt.Sprintf(format, args...)) }
	floors, lowest := floorsOf(files["README.md"])
	if len(floors) == 0 {
		report("README.md: no table of floors under \"## Floors\"")
		return problems
	}
	sources := map[string]cFile{}
	for name, content := range files {
		if ext := path.Ext(name); ext != ".c" && ext != ".h" {
			continue
		}
		sources[name] = parseC(content)
		if _, placed := floors[stem(name)]; !placed {
			report("%s: on no floor of README.md", name)
		}
	}
	owner := map[string]string{} // of a name: the file whose header declares it
	for name := range floors {
		header, isHeader := sources[name+".h"]
		if _, isSource := sources[name+".c"]; !isHeader && !isSource {
			report("README.md: names %s, which is not there", name)
		}
		for _, n := range header.declared() {
			owner[n] = name
		}
	}

	arrows := map[string][]string{} // from file to file, by name without an ending
	arrow := func(file, to string) {
		from := stem(file)
		if from == to || slices.Contains(arrows[from], to) {
			return
		}
		arrows[from] = append(arrows[from], to)
		if floors[to] < floors[from] {
			report("%s: needs %s, which is above it", file, to)
		}
	}
	var wrapping []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if path.Ext(name) == ".c" && strings.Contains(sources[name].text, "CUresult "+wrapperPrefix) {
			wrapping = append(wrapping, stem(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		f, own := sources[name], stem(name)
		for _, include := range f.includes {
			if path.Ext(include) != ".h" {
				continue
			}
			if _, placed := floors[stem(include)]; placed && path.Dir(include) == "." {
				arrow(name, stem(include))
			}
		}
		if path.Ext(name) == ".c" && slices.Contains(f.includes, "symbols.def") && allWrappers.MatchString(f.text) {
			for _, to := range wrapping {
				arrow(name, to)
			}
		}
		with := append(slices.Clone(f.includes), sources[own+".h"].includes...)
		missing := map[string]string{}
		for _, n := range offered.FindAllString(f.text, -1) {
			from, isOffered := owner[n]
			if isOffered && from != own && floors[from] != lowest && !slices.Contains(with, from+".h") {
				missing[from] = n
			}
		}
		for _, from := range slices.Sorted(maps.Keys(missing)) {
			report("%s: uses %s without including %s.h", name, missing[from], from)
		}
		if path.Ext(name) != ".c" {
			continue
		}
		for _, n := range f.defined() {
			if from, ok := owner[n]; !ok {
				report("%s: %s is neither static nor in %s.h", name, n, own)
			} else if from != own && floors[from] != lowest {
				report("%s: defines %s, which %s.h declares", name, n, from)
			}
		}
		for _, n := range f.foreign() {
			report("%s: declares %s itself: include the header of the file that has it", name, n)
		}
	}
	if circle := circleIn(arrows); circle != nil {
		report("%s: a circle: %s", circle[0], strings.Join(circle, " -> "))
	}
	slices.Sort(problems)
	return problems
}

// circleIn finds a way from a file back to itself; nil when there is none.
func circleIn(arrows map[string][]string) []string {
	done := map[string]bool{}
	var way []string
	var walk func(at string) []string
	walk = func(at string) []string {
		if i := slices.Index(way, at); i >= 0 {
			return append(slices.Clone(way[i:]), at)
		}
		if done[at] {
			return nil
		}
		way = append(way, at)
		for _, to := range arrows[at] {
			if circle := walk(to); circle != nil {
				return circle
			}
		}
		way = way[:len(way)-1]
		done[at] = true
		return nil
	}
	for _, at := range slices.Sorted(maps.Keys(arrows)) {
		if circle := walk(at); circle != nil {
			return circle
		}
	}
	return nil
}
