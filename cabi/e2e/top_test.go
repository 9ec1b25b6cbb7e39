package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/short"
)

// watchedJob is a job that runs until it is told to end.
type watchedJob struct {
	cmd    *exec.Cmd
	in     io.Closer
	out    *bufio.Reader
	err    *strings.Builder
	folder string // XDG_RUNTIME_DIR
	child  int
}

// startWatched starts one, with a folder for sockets of its own, and returns when it has repeated itself.
func startWatched(t *testing.T, env []string, args ...string) *watchedJob {
	t.Helper()
	folder, err := os.MkdirTemp("", "top") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	w := &watchedJob{cmd: exec.Command(program(t, "watched"), args...), err: &strings.Builder{}, folder: folder}
	w.cmd.Env = environment(append([]string{card, "PENSTOCK_TOP=1", "XDG_RUNTIME_DIR=" + folder, "TMPDIR=" + folder}, env...)...)
	w.cmd.Stderr = w.err
	in, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.in, w.out = in, bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = w.cmd.Process.Kill() }) // the reads then end, too
	t.Cleanup(func() {
		watchdog.Stop()
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait() // or it has ended
		if w.child > 0 {
			_ = syscall.Kill(w.child, syscall.SIGKILL)
		}
		os.RemoveAll(folder)
	})
	for {
		line, err := w.out.ReadString('\n')
		if err != nil {
			_ = w.cmd.Wait()
			t.Fatalf("the job says %q: %v\n%s", line, err, w.err)
		}
		if _, err := fmt.Sscanf(line, "child %d", &w.child); err != nil && line == "ready\n" {
			return w
		}
	}
}

// end ends it in the ordinary way, and gives what it made.
func (w *watchedJob) end(t *testing.T) (iterations int) {
	t.Helper()
	w.in.Close()
	rest, err := io.ReadAll(w.out)
	if err == nil {
		err = w.cmd.Wait()
	}
	if _, scan := fmt.Sscanf(string(rest), "ITERATIONS %d", &iterations); err != nil || scan != nil {
		t.Fatalf("%v %v\n%s\n%s", err, scan, rest, w.err)
	}
	return iterations
}

// top runs `penstock top` as the user of the job would.
func (w *watchedJob) top(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd, err := penstock()
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, []string{"LD_PRELOAD=", "XDG_RUNTIME_DIR=" + w.folder, "TMPDIR=" + w.folder}, cmd, append([]string{"top", "--interval", "0.2"}, args...)...)
	return r.stdout, r.stderr, r.code
}

func (w *watchedJob) pid() string { return strconv.Itoa(w.cmd.Process.Pid) }

func (w *watchedJob) socket() string { return filepath.Join(w.folder, "penstock", w.pid()+".sock") }

// seenJob is what a line of --json has to have.
type seenJob struct {
	At      float64            `json:"at"`
	PID     int                `json:"pid"`
	Command string             `json:"command"`
	Rates   map[string]float64 `json:"rates"`
	Stats   struct {
		Engine           string  `json:"engine"`
		BudgetBytes      int64   `json:"budget_bytes"`
		Launches         int64   `json:"launches"`
		IterationSeconds float64 `json:"iteration_seconds"`
		InMemoryShare    float64 `json:"in_memory_share_estimated"`
	} `json:"stats"`
}

func (w *watchedJob) look(t *testing.T) (x seenJob) {
	t.Helper()
	stdout, stderr, code := w.top(t, "--json", "-n", "1", "--pid", w.pid())
	if err := json.Unmarshal([]byte(stdout), &x); err != nil || code != 0 {
		t.Fatalf("status %d, %v\n%s%s", code, err, stdout, stderr)
	}
	return x
}

func TestTop(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"explicit", "managed"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			w := startWatched(t, []string{"PENSTOCK_ENGINE=" + engine, "PENSTOCK_LOG=error"})
			if x := w.look(t); x.PID != w.cmd.Process.Pid || x.Stats.Engine != engine || x.Stats.BudgetBytes != budget || x.Rates["seconds"] <= 0 || x.Stats.Launches == 0 || !strings.Contains(x.Command, "watched") {
				t.Errorf("%+v", x)
			}
			stdout, _, code := w.top(t, "--batch", "-n", "2", "--pid", w.pid())
			spaced := strings.Join(strings.Fields(stdout), " ") // the width of a column depends on that of the process's number
			if code != 0 || strings.Count(spaced, "job "+w.pid()+": "+engine+" engine") != 2 || !strings.Contains(spaced, "of a budget of 64 MiB") {
				t.Errorf("status %d\n%s", code, stdout)
			}
			if engine == "explicit" && !strings.Contains(spaced, "GB/s now") && !strings.Contains(spaced, "MB/s now") {
				t.Errorf("nothing moves:\n%s", stdout)
			}
			if st, err := os.Stat(filepath.Dir(w.socket())); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("the folder: %v, %v", st, err)
			}
			w.end(t)
			if left, err := os.ReadDir(filepath.Dir(w.socket())); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			for _, how := range []string{"--json", "--batch"} {
				if stdout, stderr, code := w.top(t, how, "--pid", w.pid()); code != 2 || stdout != "" || !strings.Contains(stderr, "there is no process "+w.pid()) {
					t.Errorf("%s: status %d, %q, %q", how, code, stdout, stderr)
				}
			}
		})
	}
}

// TestTopIsNotThere: whoever does not want it has no socket; where there can be none, the job goes on and says a line
// to who debugs it.
func TestTopIsNotThere(t *testing.T) {
	t.Parallel()
	w := startWatched(t, []string{"PENSTOCK_TOP=off"})
	if left, err := os.ReadDir(w.folder); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if _, stderr, code := w.top(t, "--batch", "--pid", w.pid()); code != 2 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "PENSTOCK_TOP=0") {
		t.Errorf("status %d: %s", code, stderr)
	}
	w.end(t)
	for _, level := range []string{"warn", "debug"} {
		r := mustRun(t, []string{"PENSTOCK_TOP=1", "XDG_RUNTIME_DIR=/nonexistent", "TMPDIR=/proc/nowhere", "PENSTOCK_LOG=" + level}, program(t, "small"), "init")
		want := map[string]int{"warn": 0, "debug": 1}[level]
		if n := strings.Count(r.stderr, "`penstock top` cannot ask this process"); n != want {
			t.Errorf("%s: said %d times, want %d\n%s", level, n, want, r.stderr)
		}
	}
}

// TestTopOfTheDead: a job was killed, and has a child that lives on: nobody answers for it, and its socket goes.
func TestTopOfTheDead(t *testing.T) {
	t.Parallel()
	w := startWatched(t, nil, "forks")
	if w.child == 0 {
		t.Fatal("it has no child")
	}
	w.look(t)
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.cmd.Wait() // killed, as intended
	if err := syscall.Kill(w.child, 0); err != nil {
		t.Fatal("the child:", err)
	}
	// Whatever other jobs this machine has.
	if stdout, stderr, _ := w.top(t, "--json", "-n", "1"); strings.Contains(stdout, `"pid":`+w.pid()+",") {
		t.Errorf("it is still seen: %s%s", stdout, stderr)
	}
	if _, err := os.Lstat(w.socket()); !os.IsNotExist(err) {
		t.Errorf("its socket: %v", err)
	}
}

// TestTopAbused: clients that never read, that send rubbish, a thousand at once, all the time: the job goes on, and others get
// their answer.
func TestTopAbused(t *testing.T) {
	short.Skip(t)
	t.Parallel()
	w := startWatched(t, []string{"PENSTOCK_ENGINE=explicit"})
	speed := func() float64 { // launches a second, over some iterations
		a := w.look(t)
		time.Sleep(3 * time.Second)
		b := w.look(t)
		return float64(b.Stats.Launches-a.Stats.Launches) / (b.At - a.At)
	}
	before := speed()
	stop := make(chan bool)
	var clients sync.WaitGroup
	var connections atomic.Int64
	for i := range 4 {
		clients.Go(func() {
			var held []net.Conn
			defer func() {
				for _, c := range held {
					c.Close()
				}
			}()
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				c, err := net.Dial("unix", w.socket())
				if err != nil {
					continue // as many wait as may
				}
				connections.Add(1)
				switch {
				case i == 0 && len(held) < 500:
					held = append(held, c) // never read
					continue
				case i == 1:
					_, _ = c.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n\x00\xff", 200))) // it may have hung up
				}
				c.Close()
			}
		})
	}
	during := speed()
	for until := time.Now().Add(time.Minute); connections.Load() < 1000 && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond) // a busy machine gets there later
	}
	close(stop)
	clients.Wait()
	sum := connections.Load()
	if sum < 1000 {
		t.Errorf("only %d connections", sum)
	}
	// The clients take processors from the job, which the stub's kernels and copies need: a half is much.
	if during < before/4 {
		t.Errorf("%v launches a second before and %v during it", before, during)
	}
	t.Logf("%d connections; %.0f launches a second before, %.0f during", sum, before, during)
	w.end(t)
}

// TestProgress: what a job says of its speed, once it has been learned; and who does not want it hears nothing.
func TestProgress(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute to learn")
	}
	t.Parallel()
	for env, speaks := range map[string]bool{"PENSTOCK_LOG=warn": true, "PENSTOCK_PROGRESS=0": false} {
		t.Run(env, func(t *testing.T) { // one after the other: both at once would disturb each other's launches
			w := startWatched(t, []string{"PENSTOCK_ENGINE=explicit", env})
			var x seenJob
			for until := time.Now().Add(80 * time.Second); time.Now().Before(until) && x.Stats.InMemoryShare <= 0; time.Sleep(time.Second) {
				x = w.look(t)
			}
			time.Sleep(5 * time.Second)
			w.end(t)
			if x.Stats.InMemoryShare <= 0 {
				t.Skip("this machine is too busy for enough launches to be timed") // as TestExplicitOracle
			}
			if x.Stats.IterationSeconds <= 0 || x.Stats.InMemoryShare > 1 {
				t.Errorf("%+v", x.Stats)
			}
			if n := strings.Count(w.err.String(), "penstock: running at about "); n != map[bool]int{true: 1}[speaks] {
				t.Errorf("said %d times:\n%s", n, w.err)
			}
		})
	}
}
