package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	backlog = 16
	// freshFor is how long a line is given out again: a snapshot takes the engine's lock.
	freshFor = 50 * time.Millisecond
	// sendPatience ends the wait for a client whose buffer is full, which one line never makes it.
	sendPatience = time.Second
)

// Listener is the job's end.
type Listener struct {
	fd   int
	path string
	shut atomic.Bool
	take func() Answer
	line []byte
	at   time.Time
}

// Listen has this process answer who asks, from the first of the folders that can be used. take is called when somebody does.
func Listen(folders []string, take func() Answer) (*Listener, error) {
	var failed []error
	for _, folder := range folders {
		l, err := listenIn(folder, take)
		if err == nil {
			go l.serve()
			return l, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// FD is the socket's descriptor: a forked child has it too, and closes it, or who asks would wait for the child.
func (l *Listener) FD() int { return l.fd }

func listenIn(folder string, take func() Answer) (*Listener, error) {
	if err := makeFolder(folder); err != nil {
		return nil, err
	}
	path := filepath.Join(folder, strconv.Itoa(os.Getpid())+ending)
	if c, err := connect(path); err == nil { // of a process in another container, with the same number
		unix.Close(c)
		return nil, fmt.Errorf("%s is another process's", path)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// It gets its name when it listens: until then it would be taken for one of a dead process.
	early := path + ".new"
	_ = os.Remove(early) // of a process that was killed just here
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: early})
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err == nil {
		err = os.Rename(early, path)
	}
	if err != nil {
		unix.Close(fd)
		_ = os.Remove(early)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Listener{fd: fd, path: path, take: take}, nil
}

// connect is a connection to a socket, if anybody listens.
func connect(path string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil && err != unix.EAGAIN { // as many wait as may
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// serve answers until the listener is closed. It blocks in the system and not in Go: a goroutine that waits by the poller would have
// the scheduler look there each time that it has nothing to run.
func (l *Listener) serve() {
	defer unix.Close(l.fd)
	for {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			if !l.shut.Load() {
				l.answer(fd)
			}
			unix.Close(fd)
		case l.shut.Load():
			return
		case err != unix.EINTR && err != unix.ECONNABORTED: // there are no descriptors left, or no memory
			time.Sleep(time.Second)
		}
	}
}

// answer sends the line to one client, if it is entitled to it.
func (l *Listener) answer(fd int) {
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		return
	}
	patience := unix.NsecToTimeval(int64(sendPatience))
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience) != nil {
		return
	}
	if now := time.Now(); l.line == nil || now.Sub(l.at) > freshFor {
		a := l.take()
		a.Format, a.PID, a.TakenAt = Format, os.Getpid(), float64(now.UnixMicro())/1e6
		line, err := json.Marshal(a)
		if err != nil {
			return
		}
		l.line, l.at = append(line, '\n'), time.Now()
	}
	for rest := l.line; len(rest) > 0; {
		n, err := unix.SendmsgN(fd, rest, nil, nil, unix.MSG_NOSIGNAL) // of a client that has gone the job is not told by a signal
		if err != nil && err != unix.EINTR {
			return
		}
		rest = rest[max(n, 0):]
	}
}

// Close ends it. It waits for nobody: an answer that is under way may end later, or never where the engine has failed.
// The descriptor is closed after that: its number could else be another file's while serve still uses it.
func (l *Listener) Close() {
	if l.shut.Swap(true) {
		return
	}
	_ = os.Remove(l.path)
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR) // accept returns, now and from now on
}
