package live

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// stubJob is a job under the explicit engine on the test double of the driver: what it launches really reads and
// writes memory, and memory that is away is not mapped.
type stubJob struct {
	*testing.T
	l      memory
	d      *cudastub.Driver
	h      *strictHook
	stream cuda.Stream // its only one, index 1 of the hook's
	buffer cuda.Ptr    // pinned memory for what it reads and writes
	// Kernels.
	add, sum, addByTable, makeTable cuda.Function
}

// stubTensor is the size of a job's tensors: one and a half chunks at the least budget.
const stubTensor = 12 * mib

// memory is who serves a job.
type memory interface {
	Malloc(bytes int64, stream uint64) (cuda.Ptr, error)
	Free(p cuda.Ptr) error
	Stats() Stats
	Close() error
}

// newStubJob starts a job, which is served by what serve makes for its driver and its launch hook.
func newStubJob(t *testing.T, serve func(d *cudastub.Driver, h *strictHook) memory, env ...string) *stubJob {
	t.Helper()
	j := &stubJob{T: t, d: cudastub.Open(t, append(env, "STUB_SCRIBBLE=1")...)}
	j.h = &strictHook{
		fakeHook: newHook(), lastSeq: map[uint32]uint64{}, tickets: map[uint32]uint32{}, plain: map[cuda.Ptr]int64{},
		states: map[uint32]hook.Inspect{}, follows: map[uint32]uint32{}, launches: map[uint64]*cuda.RecordedLaunch{}, recorded: map[uint32]bool{}, told: map[uint32]int{}, guarded: map[uint32]bool{},
		names: map[uint32]string{kernelElementwise: elementwise, kernelGemm: "stub_gemm"},
	}
	var err error
	if j.stream, err = j.d.StreamCreate(); err != nil {
		t.Fatal(err)
	}
	j.h.handles = []uint64{0, uint64(j.stream)}
	if j.buffer, err = j.d.HostAlloc(stubTensor); err != nil {
		t.Fatal(err)
	}
	j.add, j.sum, j.addByTable, j.makeTable = j.d.Function("touch_add"), j.d.Function("vec_add"), j.d.Function("table_add"), j.d.Function("make_table")
	j.l = serve(j.d, j.h)
	t.Cleanup(func() { _ = j.l.Close() }) // tests that expect nothing else close it themselves
	return j
}

func (j *stubJob) must(err error) {
	j.Helper()
	if err != nil {
		j.Fatal(err)
	}
}

func (j *stubJob) malloc(bytes int64) cuda.Ptr {
	j.Helper()
	p, err := j.l.Malloc(bytes, uint64(j.stream))
	j.must(err)
	return p
}

// work is an operation as the job launches it.
type work struct {
	kind, flags int
	id          uint32
	names       []cuda.Ptr
	addresses   []cuda.Ptr // in its parameters, where it asks for a grant
	queue       func() error
	endless     bool                 // its end is never reported
	again       *cuda.RecordedLaunch // what it is, if its function's launches are recorded
}

// launch launches an operation as the hook does, which may refuse it.
func (j *stubJob) launch(w work) error {
	j.Helper()
	h := j.h
	h.mu.Lock()
	h.head++
	r := hook.Record{Seq: h.head, Kind: w.kind, Flags: w.flags, ID: w.id, Stream: 1}
	for _, p := range w.names {
		if slot, ok := h.slotOf[p]; ok && !slices.Contains(r.Slots, slot) {
			r.Slots = append(r.Slots, slot)
			h.lastSeq[slot] = r.Seq
		}
	}
	if w.again != nil && h.recorded[w.id] {
		r.Recorded, h.launches[r.Seq] = 1, w.again
		if n := h.told[w.id]; n > 0 { // what it writes to is named first
			r.Flags |= hook.FlagAccess | hook.FlagHasDst | (n-1)<<13
		}
	}
	switch {
	case w.kind == hook.Copy && w.id == hook.CopyH2D:
		r.Flags |= hook.FlagAccess | hook.FlagHasDst
	case w.kind == hook.Copy && w.id == hook.CopyD2H:
		r.Flags |= hook.FlagAccess
	}
	asks := w.flags&(hook.FlagInspect|hook.FlagOpaque) != 0
	if asks {
		h.inspected, h.addresses = r.Seq, nil
		for _, p := range w.addresses {
			h.addresses = append(h.addresses, uint64(p))
		}
	}
	h.records = append(h.records, r)
	h.mu.Unlock()
	select {
	case h.bell <- struct{}{}:
	default:
	}
	for began := time.Now(); !h.mayRun(&r, asks); time.Sleep(5 * time.Microsecond) {
		if code := h.refuses.Load(); code != 0 {
			return cuda.NewError(int(code), "cuLaunchKernel")
		}
		if time.Since(began) > 40*time.Second {
			j.Fatalf("a launch waits for ever\n%+v", j.l.Stats())
		}
	}
	if err := w.queue(); err != nil || w.endless {
		return err
	}
	return j.d.StreamWriteValue32(j.stream, h.progressWord(1), uint32(r.Seq))
}

// mayRun says whether what an operation names can be used, and the grant is there that it asks for.
func (h *strictHook) mayRun(r *hook.Record, asks bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, s := range r.Slots {
		ticket, arrives := h.tickets[s]
		reads := r.Flags&hook.FlagAccess != 0 && i >= r.Written()
		if !h.resident[s] && !(arrives && hook.NewWord(h.arrived).Reached(ticket)) && !(h.guarded[s] && reads) {
			return false
		}
	}
	return !asks || h.granted == r.Seq
}

const (
	kernelAdd = iota
	kernelSum
	kernelMakeTable
	kernelByTable
	kernelOther
	kernelElementwise
	kernelGemm
)

// elementwise is a kernel of the stub that is called as PyTorch's are.
const elementwise = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_3StuESt5arrayIPcLm3EEEEviT0_T1_"

// run launches a kernel of which the parameters tell what it touches.
func (j *stubJob) run(id uint32, f cuda.Function, names []cuda.Ptr, args ...uint64) error {
	return j.launch(work{kind: hook.Launch, id: id, names: names, queue: func() error { return j.kernel(f, args...) }})
}

func (j *stubJob) kernel(f cuda.Function, args ...uint64) error {
	return j.d.Launch(f, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, j.stream, args...)
}

// increase adds to every word of a tensor.
func (j *stubJob) increase(p cuda.Ptr, bytes int64, by uint32) {
	j.Helper()
	j.must(j.run(kernelAdd, j.add, []cuda.Ptr{p}, uint64(p), uint64(bytes/4), uint64(by)))
}

// fill writes the same word everywhere.
func (j *stubJob) fill(p cuda.Ptr, bytes int64, word uint32) {
	j.Helper()
	j.must(j.d.StreamSynchronize(j.stream)) // the buffer
	for i, x := 0, words(j.buffer, bytes); i < len(x); i++ {
		x[i] = word
	}
	j.must(j.write(p, bytes))
}

// write copies from the buffer.
func (j *stubJob) write(p cuda.Ptr, bytes int64) error {
	return j.launch(work{kind: hook.Copy, id: hook.CopyH2D, names: []cuda.Ptr{p}, queue: func() error { return j.d.CopyAsync(p, j.buffer, bytes, j.stream) }})
}

// read copies to the buffer, and answers what is there.
func (j *stubJob) read(p cuda.Ptr, bytes int64) []uint32 {
	j.Helper()
	j.must(j.launch(work{kind: hook.Copy, id: hook.CopyD2H, names: []cuda.Ptr{p}, queue: func() error { return j.d.CopyAsync(j.buffer, p, bytes, j.stream) }}))
	j.must(j.d.StreamSynchronize(j.stream))
	return words(j.buffer, bytes)
}

// has fails unless every word of a tensor is that.
func (j *stubJob) has(p cuda.Ptr, bytes int64, word uint32) {
	j.Helper()
	for i, x := range j.read(p, bytes) {
		if x != word {
			j.Fatalf("word %d of what is at %#x is %d, want %d", i, uint64(p), x, word)
		}
	}
}

// eventually waits for what the engine's threads bring about.
func (j *stubJob) eventually(what string, holds func() bool) {
	j.Helper()
	for until := time.Now().Add(20 * time.Second); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(until) {
			j.Fatalf("not so after 20 s: %s\n%+v", what, j.l.Stats())
		}
	}
}

// closed ends the engine, which must have kept its accounts.
func (j *stubJob) closed() {
	j.Helper()
	j.must(j.d.StreamSynchronize(j.stream))
	j.must(j.l.Close())
}

// oversubscribe makes more tensors than the budget holds, each filled with its number.
func (j *stubJob) oversubscribe(n int) (tensors []cuda.Ptr) {
	j.Helper()
	for i := range n {
		p := j.malloc(stubTensor)
		j.fill(p, stubTensor, uint32(i))
		tensors = append(tensors, p)
	}
	return tensors
}
