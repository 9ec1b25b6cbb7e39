package ranks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Process is a process of a job.
type Process struct {
	Several bool // the job has several processes
	Rank    int  // in the whole job, from 0; -1: the environment does not say
	Local   int  // processes of the job on this host, at least 1
}

// FromEnviron reads a list of NAME=value. Of a name given twice the first counts, as for C's getenv.
func FromEnviron(environ []string) Process {
	values := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if _, seen := values[name]; !seen {
			values[name] = value
		}
	}
	number := func(name string, least int) (int, bool) {
		n, err := strconv.Atoi(values[name])
		return n, err == nil && n >= least
	}
	p := Process{Several: values["PENSTOCK_WORKER"] == "1", Rank: -1, Local: 1}
	if size, ok := number("WORLD_SIZE", 1); ok {
		p.Several, p.Local = size > 1, size
		if rank, ok := number("RANK", 0); ok && rank < size {
			p.Rank = rank
		}
	}
	if n, ok := number("LOCAL_WORLD_SIZE", 1); ok {
		p.Local = n
	}
	return p
}

// Label tells what this process says and writes from what the others of its job
// do: "rank1", or where the rank is not known "gpu1"; "" outside of a job of several.
func (p Process) Label(device int) string {
	switch {
	case !p.Several:
		return ""
	case p.Rank < 0:
		return fmt.Sprintf("gpu%d", device)
	}
	return fmt.Sprintf("rank%d", p.Rank)
}

// Path is the file of the process with a label where path was asked for: the label
// comes before the extension, r.json becomes r.rank1.json.
func Path(path, label string) string {
	if path == "" || label == "" {
		return path
	}
	stem, ext := split(path)
	return stem + "." + label + ext
}

// split cuts a path before its extension. A name that begins with a dot has none there.
func split(path string) (stem, ext string) {
	name := filepath.Base(path)
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		ext = name[i:]
	}
	return strings.TrimSuffix(path, ext), ext
}

var label = regexp.MustCompile(`^\.(rank|gpu)[0-9]+$`)

// Files are the files there are of those that the processes of a job write where
// path was asked for, path itself first.
func Files(path string) ([]string, error) {
	var found []string
	if _, err := os.Stat(path); err == nil {
		found = append(found, path)
	}
	stem, ext := split(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		middle, ok := strings.CutPrefix(e.Name(), filepath.Base(stem))
		middle, isExt := strings.CutSuffix(middle, ext)
		if ok && isExt && label.MatchString(middle) {
			found = append(found, stem+middle+ext)
		}
	}
	return found, err
}
