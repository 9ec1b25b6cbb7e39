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
	"github.com/penstock-gpu/penstock/trace"
)

// Progress is told while a process is listened to.
type Progress struct {
	Waiting                       bool // for CUDA to start in the process
	Faults, Migrations, CPUFaults int64
	Lost                          uint64
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
	var p Progress
	group, err := attach(ctx, pid, func() { p.Waiting = true; tell(p) })
	if err != nil || group == nil {
		return nil, err
	}
	defer group.Close()
	p.Waiting = false
	counters, _ := group.Counters() // without them the sums cannot be checked, no more
	var events []faults.Event
	flushed, told := time.Now(), time.Time{}
	for ended := false; ; {
		events = group.Drain(events[:0])
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
		lost := group.Lost()
		p.Lost = lost.Total()
		visit(events, lost)
		now := time.Now()
		if now.Sub(told) >= tellEvery {
			told = now
			tell(p)
		}
		if ended {
			tell(p)
			break
		}
		if ctx.Err() != nil || !group.Alive() {
			ended = true
			_ = group.Flush() // the last migrations; then once more around
			continue
		}
		if now.Sub(flushed) >= flushGap {
			flushed = now
			_ = group.Flush()
		}
		if len(events) > 0 {
			time.Sleep(pollBusy)
		} else {
			time.Sleep(pollIdle)
		}
	}
	if counters == nil {
		return nil, nil
	}
	sums := new(analyse.Counters)
	for _, c := range counters {
		s := c.Read()
		sums.H2DBytes += s.H2DBytes
		sums.D2HBytes += s.D2HBytes
		sums.CPUFaults += s.CPUFaults
		sums.GPUFaults += s.GPUFaults
		_ = c.Close()
	}
	return sums, nil
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

// Process records another process until it ends or ctx does.
func Process(ctx context.Context, pid int, path string, tell func(Progress)) (err error) {
	l, err := Create(path, trace.Header{Source: "penstock faults record --pid", Command: commandOf(pid), Process: pid})
	if err != nil {
		return err
	}
	l.Lacks("launches and allocations: the process was listened to from outside")
	sums, err := Listen(ctx, pid, func(events []faults.Event, lost faults.Lost) {
		l.Faults(events)
		l.Lost(lost)
	}, tell)
	if closeErr := l.Close(sums); err == nil {
		err = closeErr
	}
	return err
}

// commandOf is a process's command line, "" when it cannot be read.
func commandOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
}
