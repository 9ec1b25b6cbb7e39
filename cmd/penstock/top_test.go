package main

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/penstock-gpu/penstock/internal/jobs"
)

// shortTemp is a folder whose name leaves room for a socket's.
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "top")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestTopSaysWhatToDo(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", shortTemp(t))
	t.Setenv("TMPDIR", shortTemp(t))
	refused(t, []string{"there is no process 4194304", "penstock top"}, "top", "--pid", "4194304", "--batch")
	refused(t, []string{"process " + strconv.Itoa(os.Getpid()) + " cannot be asked", "PENSTOCK_TOP=0"}, "top", "--pid", strconv.Itoa(os.Getpid()), "--json")
	refused(t, []string{"--pid", "not a process id"}, "top", "--pid", "x")
	refused(t, []string{"--interval", "write seconds"}, "top", "--interval", "0")
	refused(t, []string{"--count", "not a number of times"}, "top", "--json", "-n", "-1")
	refused(t, []string{"needs a terminal: add --batch"}, "top")
	refused(t, []string{"unexpected argument"}, "top", "4711")
	// One that runs another version.
	l, err := jobs.Listen(jobs.Folders(), func() jobs.Answer { return jobs.Answer{Version: "9.9", Stats: json.RawMessage(`null`)} })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	refused(t, []string{"its answer has no statistics"}, "top", "--pid", strconv.Itoa(os.Getpid()), "--json")
}
