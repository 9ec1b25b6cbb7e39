package main

/*
#include <stdint.h>
#include <stdlib.h>
#include <dlfcn.h>

#include "exports.h"
#include "penstock.h"

extern char **environ;
static const char *environ_at(int i) { return environ ? environ[i] : NULL; }

typedef void *(*attach_fn)(uint32_t);
typedef void *(*real_fn)(const char *);

static void *hook_attach(uint32_t abi)
{
	attach_fn f = (attach_fn)dlsym(RTLD_DEFAULT, "penstock_hook_attach");
	return f ? f(abi) : NULL;
}
static int hook_loaded(void) { return dlsym(RTLD_DEFAULT, "penstock_hook_attach") != NULL; }
static void *hook_real(const char *name)
{
	real_fn f = (real_fn)dlsym(RTLD_DEFAULT, "penstock_hook_real");
	return f ? f(name) : NULL;
}
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/internal/jobs"
	"github.com/penstock-gpu/penstock/internal/ranks"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/stats"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// maxThreads bounds the Go scheduler: the engine shares its cores with the job. A
// recording has threads of its own (encoder, writer, the driver's flush), which the
// engine's, often all in long system calls, are not to wait for.
const (
	maxThreads       = 4
	recordingThreads = 4
)

// state is the engine of this process.
var state struct {
	mu       sync.Mutex
	engine   atomic.Pointer[live.Live]
	device   int
	started  bool
	options  options.Runtime    // with the files of this process
	label    string             // of this process in its job; see package ranks
	timeline *timeline.Timeline // nil: nothing is kept
	closed   bool
	close    func()
	asked    *jobs.Listener // by penstock top; nil: it is not
	record   func(on bool)  // nil without a recording
	errText  atomic.Pointer[string]
}

func main() {} // c-shared libraries have one and never run it

// setError remembers an error for penstock_last_error.
func setError(err error) {
	text := err.Error()
	state.errText.Store(&text)
}

// guard turns a panic into an error, and gives the job's thread its context back.
func guard(call string) {
	if p := recover(); p != nil {
		setError(fmt.Errorf("internal error in %s: %v\n%s", call, p, debug.Stack()))
		fmt.Fprintf(os.Stderr, "penstock: internal error in %s: %v\n%s", call, p, debug.Stack())
	}
	cuda.LeaveThread()
}

// engine is the running engine, started if need be; nil when it cannot be.
func engine(device int) *live.Live {
	if e := state.engine.Load(); e != nil {
		return serving(e, device)
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	if e := state.engine.Load(); e != nil { // another thread has started it meanwhile
		return serving(e, device)
	}
	if state.started { // it failed before, or was closed
		return nil
	}
	state.started = true
	e, err := start(max(device, 0))
	if err != nil {
		setError(err)
		return nil
	}
	state.device = max(device, 0)
	state.engine.Store(e)
	return e
}

// serving is the running engine, nil for another device than its own.
func serving(e *live.Live, device int) *live.Live {
	if device != state.device && device >= 0 {
		setError(fmt.Errorf("penstock serves one device a process: device %d asked for, device %d is in use", device, state.device))
		return nil
	}
	return e
}

func start(device int) (*live.Live, error) {
	env := environ()
	o, err := options.FromEnviron(env)
	if err != nil {
		return nil, err
	}
	threads := maxThreads
	if o.TracePath != "" {
		threads += recordingThreads
	}
	runtime.GOMAXPROCS(min(threads, runtime.NumCPU()))
	rank := ranks.FromEnviron(env)
	state.label = rank.Label(device)
	for _, path := range []*string{&o.TracePath, &o.ReportPath, &o.TimelinePath} {
		*path = ranks.Path(*path, state.label)
	}
	state.options = o
	log, err := newLog(o.LogLevel)
	if err != nil {
		return nil, err
	}
	policy, err := um.PolicyByName(o.Policy)
	if err != nil {
		return nil, err
	}
	co := cuda.Options{Ordinal: device, ManagedLimitBytes: o.ManagedLimit, Exportable: o.IPC}
	if C.hook_loaded() != 0 {
		co.Resolve = hookResolve
	}
	d, err := cuda.Open(co)
	if err != nil {
		return nil, err
	}
	var h process.Hook
	var missed []string
	if C.hook_loaded() != 0 {
		area := C.hook_attach(hook.ABI)
		shared, err := hook.New(area)
		if err != nil {
			return nil, err
		}
		h = shared
		if missed = missedRoutes(selfTest(area, pinnedWord(d))); len(missed) > 0 {
			log.Warn("launches by some routes are not seen by the hook: another preloaded library may stand before it (see `penstock doctor`); what they need is not foreseen, and faults",
				zap.Strings("routes", missed))
		}
	} else {
		log.Warn("the launch hook is not loaded: nothing can be foreseen; start the job with `penstock run`")
	}
	if o.Verify && o.Engine == options.EngineAuto {
		o.Engine = options.EngineExplicit // which alone can be verified
	}
	if o.Verify && o.Engine != options.EngineExplicit {
		return nil, fmt.Errorf("PENSTOCK_VERIFY checks the moves of the explicit engine: use it with --engine explicit")
	}
	if o.Replay != options.ReplayOff && o.Engine != options.EngineExplicit && o.Engine != options.EngineAuto {
		return nil, fmt.Errorf("PENSTOCK_REPLAY makes again what the explicit engine moves: use it with --engine explicit")
	}
	layout, err := poolConfig(o, d.Info().Name)
	if err != nil {
		return nil, err
	}
	if layout.Front, err = front.New(device); err != nil {
		return nil, err
	}
	tensorFront, err := front.New(device)
	if err != nil {
		return nil, err
	}
	c := live.Config{
		Engine: live.EngineFor(o.Engine), Verify: o.Verify, Packs: o.Packs, Replay: replays[o.Replay],
		Policy: policy, BudgetBytes: o.Budget, HostBudgetBytes: o.HostBudget,
		ManagedLimitBytes: o.ManagedLimit, PlainOnly: o.Engine == options.EngineNone, LookaheadBytes: o.LookaheadBytes,
		MissedRoutes: missed, Pool: layout, TensorFront: tensorFront, Label: state.label, LocalProcesses: rank.Local,
	}
	if o.TimelinePath != "" {
		if o.Engine != options.EngineExplicit && o.Engine != options.EngineAuto {
			return nil, fmt.Errorf("PENSTOCK_TIMELINE shows what the explicit engine does: use it with --engine explicit")
		}
		state.timeline = &timeline.Timeline{}
		c.Timeline = state.timeline
	}
	if o.Progress && !o.JSON && o.LogLevel != "error" {
		c.Say = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	if o.TracePath != "" {
		r, err := startRecording(o, d.Info().Name, log)
		if err != nil {
			return nil, err
		}
		c.Sink, c.AllocsToldElsewhere = r, r.allocs != nil
		state.close, state.record = r.close, r.pause
	}
	e, err := live.New(c, d, h, log)
	if err != nil {
		return nil, err
	}
	C.exports_use_fronts(layout.Front.C(), tensorFront.C())
	if o.Top {
		state.asked = listen(e, log)
	}
	if choice := e.Choice(); choice != "" {
		fmt.Fprintf(os.Stderr, "%s: %s\n", stats.Speaker(state.label), choice)
	}
	return e, nil
}

// replays are the choices of PENSTOCK_REPLAY.
var replays = map[string]um.Replay{options.ReplayOff: um.ReplayOff, options.ReplayInsured: um.ReplayInsured, options.ReplayOn: um.ReplayOn}

// hookResolve finds the real driver functions, past the hook.
func hookResolve(name string) unsafe.Pointer {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.hook_real(c)
}

// attachHook views the state that the hook shares.
func attachHook() (*hook.Shared, error) {
	if C.hook_loaded() == 0 {
		return nil, errors.New("the launch hook is not loaded")
	}
	return hook.New(C.hook_attach(hook.ABI))
}

// environ is the process's environment as it is now: Go's own view of it, in a
// library that is loaded late, is from the process's start.
func environ() (env []string) {
	for i := C.int(0); ; i++ {
		kv := C.environ_at(i)
		if kv == nil {
			return env
		}
		env = append(env, C.GoString(kv))
	}
}

func newLog(level string) (*zap.Logger, error) {
	l := zapcore.WarnLevel
	if level != "" {
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("PENSTOCK_LOG: %q is not a level: use debug, info, warn or error", level)
		}
	}
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(c), zapcore.Lock(os.Stderr), l)).Named(stats.Speaker(state.label)), nil
}

//export engineInit
func engineInit(device C.int) C.int {
	defer guard("penstock_init")
	if engine(int(device)) == nil {
		return -C.int(syscall.ENODEV)
	}
	return 0
}

//export engineMalloc
func engineMalloc(size C.ssize_t, device C.int, stream C.uintptr_t) (p C.uintptr_t) {
	defer guard("penstock_malloc")
	e := engine(int(device))
	if e == nil {
		return 0
	}
	q, err := e.Malloc(int64(size), uint64(stream))
	if err != nil {
		setError(err)
		return 0
	}
	return C.uintptr_t(q)
}

//export engineFree
func engineFree(p C.uintptr_t) {
	defer guard("penstock_free")
	if e := state.engine.Load(); e != nil {
		if err := e.Free(cuda.Ptr(p)); err != nil {
			setError(err)
		}
	}
}

// engineNotLive answers for a free of what was freed before.
//
//export engineNotLive
func engineNotLive(p C.uintptr_t) {
	defer guard("penstock_free")
	setError(fmt.Errorf("%#x is not a live allocation", uint64(p)))
}

//export engineRecordStream
func engineRecordStream(p, stream C.uintptr_t) {
	defer guard("penstock_record_stream")
	if e := state.engine.Load(); e != nil {
		if err := e.RecordStream(cuda.Ptr(p), uint64(stream)); err != nil {
			setError(err)
		}
	}
}

//export engineEmptyCache
func engineEmptyCache() {
	defer guard("penstock_empty_cache")
	if e := state.engine.Load(); e != nil {
		e.EmptyCache()
	}
}

//export engineReset
func engineReset() {
	defer guard("penstock_reset")
	if e := state.engine.Load(); e != nil {
		e.EmptyCache()
		e.ResetPeaks()
	}
}

//export engineResetPeaks
func engineResetPeaks() {
	defer guard("penstock_reset_peak_stats")
	if e := state.engine.Load(); e != nil {
		e.ResetPeaks()
	}
}

//export engineSetFraction
func engineSetFraction(fraction C.double, device C.int) C.int {
	defer guard("penstock_set_memory_fraction")
	e := engine(int(device))
	if e == nil {
		return -C.int(syscall.ENODEV)
	}
	if err := e.SetFraction(float64(fraction)); err != nil {
		setError(err)
		return -C.int(syscall.EINVAL)
	}
	return 0
}

//export engineStats
func engineStats(buf *C.char, capacity C.size_t) C.long {
	defer guard("penstock_stats")
	e := state.engine.Load()
	if e == nil {
		return put(buf, capacity, []byte("{}"))
	}
	return putJSON(buf, capacity, e.Stats())
}

//export engineSnapshot
func engineSnapshot(buf *C.char, capacity C.size_t) C.long {
	defer guard("penstock_snapshot")
	snapshot := struct {
		Segments []segments.Segment `json:"segments"`
	}{Segments: []segments.Segment{}}
	if e := state.engine.Load(); e != nil {
		snapshot.Segments = e.Segments()
	}
	return putJSON(buf, capacity, snapshot)
}

//export engineRecord
func engineRecord(on C.int) C.int {
	defer guard("penstock_record")
	state.mu.Lock() // one at a time, and none after the end: nobody would read what is noted
	defer state.mu.Unlock()
	e := state.engine.Load()
	if e == nil || state.record == nil || state.closed {
		return -C.int(syscall.ENODEV)
	}
	e.Record(on != 0)
	state.record(on != 0)
	return 0
}

//export engineLastError
func engineLastError(buf *C.char, capacity C.size_t) C.long {
	defer guard("penstock_last_error")
	var text []byte
	if p := state.errText.Load(); p != nil {
		text = []byte(*p)
	}
	return put(buf, capacity, text)
}

// put copies text and a NUL into a buffer of a caller, if it fits, and returns its length.
func put(buf *C.char, capacity C.size_t, text []byte) C.long {
	if buf != nil && int(capacity) > len(text) {
		out := unsafe.Slice((*byte)(unsafe.Pointer(buf)), len(text)+1)
		copy(out, text)
		out[len(text)] = 0
	}
	return C.long(len(text))
}

// putJSON is put for a value as JSON.
func putJSON(buf *C.char, capacity C.size_t, value any) C.long {
	text, err := json.Marshal(value)
	if err != nil {
		setError(err)
		return -C.long(syscall.EIO)
	}
	return put(buf, capacity, text)
}

//export engineSelfTest
func engineSelfTest(buf *C.char, capacity C.size_t) C.long {
	defer guard("penstock_self_test")
	report := struct {
		Hook   bool            `json:"hook"`
		Routes []selfTestRoute `json:"routes"`
	}{Routes: []selfTestRoute{}}
	if C.hook_loaded() != 0 {
		area := C.hook_attach(hook.ABI)
		if _, err := hook.New(area); err != nil {
			setError(err)
			return -C.long(syscall.ENOTSUP)
		}
		report.Hook = true
		report.Routes = append(report.Routes, selfTest(area, nil)...)
	}
	return putJSON(buf, capacity, report)
}

//export engineBeginPool
func engineBeginPool(device C.int, hi, lo C.ulonglong) C.int {
	defer guard("penstock_begin_pool")
	return withEngine(device, func(e *live.Live) error { return e.BeginPool(live.PoolID{uint64(hi), uint64(lo)}) })
}

//export engineEndPool
func engineEndPool(device C.int, hi, lo C.ulonglong) C.int {
	defer guard("penstock_end_pool")
	return withEngine(device, func(e *live.Live) error { return e.EndPool(live.PoolID{uint64(hi), uint64(lo)}) })
}

//export engineReleasePool
func engineReleasePool(device C.int, hi, lo C.ulonglong) C.int {
	defer guard("penstock_release_pool")
	return withEngine(device, func(e *live.Live) error { return e.ReleasePool(live.PoolID{uint64(hi), uint64(lo)}) })
}

//export engineRetainPool
func engineRetainPool(device C.int, hi, lo C.ulonglong) C.int {
	defer guard("penstock_retain_pool")
	return withEngine(device, func(e *live.Live) error { return e.RetainPool(live.PoolID{uint64(hi), uint64(lo)}) })
}

//export enginePoolUsers
func enginePoolUsers(device C.int, hi, lo C.ulonglong) C.int {
	defer guard("penstock_pool_users")
	e := engine(int(device))
	if e == nil {
		return -C.int(syscall.ENODEV)
	}
	return C.int(e.PoolUsers(live.PoolID{uint64(hi), uint64(lo)}))
}

//export engineMallocInPool
func engineMallocInPool(size C.ssize_t, device C.int, stream C.uintptr_t, hi, lo C.ulonglong) (p C.uintptr_t) {
	defer guard("penstock_malloc_in_pool")
	withEngine(device, func(e *live.Live) error {
		q, err := e.MallocIn(live.PoolID{uint64(hi), uint64(lo)}, int64(size), uint64(stream))
		p = C.uintptr_t(q)
		return err
	})
	return p
}

//export enginePoolBlocks
func enginePoolBlocks(device C.int, hi, lo C.ulonglong, blocks *C.struct_penstock_block, capacity C.size_t) C.long {
	defer guard("penstock_pool_blocks")
	e := engine(int(device))
	if e == nil {
		return -C.long(syscall.ENODEV)
	}
	all := e.PoolBlocks(live.PoolID{uint64(hi), uint64(lo)})
	for i, b := range all[:min(len(all), int(capacity))] {
		to := (*C.struct_penstock_block)(unsafe.Add(unsafe.Pointer(blocks), i*C.sizeof_struct_penstock_block))
		*(*uintptr)(unsafe.Pointer(&to.ptr)) = uintptr(b.Base) // a device address, which Go must not take for one of its own
		to.size = C.size_t(b.Bytes)
	}
	return C.long(len(all))
}

//export engineSizeOf
func engineSizeOf(p C.uintptr_t) C.size_t {
	defer guard("penstock_size_of")
	if e := state.engine.Load(); e != nil {
		return C.size_t(e.SizeOf(cuda.Ptr(p)))
	}
	return 0
}

//export engineRestoreInPool
func engineRestoreInPool(p C.uintptr_t, size C.ssize_t, device C.int, hi, lo C.ulonglong) C.int {
	defer guard("penstock_restore_in_pool")
	return withEngine(device, func(e *live.Live) error {
		return e.RestoreIn(live.PoolID{uint64(hi), uint64(lo)}, cuda.Ptr(p), int64(size))
	})
}

func withEngine(device C.int, do func(*live.Live) error) C.int {
	e := engine(int(device))
	if e == nil {
		return -C.int(syscall.ENODEV)
	}
	if err := do(e); err != nil {
		setError(err)
		return -C.int(syscall.EINVAL)
	}
	return 0
}

//export engineClose
func engineClose() {
	defer guard("penstock_close")
	state.mu.Lock()
	defer state.mu.Unlock()
	e := state.engine.Load()
	if e == nil || state.closed {
		return
	}
	state.closed = true
	if state.asked != nil {
		C.exports_listener(-1)
		state.asked.Close()
	}
	e.Autopsy()
	s := e.Stats()
	if err := e.Close(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: at exit: %v\n", stats.Speaker(state.label), err)
	}
	e.Judge(&s, state.options.CommandPath)
	if state.close != nil {
		state.close()
	}
	if state.options.TimelinePath != "" {
		if err := writeTimeline(state.options.TimelinePath, state.timeline); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", stats.Speaker(state.label), err)
		}
	}
	if state.options.ReportPath != "" {
		if err := writeReport(state.options.ReportPath, s); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", stats.Speaker(state.label), err)
		}
	}
	if state.options.JSON {
		if s.Explicit != nil {
			s.Explicit.Evidence = nil // too long a line: the report has it
		}
		if text, err := json.Marshal(s); err == nil {
			fmt.Fprintf(os.Stderr, "%s\n", text)
			return
		}
	}
	fmt.Fprint(os.Stderr, s.Verdict())
}

func writeTimeline(path string, t *timeline.Timeline) error {
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(t.Write(f), f.Close())
	}
	if err != nil {
		return fmt.Errorf("the time line could not be written: %w", err)
	}
	return nil
}

func writeReport(path string, s stats.Stats) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o666); err != nil {
		return fmt.Errorf("the exit report could not be written: %w", err)
	}
	return nil
}
