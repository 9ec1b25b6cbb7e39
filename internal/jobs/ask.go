package jobs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is for a job to answer: its engine may have its lock for a while.
	patience = 2 * time.Second
	mostLine = 1 << 20
)

// Problem is a job that was found and did not answer, in words.
type Problem struct {
	PID int
	Err error
}

// All asks every job that this user may ask, side by side, in the order of their numbers.
func All() (jobs []Job, problems []Problem) { return allIn(searched()) }

func allIn(folders []string) (jobs []Job, problems []Problem) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	for pid, path := range sockets(folders) {
		asked.Go(func() {
			j, err := ask(path)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, errGone):
			case err != nil:
				problems = append(problems, Problem{pid, err})
			default:
				jobs = append(jobs, j)
			}
		})
	}
	asked.Wait()
	slices.SortFunc(jobs, func(a, b Job) int { return a.PID - b.PID })
	slices.SortFunc(problems, func(a, b Problem) int { return a.PID - b.PID })
	return jobs, problems
}

// Ask asks one process.
func Ask(pid int) (Job, error) {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return Job{}, fmt.Errorf("there is no process %d: look at all jobs with `penstock top`", pid)
	}
	path, ok := sockets(searched())[pid]
	var j Job
	err := errGone
	if ok {
		j, err = ask(path)
	}
	if !errors.Is(err, errGone) {
		if err != nil {
			err = fmt.Errorf("process %d: %w", pid, err)
		}
		return j, err
	}
	if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil && os.Geteuid() != 0 && int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return Job{}, fmt.Errorf("process %d belongs to another user: look at it as that user, or as root", pid)
	}
	return Job{}, fmt.Errorf("process %d cannot be asked: it has allocated nothing on the GPU under Penstock yet, or was started with PENSTOCK_TOP=0, or in a container (ask there)", pid)
}

// errGone is a socket that nobody listens on.
var errGone = errors.New("nobody listens")

// sockets are those in folders of one user, by process.
func sockets(folders []string) map[int]string {
	found := map[int]string{}
	for _, folder := range folders {
		owner, err := ownerOf(folder)
		if err != nil || owner != os.Geteuid() && os.Geteuid() != 0 {
			continue
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, e := range entries {
			number, ok := strings.CutSuffix(e.Name(), ending)
			pid, err := strconv.Atoi(number)
			if ok && err == nil && pid > 0 && e.Type() == fs.ModeSocket {
				found[pid] = filepath.Join(folder, e.Name())
			}
		}
	}
	return found
}

// ask asks who listens on a socket. One of a dead process is removed.
func ask(path string) (Job, error) {
	owner, err := ownerOf(filepath.Dir(path))
	if err != nil {
		return Job{}, err
	}
	c, err := dial(path)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return Job{}, fmt.Errorf("it did not answer within %s: others ask it all the time, or it is stopped", patience)
	case errors.Is(err, unix.ECONNREFUSED):
		if owner == os.Geteuid() {
			_ = os.Remove(path)
		}
		return Job{}, errGone
	case errors.Is(err, fs.ErrNotExist):
		return Job{}, errGone
	case errors.Is(err, fs.ErrPermission):
		return Job{}, errors.New("its socket belongs to another user: look at it as that user, or as root")
	case err != nil:
		return Job{}, fmt.Errorf("its socket cannot be reached: %w", err)
	}
	defer c.Close()
	if err := ofUser(c.(*net.UnixConn), owner); err != nil {
		return Job{}, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return Job{}, err
	}
	line, err := bufio.NewReader(io.LimitReader(c, mostLine)).ReadBytes('\n')
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Job{}, fmt.Errorf("it did not answer within %s: it is stopped, or very busy", patience)
	case err == io.EOF && len(line) == 0:
		return Job{}, errors.New("it hung up without an answer: it is ending, or this user may not ask it")
	case err != nil:
		return Job{}, fmt.Errorf("its answer breaks off: %w", err)
	}
	j, err := parse(line)
	if err == nil {
		j.Command = command(j.PID)
	}
	return j, err
}

// dial connects to a socket; where as many wait as may, it tries for a while.
func dial(path string) (c net.Conn, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if c, err = net.Dial("unix", path); !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			return c, err
		}
	}
}

// ofUser says whether who is at the other end is the one whose folder the socket lies in.
func ofUser(c *net.UnixConn, uid int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var who *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed == nil && int(who.Uid) != uid && who.Uid != 0 {
		failed = fmt.Errorf("user %d answers in a folder of user %d", who.Uid, uid)
	}
	return failed
}

// command is a process's command line.
func command(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
}
