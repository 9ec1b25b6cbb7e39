package main

import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/record"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/internal/ranks"
	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/trace"
)

// observer records a program that knows nothing of Penstock: its managed
// allocations, its launches, and what the driver says of both. Nothing is moved
// and no launch is held back: to the hook every allocation is resident.
type observer struct {
	path     string
	log      *record.Log
	hook     *hook.Shared // nil without stream memory operations: launches have no progress, or there is no hook
	progress bool
	group    *faults.Group // nil where the driver's events cannot be had
	counters []*faults.Counters

	mu       sync.Mutex
	slots    map[uint32]uint64 // slot to allocation id
	live     map[uint64]observed
	free     []uint32 // slots to give out again
	next     uint32
	nextID   uint64
	streams  map[int]observedStream
	events   []faults.Event
	accesses []trace.Access // of the record at hand
	faulting time.Time
	faults   int64
	stop     chan struct{}
	threads  sync.WaitGroup
}

type observed struct {
	id   uint64
	slot uint32
	size int64
}

type observedStream struct {
	handle   uint64
	reported uint64
}

// observing is the observer of this process.
var observing struct {
	once sync.Once
	o    *observer
}

const (
	observerFlush    = 50 * time.Millisecond
	observerIdle     = 5 * time.Millisecond
	observerBusy     = 50 * time.Microsecond  // while there are faults
	observerLaunches = 500 * time.Microsecond // while there are launches: none of them rings the doorbell, which costs it a system call
	progressSeldom   = 16
	faultingPatience = 100 * time.Millisecond
)

// startObserver starts recording. It complains on stderr and returns nil where it cannot.
func startObserver() *observer {
	runtime.GOMAXPROCS(min(maxThreads, runtime.NumCPU()))
	complain := func(err error) *observer {
		fmt.Fprintf(os.Stderr, "penstock: nothing is recorded: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return nil
	}
	opts, err := options.FromEnviron(environ())
	if err != nil {
		return complain(err)
	}
	if opts.TracePath == "" {
		return complain(fmt.Errorf("PENSTOCK_TRACE names no file"))
	}
	o := &observer{path: record.PathFor(ranks.Path(opts.TracePath, ranks.FromEnviron(environ()).Label(0))), slots: map[uint32]uint64{}, live: map[uint64]observed{}, next: 1, streams: map[int]observedStream{}, stop: make(chan struct{})}
	o.log, err = record.Create(o.path, trace.Header{Source: analyse.SourceObserved, Command: strings.Join(os.Args, " "), Process: os.Getpid()}, record.Options{Clock: hook.Clock})
	if err != nil {
		return complain(err)
	}
	if o.group, err = faults.OpenAll(faults.Options{Kinds: faults.Everything}); err != nil {
		o.log.Lacks(err.Error())
		fmt.Fprintf(os.Stderr, "penstock: launches are recorded, but no faults: %s\n", err)
	} else if o.counters, err = o.group.Counters(); err != nil {
		o.log.Lacks(err.Error())
	}
	if err := o.attach(); err != nil {
		o.log.Lacks("launches: " + err.Error())
	}
	o.threads.Add(2)
	go o.loop()
	go o.flush()
	return o
}

// attach switches the hook on.
func (o *observer) attach() error {
	shared, err := attachHook()
	if err != nil {
		return err
	}
	o.hook = shared
	shared.SetStamps(true)
	d, err := cuda.Open(cuda.Options{Resolve: hookResolve})
	if err == nil {
		err = d.BindThread()
	}
	if err == nil && !d.Capabilities().StreamMemOps {
		err = fmt.Errorf("this driver has no stream memory operations")
	}
	if err != nil {
		o.log.Lacks("how far streams have got: " + err.Error())
		shared.SetMode(hook.Observe)
		return nil
	}
	shared.Serve()
	words, err := d.HostAlloc(2 * hook.WordsBytes)
	if err != nil {
		return fmt.Errorf("pinned memory: %w", err)
	}
	shared.Words(words, words+hook.WordsBytes)
	shared.SetProgressEvery(progressSeldom)
	o.progress = true
	shared.SetMode(hook.Gated)
	return nil
}

// alloc notes an allocation.
func (o *observer) alloc(p uint64, bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drain()
	slot := o.next
	if n := len(o.free); n > 0 {
		slot, o.free = o.free[n-1], o.free[:n-1]
	} else {
		o.next++
	}
	o.nextID++
	o.live[p] = observed{o.nextID, slot, bytes}
	o.slots[slot] = o.nextID
	if o.hook != nil {
		o.hook.Publish(slot, cuda.Range{Base: cuda.Ptr(p), Bytes: bytes}, true)
	}
	o.log.Add(trace.Event{Kind: trace.KindAlloc, Alloc: o.nextID, Address: p, Bytes: bytes})
}

// release notes that an allocation is about to be freed.
func (o *observer) release(p uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x, ok := o.live[p]
	if !ok {
		return // device memory
	}
	o.drain()
	delete(o.live, p)
	delete(o.slots, x.slot)
	if o.hook != nil {
		o.hook.Withdraw(x.slot, cuda.Range{Base: cuda.Ptr(p), Bytes: x.size})
	}
	o.free = append(o.free, x.slot)
	o.log.Add(trace.Event{Kind: trace.KindFree, Alloc: x.id})
}

// drain records what has arrived, and says whether anything had. The caller holds the lock.
func (o *observer) drain() (busy bool) {
	if o.hook != nil {
		handles := o.hook.Streams()
		busy = o.hook.Drain(func(rec *hook.Record) {
			if rec.Flags&hook.FlagCaptured != 0 {
				return
			}
			var handle uint64
			if rec.Stream < len(handles) {
				handle = handles[rec.Stream]
			}
			s := o.streams[rec.Stream]
			s.handle = handle
			o.streams[rec.Stream] = s
			e := operationOf(rec, handle)
			e.Accesses = o.accesses[:0]
			for _, slot := range rec.Slots {
				if id, ok := o.slots[slot]; ok {
					e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
				}
			}
			o.accesses = e.Accesses
			o.log.Operation(&e, rec.Seq, o.hook.FunctionName, rec.Nanos)
		}) > 0
	}
	if o.group == nil {
		o.readProgress()
		return busy
	}
	o.events = o.group.Drain(o.events[:0])
	o.readProgress() // what had finished when they were read
	if len(o.events) == 0 {
		o.pace(false)
		return busy
	}
	o.log.Faults(o.events)
	o.log.Lost(o.group.Lost())
	faulting := false
	for i := range o.events {
		if o.events[i].Kind == trace.KindFault {
			faulting = true
			o.faults++
		}
	}
	o.pace(faulting)
	return true
}

// pace asks for progress after every operation while there are faults.
func (o *observer) pace(faulting bool) {
	if !o.progress {
		return
	}
	switch now := time.Now(); {
	case faulting:
		if o.faulting.IsZero() {
			o.hook.SetProgressEvery(1)
		}
		o.faulting = now
	case !o.faulting.IsZero() && now.Sub(o.faulting) > faultingPatience:
		o.hook.SetProgressEvery(progressSeldom)
		o.faulting = time.Time{}
	}
}

func (o *observer) readProgress() {
	if !o.progress {
		return
	}
	for i, s := range o.streams {
		seq := o.hook.Progress(i)
		if seq != 0 && seq != s.reported {
			s.reported = seq
			o.streams[i] = s
			o.log.Progress(s.handle, seq)
		}
	}
}

// loop records until it is told to stop.
func (o *observer) loop() {
	defer o.threads.Done()
	for {
		select {
		case <-o.stop:
			return
		default:
		}
		o.mu.Lock()
		busy := o.drain()
		faulting := !o.faulting.IsZero()
		o.mu.Unlock()
		switch {
		case faulting:
			time.Sleep(observerBusy)
		case busy:
			time.Sleep(observerLaunches)
		case o.hook != nil:
			o.hook.Wait(observerIdle)
		default:
			time.Sleep(observerIdle)
		}
	}
}

// flush makes the driver tell of migrations that are over.
func (o *observer) flush() {
	defer o.threads.Done()
	tick := time.NewTicker(observerFlush)
	defer tick.Stop()
	for {
		select {
		case <-o.stop:
			return
		case <-tick.C:
			if o.group != nil {
				_ = o.group.Flush() // a failure shows in the driver's sums
			}
		}
	}
}

func (o *observer) close() {
	if o.hook != nil {
		o.hook.SetMode(hook.Off)
	}
	close(o.stop)
	o.threads.Wait()
	if o.group != nil {
		_ = o.group.Flush()
	}
	o.mu.Lock()
	o.drain()
	o.mu.Unlock()
	var sums *analyse.Counters
	if len(o.counters) > 0 {
		s := analyse.Counters(faults.Finish(o.counters))
		sums = &s
	}
	lost := uint64(0)
	if o.group != nil {
		lost = o.group.Lost().Total()
		o.log.Lost(o.group.Lost())
		_ = o.group.Close()
	}
	if err := o.log.Close(sums); err != nil {
		fmt.Fprintf(os.Stderr, "penstock: the recording is incomplete: %v\n", err)
		return
	}
	what := fmt.Sprintf("%d faults, %d lost events", o.faults, lost)
	if o.group == nil {
		what = "faults could not be seen"
	}
	fmt.Fprintf(os.Stderr, "penstock: recorded to %s (%s): look at it with `penstock faults explain %s`\n", o.path, what, o.path)
}

//export observeAlloc
func observeAlloc(p C.ulonglong, bytes C.size_t) (first C.int) {
	defer guard("penstock_observe_alloc")
	observing.once.Do(func() {
		if observing.o = startObserver(); observing.o != nil {
			first = 1
		}
	})
	if o := observing.o; o != nil && bytes > 0 {
		o.alloc(uint64(p), int64(bytes))
	}
	return first
}

//export observeFree
func observeFree(p C.ulonglong) {
	defer guard("penstock_observe_free")
	if o := observing.o; o != nil {
		o.release(uint64(p))
	}
}

//export observeClose
func observeClose() {
	defer guard("the end of observing")
	if o := observing.o; o != nil {
		observing.o = nil
		o.close()
	}
}
