package jobs

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/um/live/stats"
)

// alone has this process's jobs looked for where no others are. A socket's path has to be short.
func alone(t *testing.T) (folder string) {
	t.Helper()
	base, err := os.MkdirTemp("", "jobs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	t.Setenv("XDG_RUNTIME_DIR", base)
	return filepath.Join(base, "penstock")
}

func answering(t *testing.T, stats string) (l *Listener, taken *atomic.Int64) {
	t.Helper()
	taken = &atomic.Int64{}
	l, err := Listen(Folders()[:1], func() Answer {
		taken.Add(1)
		return Answer{Version: "1.2.3", Stats: json.RawMessage(stats)}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, taken
}

func TestAsk(t *testing.T) {
	folder := alone(t)
	l, taken := answering(t, `{"engine":"explicit","resident_bytes":5,"explicit":{"made_bytes":7}}`)
	if st, err := os.Stat(folder); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	if taken.Load() != 0 {
		t.Error("statistics were taken, and nobody has asked")
	}
	j, err := Ask(os.Getpid())
	if err != nil || j.PID != os.Getpid() || j.Version != "1.2.3" || j.Shown.ResidentBytes != 5 || j.Shown.Explicit.MadeBytes != 7 || j.Shown.InMemoryShare != -1 || !strings.Contains(j.Command, "test") {
		t.Errorf("%+v, %v", j, err)
	}
	if age := float64(time.Now().UnixMicro())/1e6 - j.TakenAt; age < 0 || age > 5 {
		t.Errorf("taken %v s ago", age)
	}
	found, problems := allIn(Folders()[:1])
	if len(found) != 1 || len(problems) != 0 {
		t.Errorf("%v, %v", found, problems)
	}
	l.Close()
	if _, err := Ask(os.Getpid()); err == nil || !strings.Contains(err.Error(), "PENSTOCK_TOP=0") {
		t.Errorf("after the end: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := Ask(1 << 22); err == nil || !strings.Contains(err.Error(), "there is no process") {
		t.Error(err)
	}
}

// What is shown stands in the statistics under the names that are looked for.
func TestNamesOfStatistics(t *testing.T) {
	keys := func(v any) map[string]any {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]any{}
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	full := stats.Stats{Process: "rank0", Failure: "x", Explicit: &stats.Explicit{Makes: "all"}}
	of := keys(full)
	for k, v := range keys(Stats{}) {
		if _, ok := of[k]; !ok {
			t.Errorf("the statistics have no %s", k)
		}
		if k == "explicit" {
			for x := range v.(map[string]any) {
				if _, ok := of[k].(map[string]any)[x]; !ok {
					t.Errorf("the explicit engine's have no %s", x)
				}
			}
		}
	}
}

// Nobody holds the job up: who never reads, who sends, who comes in thousands. Others still get their answer.
func TestAbuse(t *testing.T) {
	alone(t)
	stats := `{"engine":"` + strings.Repeat("x", 16<<10) + `"}` // several times what there is
	_, taken := answering(t, stats)
	path := filepath.Join(Folders()[0], strconv.Itoa(os.Getpid())+ending)
	began := time.Now()
	var clients sync.WaitGroup
	var held sync.Map
	for i := range 1000 {
		clients.Go(func() {
			c, err := net.Dial("unix", path)
			if err != nil {
				return // as many wait as may
			}
			switch i % 3 {
			case 0: // never reads
				held.Store(i, c)
			case 1: // garbage, and no look at what comes
				_, _ = c.Write([]byte(strings.Repeat("\x00\xff{", 1000)))
				c.Close()
			default:
				c.Close()
			}
		})
	}
	clients.Wait()
	took := time.Since(began)
	if most := int64(took/freshFor) + 2; taken.Load() > most {
		t.Errorf("statistics were taken %d times in %s, want at most %d", taken.Load(), took, most)
	}
	if _, err := Ask(os.Getpid()); err != nil {
		t.Error(err)
	}
	held.Range(func(_, c any) bool { c.(net.Conn).Close(); return true })
}

// An engine that does not answer holds up who asks, for a while, and nobody else.
func TestStuck(t *testing.T) {
	alone(t)
	forever := make(chan bool)
	l, err := Listen(Folders()[:1], func() Answer { <-forever; return Answer{} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(os.Getpid()); err == nil || !strings.Contains(err.Error(), "did not answer") {
		t.Error(err)
	}
	if _, problems := allIn(Folders()[:1]); len(problems) != 1 || problems[0].PID != os.Getpid() {
		t.Error(problems)
	}
	l.Close() // does not wait
	close(forever)
}

// Folders that others own, or that others may enter, are not used, and the job is told why.
func TestFolders(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, folder string){
		"others may enter": func(t *testing.T, folder string) { must(t, os.Mkdir(folder, 0o755)) },
		"a link":           func(t *testing.T, folder string) { must(t, os.Symlink(t.TempDir(), folder)) },
		"a file":           func(t *testing.T, folder string) { must(t, os.WriteFile(folder, nil, 0o600)) },
		"another's": func(t *testing.T, folder string) {
			must(t, os.Mkdir(folder, 0o700))
			if os.Chown(folder, 12345, 12345) != nil {
				t.Skip("not root")
			}
		},
		"below another's": func(t *testing.T, folder string) {
			if os.Chown(filepath.Dir(folder), 12345, 12345) != nil {
				t.Skip("not root")
			}
		},
		"nothing there": func(t *testing.T, folder string) { must(t, os.RemoveAll(filepath.Dir(folder))) },
		"too long":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			folder := alone(t)
			if spoil == nil {
				folder = filepath.Join(filepath.Dir(folder), strings.Repeat("x", 110))
			} else {
				spoil(t, folder)
			}
			if l, err := Listen([]string{folder}, nil); err == nil {
				l.Close()
				t.Error("it is used")
			}
			if spoil == nil {
				return
			}
			// The next is.
			l, err := Listen([]string{folder, filepath.Join(t.TempDir(), "penstock")}, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A socket of a dead process is removed by who finds it, and by who has its number now; that of a living one stays.
func TestStale(t *testing.T) {
	folder := alone(t)
	l, _ := answering(t, `{}`)
	if again, err := Listen([]string{folder}, nil); err == nil || !strings.Contains(err.Error(), "another process's") {
		again.Close()
		t.Error("the socket of one that lives was taken over")
	}
	// As a process leaves it that is killed.
	dead := filepath.Join(folder, "1"+ending)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: dead}))
	must(t, unix.Close(fd))
	if found, problems := allIn(Folders()[:1]); len(found) != 1 || len(problems) != 0 {
		t.Errorf("%v, %v", found, problems)
	}
	if _, err := os.Lstat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", dead)
	}
	own := filepath.Join(folder, strconv.Itoa(os.Getpid())+ending)
	l.Close()
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: own}))
	must(t, unix.Close(fd))
	answering(t, `{}`)
	if _, err := Ask(os.Getpid()); err != nil {
		t.Error(err)
	}
}

// Only the job's user and root get an answer.
func TestOthersGetNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user can be had by root only")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	folder := alone(t)
	_, taken := answering(t, `{}`)
	path := filepath.Join(folder, strconv.Itoa(os.Getpid())+ending)
	try := func() string {
		out, err := exec.Command(python, "-c", `import os, socket, sys
os.setgid(12345); os.setuid(12345)
s = socket.socket(socket.AF_UNIX)
try: s.connect(sys.argv[1])
except PermissionError: print("refused"); sys.exit()
print("got", s.recv(100))`, path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := try(); got != "refused" {
		t.Error(got)
	}
	// Even where the folder lets them in.
	for _, f := range []string{filepath.Dir(folder), folder} {
		must(t, os.Chmod(f, 0o755))
	}
	must(t, os.Chmod(path, 0o777))
	if got := try(); got != "got b''" || taken.Load() != 0 {
		t.Errorf("%s, and statistics were taken %d times", got, taken.Load())
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]string{
		`{"format":2,"penstock":"9.9","pid":1,"stats":{}}`: "format 2, and this command reads format 1: use the penstock command",
		`{"format":1,"pid":1}`:                             "no statistics",
		`{"format":1,"pid":1,"stats":null}`:                "no statistics",
		`{"format":1,"stats":{}}`:                          "no statistics",
		`{"format":1,"pid":1,"stats":{"launches":"many"}}`: "statistics are damaged",
		`hello`: "answer is damaged",
		`{"format":1,"pid":1,"stats":{"resident_bytes":1e400}}`:               "statistics are damaged",
		`{"format":1,"pid":1,"stats":{"new":[1],"resident_bytes":3.0}} more `: "answer is damaged",
	} {
		if _, err := parse([]byte(line)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if j, err := parse([]byte(`{"format":1,"pid":1,"stats":{"new":[1],"resident_bytes":3.0}}`)); err != nil || j.Shown.ResidentBytes != 3 {
		t.Errorf("%+v, %v", j, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"format":1,"penstock":"x","pid":7,"taken_at":1e300,"stats":{"engine":"explicit","explicit":{"host_bytes":-1e300}}}`, `{"format":1e99}`, `[[[[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		j, err := parse(line)
		if (err == nil) != (j.Format == Format && j.PID > 0) {
			t.Errorf("%+v, %v", j, err)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q", err.Error())
		}
	})
}
