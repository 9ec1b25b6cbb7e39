package process_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// logbook is an engine that writes down what it is told.
type logbook struct {
	process.Engine
	proc *process.Process
	log  []string
}

func (e *logbook) note(format string, args ...any) {
	e.log = append(e.log, fmt.Sprintf(format, args...))
}
func (e *logbook) Listen()         { e.note("listen") }
func (e *logbook) HearAll()        { e.note("hear all") }
func (e *logbook) PauseRecording() { e.note("pause") }
func (e *logbook) PlainChanged()   { e.note("plain") }
func (e *logbook) Refuse()         { e.note("refuse") }
func (e *logbook) Autopsy()        { e.note("autopsy") }
func (e *logbook) End()            { e.note("end") }
func (e *logbook) Ended()          { e.note("ended") }
func (e *logbook) Fail(err error)  { e.proc.Failed = err; e.note("fail") }
func (e *logbook) Op(rec *hook.Record) {
	var o um.Op
	e.proc.Tell(rec)
	e.proc.Operation(rec, &o)
	e.note("op %d on %d: %s", o.Seq, o.Stream, o.Name)
}

// tensors are the engine's.
type tensors struct {
	um.Engine
	book   *logbook
	broken error
}

func (t *tensors) Progress(stream int, seq uint64)     { t.book.note("stream %d is at %d", stream, seq) }
func (t *tensors) SlotAddress(uint32) (cuda.Ptr, bool) { return 0x1000, true }
func (t *tensors) LiveBytes() int64                    { return 30 }
func (t *tensors) ReservedBytes() int64                { return 40 }
func (t *tensors) Check() error                        { return t.broken }

// besides is plain memory that remembers what is live beside it.
type besides struct {
	livetest.NoPlain
	bytes int64
}

func (b *besides) NoteBesides(bytes int64) { b.bytes = bytes }
func (b *besides) LiveBytes() int64        { return 5 }

// unbound is a driver that does not bind threads any more.
type unbound struct{ *livetest.Driver }

func (unbound) BindThread() error { return errors.New("the context has ended") }

type rig struct {
	proc  *process.Process
	hook  *livetest.Hook
	book  *logbook
	sink  *livetest.Sink
	plain *besides
	own   *tensors
}

func newRig() *rig {
	r := &rig{hook: livetest.NewHook(), sink: &livetest.Sink{}, plain: &besides{}}
	r.proc = process.New(process.Config{Sink: r.sink, HostBudgetBytes: 7}, livetest.NewDriver(1<<30), r.hook, zap.NewNop())
	r.book = &logbook{proc: r.proc}
	r.own = &tensors{book: r.book}
	r.proc.Engine, r.proc.Plain = r.book, r.plain
	r.hook.SetMode(hook.Gated)
	return r
}

// heard is what the engine was told since it was last asked for.
func (r *rig) heard() string {
	defer func() { r.book.log = nil }()
	return strings.Join(r.book.log, ", ")
}

// TestDrain: an engine hears of frees, of each record, and that there are no more; the sink before it, unless it is paused. Without
// tensors the ring is left alone.
func TestDrain(t *testing.T) {
	r := newRig()
	r.hook.Queue(1)
	if n := r.proc.Drain(); n != 0 || r.heard() != "listen, hear all" {
		t.Errorf("%d records are read before there are tensors", n)
	}
	r.proc.Tensors = r.own
	if n, heard := r.proc.Drain(), r.heard(); n != 1 || heard != "listen, op 1 on 1: kernel, hear all" || !slices.Equal(r.sink.Log, []string{"kernel"}) {
		t.Errorf("%d records: %s; the sink: %v", n, heard, r.sink.Log)
	}
	r.proc.Record(false)
	r.hook.Queue(1)
	if r.proc.Drain(); len(r.sink.Log) != 1 || !strings.HasPrefix(r.heard(), "listen, hear all, pause") {
		t.Errorf("a paused sink is told: %v", r.sink.Log)
	}
	r.proc.Record(true)
	if r.hook.Queue(1); !r.proc.Hear() || len(r.sink.Log) != 2 {
		t.Errorf("the sink has not heard all: %v", r.sink.Log)
	}
}

// TestProgress: what a stream reports counts as far as the ring was read, and is told once to the sink.
func TestProgress(t *testing.T) {
	r := newRig()
	r.proc.Tensors = r.own
	r.proc.Progress() // there are no words yet
	r.proc.ProgressWords = 0x1000
	r.hook.Queue(1)
	r.proc.Drain()
	r.heard()
	r.proc.Progress() // nothing has finished
	r.hook.Queue(1)
	r.hook.Finish(1, 2)
	r.proc.Progress()
	if heard := r.heard(); heard != "stream 1 is at 1" {
		t.Errorf("with one of two read: %s", heard)
	}
	r.proc.Drain()
	r.proc.Progress()
	if heard := r.heard(); !strings.HasSuffix(heard, "stream 1 is at 2") {
		t.Error(heard)
	}
}

// TestEnd: an engine is ended once, after what came before, and its accounts or its failure are the answer.
func TestEnd(t *testing.T) {
	wrong := errors.New("does not add up")
	for _, c := range []struct {
		fails, broken, want error
	}{{}, {broken: wrong, want: wrong}, {fails: errors.New("no luck"), broken: wrong, want: errors.New("no luck")}} {
		r := newRig()
		r.proc.Tensors, r.own.broken = r.own, c.broken
		r.proc.Autopsy()
		if c.fails != nil {
			r.proc.GiveUp(c.fails)
			r.proc.GiveUp(wrong) // the first counts
			r.proc.Autopsy()
		}
		r.heard()
		if err := r.proc.Close(); fmt.Sprint(err) != fmt.Sprint(c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
		if err := r.proc.Close(); err != nil || r.heard() != "listen, hear all, end, ended" {
			t.Errorf("closed twice: %v", err)
		}
	}
}

// TestGiveUpWithoutTheLock: launches are refused though somebody keeps the lock.
func TestGiveUpWithoutTheLock(t *testing.T) {
	r := newRig()
	r.proc.Mu.Lock()
	r.proc.GiveUp(errors.New("no luck"))
	r.proc.Mu.Unlock()
	if heard := r.heard(); heard != "refuse" || r.proc.Failed != nil {
		t.Errorf("%s, %v", heard, r.proc.Failed)
	}
}

// TestBindThread: a thread that cannot be bound gives the engine up.
func TestBindThread(t *testing.T) {
	r := newRig()
	if !r.proc.BindThread() || r.proc.Failed != nil {
		t.Error("a thread that is bound")
	}
	r.proc.Driver = unbound{livetest.NewDriver(1)}
	if r.proc.BindThread() || r.proc.Failed == nil || r.proc.Synchronize() == nil {
		t.Error("a thread that is not")
	}
}

// TestLock: who has waited for the lock is known.
func TestLock(t *testing.T) {
	r := newRig()
	r.proc.Lock()
	if n := r.proc.Counts.LockWait.Load(); n != 0 {
		t.Errorf("%d ns for a lock that was free", n)
	}
	const held = 20 * time.Millisecond
	time.AfterFunc(held, r.proc.Mu.Unlock)
	r.proc.Lock()
	r.proc.Yield(0)
	r.proc.Mu.Unlock()
	if n := time.Duration(r.proc.Counts.LockWait.Load()); n < held/2 {
		t.Errorf("%v for one that was held for %v", n, held)
	}
}

// TestAccounts: what is live and reserved is the sum of all places, and the pool knows what is beside it.
func TestAccounts(t *testing.T) {
	r := newRig()
	r.proc.Tensors = r.own
	r.proc.PrivateTensors.Store(10)
	r.proc.PrivateLive.Store(3)
	r.proc.NoteTensors() // 30 live, 10 of them counted by private pools
	r.proc.AddPlain(100)
	if live, reserved := r.proc.LiveBytes(), r.proc.ReservedBytes(); live != 28 || reserved != 140 || r.plain.bytes != 23 {
		t.Errorf("%d live, %d reserved, %d beside the pool", live, reserved, r.plain.bytes)
	}
	if heard := r.heard(); heard != "plain" {
		t.Errorf("the engine has heard: %s", heard)
	}
	r.proc.Freed(nil)
	r.proc.Freed(errors.New("nobody's"))
	if n := r.proc.Counts.Frees.Load(); n != 1 {
		t.Errorf("%d frees", n)
	}
	process.Raise(&r.proc.Counts.LivePeak, 7)
	process.Raise(&r.proc.Counts.LivePeak, 5)
	if n := r.proc.Counts.LivePeak.Load(); n != 7 {
		t.Errorf("a peak of %d", n)
	}
}

// TestHostBudget: what was asked for, else this process's share of most of what there is.
func TestHostBudget(t *testing.T) {
	if n := newRig().proc.HostBudget(); n != 7 {
		t.Errorf("%d, asked for 7", n)
	}
	if one, two := process.DefaultHostBudget(1000, 0), process.DefaultHostBudget(1000, 2); one != 800 || two != 400 {
		t.Errorf("%d of 1000, %d for each of two", one, two)
	}
	proc := process.New(process.Config{}, livetest.NewDriver(1), nil, zap.NewNop())
	if n := proc.HostBudget(); n < 0 || n > process.AvailableHostBytes()*2 {
		t.Errorf("%d of %d", n, process.AvailableHostBytes())
	}
	if !proc.Hear() || proc.HookHead() != 0 || proc.SynchronizeOthers() != nil {
		t.Error("without a hook there is something to hear of")
	}
}
