// Package watch analyses events as they happen: those of a running process, or
// those of a recording that is still being written.
//
// # The story
//
// A goroutine feeds an analyse.Analyser; Report may be asked for at any time
// and leaves the last moments out, since their events may not all be there.
// When the process has ended or the recording is complete, Report is final.
//
// # Invariants
//
// One goroutine feeds; it never waits for whoever looks. A recording's writer
// holds a lock on the file: a follower reads on as long as that lock is held.
//
// # Locks
//
// One mutex around the analyser. Nothing else is taken with it held.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/record"
	"github.com/penstock-gpu/penstock/trace"
)

// Watch is an analysis under way.
type Watch struct {
	name string

	mu       sync.Mutex
	analyser *analyse.Analyser
	final    bool
	err      error
	waiting  bool
	done     chan struct{}
	caughtUp chan struct{}
	caught   sync.Once
}

// Process watches a running process from outside, until it ends or ctx does.
func Process(ctx context.Context, pid int) *Watch {
	return source(fmt.Sprintf("process %d", pid), pid, func(visit func([]faults.Event, faults.Lost), tell func(record.Progress)) error {
		_, err := record.Listen(ctx, pid, visit, tell)
		return err
	})
}

// System watches all processes until ctx ends. It takes eBPF.
func System(ctx context.Context) *Watch {
	return source("all processes", 0, func(visit func([]faults.Event, faults.Lost), tell func(record.Progress)) error {
		return record.ListenAll(ctx, visit, tell)
	})
}

// source feeds what listen hears.
func source(name string, pid int, listen func(visit func([]faults.Event, faults.Lost), tell func(record.Progress)) error) *Watch {
	origin := faults.Clock()
	w := &Watch{name: name, done: make(chan struct{}), caughtUp: make(chan struct{}),
		analyser: analyse.New(trace.Header{Process: pid, Lacks: "launches and allocations: listened to from outside"})}
	w.catchUp()
	go func() {
		defer close(w.done)
		var lost uint64
		err := listen(func(events []faults.Event, l faults.Lost) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for i := range events {
				e := events[i].Trace(origin)
				w.analyser.Add(&e)
			}
			now := time.Duration(faults.Clock() - origin)
			if n := l.Total(); n > lost {
				w.analyser.Add(&trace.Event{Kind: trace.KindLost, Time: now, Bytes: int64(n - lost), Name: "events"})
				lost = n
			}
			w.analyser.Advance(now)
		}, func(p record.Progress) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.waiting = p.Waiting
		})
		w.end(err)
	}()
	return w
}

// File watches a recording, following it as long as it is being written or until ctx ends.
func File(ctx context.Context, path string) (*Watch, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the recording: %w", err)
	}
	follow := &follower{ctx: ctx, file: f, idle: func() {}}
	r, err := trace.NewReader(follow)
	if err != nil {
		f.Close()
		if errors.Is(err, trace.ErrNotTrace) {
			return nil, fmt.Errorf("%s is not a recording: make one with `penstock faults record` or `penstock run --trace`", path)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	w := &Watch{name: strings.TrimSuffix(filepath.Base(path), trace.Extension), done: make(chan struct{}), caughtUp: make(chan struct{}), analyser: analyse.New(r.Header())}
	go func() {
		defer close(w.done)
		defer f.Close()
		var batch []trace.Event
		flush := func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			for i := range batch {
				w.analyser.Add(&batch[i])
			}
			batch = batch[:0]
		}
		follow.idle = func() {
			flush()
			w.catchUp()
		}
		for {
			e, err := r.Next()
			if err != nil {
				flush()
				if err == io.EOF || ctx.Err() != nil {
					err = nil
				}
				w.end(err)
				return
			}
			if batch = append(batch, e); len(batch) >= 256 {
				flush()
			}
		}
	}()
	return w, nil
}

func (w *Watch) catchUp() { w.caught.Do(func() { close(w.caughtUp) }) }

func (w *Watch) end(err error) {
	defer w.catchUp()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.final, w.err, w.waiting = true, err, false
}

// Report is what is known so far; final says that nothing will follow.
func (w *Watch) Report() (r *analyse.Report, final bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r = w.analyser.Report(w.final)
	r.Trace = w.name
	if w.err != nil {
		r.Damage = w.err.Error()
	}
	return r, w.final
}

// Waiting says that the process has not started CUDA yet.
func (w *Watch) Waiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

// Err is why watching ended, nil at a regular end.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Done is closed when nothing will follow.
func (w *Watch) Done() <-chan struct{} { return w.done }

// CaughtUp is closed when what there was at the start has been read.
func (w *Watch) CaughtUp() <-chan struct{} { return w.caughtUp }

// pollFile is how often a file is looked at for more.
const pollFile = 100 * time.Millisecond

// follower reads a file that grows. The end is the end only when nobody writes any more.
type follower struct {
	ctx  context.Context
	file *os.File
	idle func() // called before waiting, from the reader's goroutine
}

func (f *follower) Read(b []byte) (int, error) {
	for {
		n, err := f.file.Read(b)
		if n > 0 || err != io.EOF {
			return n, err
		}
		// In this order: what was written before the lock was let go is read above.
		if !f.written() {
			return f.file.Read(b)
		}
		f.idle()
		select {
		case <-f.ctx.Done():
			return 0, io.EOF
		case <-time.After(pollFile):
		}
	}
}

// written says whether a process is still recording to the file.
func (f *follower) written() bool {
	fd := int(f.file.Fd())
	if err := syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return errors.Is(err, syscall.EWOULDBLOCK)
	}
	_ = syscall.Flock(fd, syscall.LOCK_UN)
	return false
}
