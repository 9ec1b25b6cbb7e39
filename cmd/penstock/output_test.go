package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A file is complete or as it was: nothing of a failed attempt stays, neither in it nor beside it.
func TestOutputIsCompleteOrAsItWas(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "page"), filepath.Join(dir, "link")
	write(t, path, "old", 0o644)
	if err := os.Symlink("page", link); err != nil {
		t.Fatal(err)
	}
	text := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			io.WriteString(w, text)
			return err
		}
	}
	noInk := errors.New("no ink")
	if err := writeOutput("out", path, text("half a p", noInk)); err != noInk {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "old" {
		t.Errorf("the old file is now %q", b)
	}
	if err := writeOutput("out", link, text("new", nil)); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "new" {
		t.Errorf("through a link: %q", b)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}

// A recording, and what is made of it, may have a secret on its command line.
func TestOutputIsOfItsUserAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan")
	if err := writeOutput("out", path, func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// What is no regular file is written to, never replaced.
func TestOutputToADevice(t *testing.T) {
	dir := t.TempDir()
	full, pipe := filepath.Join(dir, "full"), filepath.Join(dir, "pipe")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	recording, in := faultRecording(t, "run.pstrace", 3, nil), filepath.Join(dir, "in.csv")
	write(t, in, "id,lower,upper,size\na,0,4,8\n", 0o600)
	for flag, args := range map[string][]string{
		"--out ":    {"plan", "--trace", shipped(t)},
		"--out":     {"plan", "--csv", in},
		"--html":    {"report", "fragmentation", shipped(t)},
		"--output":  {"faults", "report", recording, "--format", "html"},
		"--output ": {"faults", "export", recording, "--format", "csv"},
	} {
		flag = strings.TrimSpace(flag)
		refused(t, []string{flag, full, "no space left on device: name another file"}, append(args, flag, full)...)
		read := make(chan string)
		go func() {
			b, _ := os.ReadFile(pipe)
			read <- string(b)
		}()
		if status, _, stderr := command(t, append(args, flag, pipe)...); status != 0 {
			t.Errorf("%q: status %d, %q", args, status, stderr)
			unix.Unlink(pipe)
			continue
		}
		if text := <-read; text == "" {
			t.Errorf("%q: nothing came through the pipe", args)
		}
	}
	for path, kind := range map[string]os.FileMode{full: os.ModeSymlink, pipe: os.ModeNamedPipe} {
		if st, err := os.Lstat(path); err != nil || st.Mode().Type() != kind {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFullStandardOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	recording := faultRecording(t, "run.pstrace", 3, nil)
	for _, args := range [][]string{
		{"version"}, {"plan", "--trace", shipped(t)}, {"plan", "--trace", shipped(t), "--json"}, {"report", "fragmentation", shipped(t)},
		{"faults", "report", recording}, {"faults", "explain", recording}, {"faults", "diff", recording, recording},
		{"faults", "export", recording, "--format", "jsonl"}, {"faults", "top", "--batch", recording},
	} {
		var stderr strings.Builder
		if status := execute(args, full, &stderr); status != statusUsage || !strings.Contains(stderr.String(), "no space left on device") {
			t.Errorf("%q: status %d, %q", args, status, stderr.String())
		}
	}
}

// An interrupt ends what reads a file, also where the file has no end.
func TestInterruptedReading(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	write(t, out, "old", 0o600)
	for _, args := range [][]string{
		{"faults", "explain"}, {"faults", "report", "--output", out}, {"faults", "diff", faultRecording(t, "a.pstrace", 1, nil)},
		{"faults", "export", "--format", "chrome", "--output", out}, {"faults", "export", "--format", "pprof", "--output", out},
		{"report", "fragmentation"}, {"plan", "--out", out, "--trace"}, {"simulate", "--ratio", "2", "--trace"}, {"bench"},
	} {
		pipe := filepath.Join(t.TempDir(), "endless") // a new one each time: what was left behind still reads the last
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		writer := make(chan *os.File, 1)
		go func() {
			w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the command to read
			if err != nil {
				t.Error(err)
			}
			writer <- w
			unix.Kill(os.Getpid(), unix.SIGINT)
		}()
		status, _, stderr := command(t, append(args, pipe)...)
		(<-writer).Close()
		if status != statusInterrupted || stderr != "penstock: interrupted\n" {
			t.Errorf("%q: status %d, %q", args, status, stderr)
		}
	}
	if b, _ := os.ReadFile(out); string(b) != "old" {
		t.Errorf("the old file is now %q", b)
	}
	if left, _ := filepath.Glob(out + "*"); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
