package hooktest

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// probeOf builds the replay probe: the hook with the probe's files in the place of launch.c.
func probeOf(t *testing.T) string {
	return once(t, "replays/libreplays.so", func(path string) error {
		files, err := filepath.Glob("../hook/*.c")
		if err != nil {
			return err
		}
		var src []string
		for _, f := range files {
			if name := filepath.Base(f); name != "launch.c" {
				src = append(src, name)
			}
		}
		probe, err := filepath.Glob("../../bench/probe/replays*.c")
		if err != nil {
			return err
		}
		for _, f := range probe {
			src = append(src, filepath.Join("../../bench/probe", filepath.Base(f)))
		}
		return command("make", "-s", "-C", "../hook", "OUT="+path, "CFLAGS=-O0 -g", "SRC="+strings.Join(src, " "))
	})
}

// TestReplayProbe checks what the probe says of kernels of each kind.
func TestReplayProbe(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "trials")
	run(t, probeOf(t), stub(t, current), []string{"STUB_SCRIBBLE=1"}, program(t, "replays"), out)
	type line struct {
		Function, Trial, Launch                *uint32
		Name, Fresh, Changed, Same, Again, Not string
		Zeros, Direct                          string
		Unnamed, Stray                         int
		Blocks                                 [][4]uint64
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := map[uint32]string{}
	var trials, not []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		switch {
		case l.Function != nil:
			names[*l.Function] = l.Name
		case l.Trial != nil:
			stray := ""
			if l.Stray > 0 {
				stray = " stray"
			}
			unnamed := ""
			if l.Unnamed > 0 {
				unnamed = " unnamed"
			}
			foreign := ""
			for _, b := range l.Blocks {
				if b[3] != 0 {
					foreign = " foreign"
				}
			}
			trials = append(trials, strings.Join([]string{names[*l.Trial], l.Fresh, l.Changed, l.Same, l.Again, l.Zeros, l.Direct}, " ")+foreign+unnamed+stray)
		case l.Launch != nil && l.Not != "":
			not = append(not, names[*l.Launch]+": "+l.Not)
		}
	}
	// Of each block: fresh, changed; then whether its clone became the same, again, from zeros, with only what changes cloned.
	want := []string{
		"vec_add 100 100 111 111 111 111",
		"touch_add 0 1 1 1 0 1",
		"touch_add 0 1 1 1 0 1",
		"unsteady 0 1 0 0 0 0",
		"steady 0 1 1 1 1 1",
		"vec_add 00 10 11 11 01 11 foreign",
		"table_add 0 0 1 1 1 1 unnamed stray",
	}
	if got := strings.Join(trials, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("trials:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	if got, want := strings.Join(not, "\n"), "touch_add: enough\nopaque_add: opaque\nempty: names nothing"; got != want {
		t.Errorf("not tried:\n%s\nwant:\n%s", got, want)
	}
}
