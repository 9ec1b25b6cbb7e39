package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/bpf"
	"github.com/penstock-gpu/penstock/trace"
)

// Progress is told while a process is listened to.
type Progress struct {
	Waiting                       bool // for CUDA to start in the process
	Faults, Migrations, CPUFaults int64
	Lost                          uint64
	Work                          Work // when all processes are listened to
}

// Work is the driver's own: how often its fault handler ran and it evicted a
// block, and how long that took.
type Work struct {
	Runs, Evictions         int64
	RunNanos, EvictionNanos int64
}

func (w *Work) add(spans []bpf.Span) {
	for _, s := range spans {
		switch s.Kind {
		case bpf.SpanService:
			w.Runs++
			w.RunNanos += s.EndNanos - s.BeginNanos
		case bpf.SpanEviction:
			w.Evictions++
			w.EvictionNanos += s.EndNanos - s.BeginNanos
		}
	}
}

const (
	pollBusy  = 200 * time.Microsecond
	pollIdle  = 5 * time.Millisecond
	flushGap  = 50 * time.Millisecond
	tellEvery = 500 * time.Millisecond
	retryGap  = 100 * time.Millisecond
)

// Listen hands what the driver says of another process to visit, until the
// process ends or ctx does. It waits for CUDA to start there. The driver's own
// sums are nil where they cannot be had.
func Listen(ctx context.Context, pid int, visit func([]faults.Event, faults.Lost), tell func(Progress)) (*analyse.Counters, error) {
	group, err := attach(ctx, pid, func() { tell(Progress{Waiting: true}) })
	if err != nil || group == nil {
		return nil, err
	}
	return listen(ctx, group, visit, tell), nil
}

// listen reads a group until its process or ctx ends, and closes it.
func listen(ctx context.Context, group *faults.Group, visit func([]faults.Event, faults.Lost), tell func(Progress)) *analyse.Counters {
	defer group.Close()
	counters, _ := group.Counters() // without them the sums cannot be checked, no more
	drain(ctx, group, group.Alive, visit, tell)
	if counters == nil {
		return nil
	}
	sums := analyse.Counters(faults.Finish(counters))
	return &sums
}

// drain reads a source until ctx ends or it is not alive any more.
func drain(ctx context.Context, source faults.Source, alive func() bool, visit func([]faults.Event, faults.Lost), tell func(Progress)) {
	var p Progress
	var events []faults.Event
	flushed, told := time.Now(), time.Time{}
	for ended := false; ; {
		events = source.Drain(events[:0])
		for i := range events {
			switch events[i].Kind {
			case trace.KindFault:
				p.Faults++
			case trace.KindMigration:
				p.Migrations++
			case trace.KindCPUFault:
				p.CPUFaults++
			}
		}
		lost := source.Lost()
		p.Lost = lost.Total()
		visit(events, lost)
		now := time.Now()
		if ended || now.Sub(told) >= tellEvery {
			told = now
			tell(p)
		}
		if ended {
			return
		}
		if ctx.Err() != nil || !alive() {
			ended = true
			_ = source.Flush() // the last migrations; then once more around
			continue
		}
		if now.Sub(flushed) >= flushGap {
			flushed = now
			_ = source.Flush()
		}
		if len(events) > 0 {
			time.Sleep(pollBusy)
		} else {
			time.Sleep(pollIdle)
		}
	}
}

// ListenAll hands what the driver says of all processes to visit, until ctx ends. It takes eBPF.
func ListenAll(ctx context.Context, visit func([]faults.Event, faults.Lost), tell func(Progress)) error {
	source, err := bpf.Open(bpf.Options{})
	if err != nil {
		return err
	}
	defer source.Close()
	follow(ctx, source, visit, tell)
	return nil
}

// follow is drain, with the driver's own work.
func follow(ctx context.Context, source *bpf.Source, visit func([]faults.Event, faults.Lost), tell func(Progress)) {
	var work Work
	var spans []bpf.Span
	drain(ctx, source, func() bool { return true }, func(events []faults.Event, lost faults.Lost) {
		spans = source.Spans(spans[:0])
		work.add(spans)
		visit(events, lost)
	}, func(p Progress) {
		p.Work = work
		tell(p)
	})
}

// attach tries until CUDA has started in the process; nil when ctx ends first.
func attach(ctx context.Context, pid int, waiting func()) (*faults.Group, error) {
	for {
		group, err := faults.Attach(pid, faults.Options{Kinds: faults.Everything})
		if err == nil {
			return group, nil
		}
		if !errors.Is(err, faults.ErrNoSpace) {
			return nil, err
		}
		waiting()
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(retryGap):
		}
	}
}

// Process records another process until it ends or ctx does. No file is made
// before the process can be listened to.
func Process(ctx context.Context, pid int, path string, tell func(Progress)) error {
	group, err := attach(ctx, pid, func() { tell(Progress{Waiting: true}) })
	if err != nil {
		return err
	}
	if group == nil {
		return fmt.Errorf("process %d did not start CUDA, so nothing was recorded", pid)
	}
	l, err := Create(path, trace.Header{Source: "penstock faults record --pid", Command: commandOf(pid), Process: pid}, Options{})
	if err != nil {
		_ = group.Close()
		return err
	}
	l.Lacks("launches and allocations: the process was listened to from outside")
	return l.Close(listen(ctx, group, func(events []faults.Event, lost faults.Lost) {
		l.Faults(events)
		l.Lost(lost)
	}, tell))
}

// System records all processes, or those that o names, until ctx ends.
func System(ctx context.Context, o bpf.Options, path string, tell func(Progress)) (err error) {
	source, err := bpf.Open(o)
	if err != nil {
		return err
	}
	defer source.Close()
	l, err := Create(path, trace.Header{Source: "penstock faults record --system"}, Options{})
	if err != nil {
		return err
	}
	l.Lacks("launches and allocations: all processes are listened to from outside")
	for _, lacks := range source.Coverage().Lacks {
		l.Lacks(lacks)
	}
	follow(ctx, source, func(events []faults.Event, lost faults.Lost) {
		l.Faults(events)
		l.Lost(lost)
	}, tell)
	return l.Close(nil)
}

// commandOf is a process's command line, "" when it cannot be read.
func commandOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
}
