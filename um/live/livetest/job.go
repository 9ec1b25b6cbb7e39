package livetest

import (
	"bytes"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/cudastub"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// Job is a job under the explicit engine on the test double of the driver: what it launches really reads and
// writes memory, and memory that is away is not mapped.
type Job struct {
	Test
	Driver *cudastub.Driver
	Hook   *StrictHook
	Stream cuda.Stream // its only one, index 1 of the hook's
	Buffer cuda.Ptr    // pinned memory for what it reads and writes
	// Kernels.
	Add, sum, AddByTable, MakeTable cuda.Function
}

// TensorBytes is the size of a job's tensors: one and a half chunks at the least budget.
const TensorBytes = 12 * MiB

// NewJob starts a job, which is served by what serve makes for its driver and its launch hook.
func NewJob(t *testing.T, serve func(d *cudastub.Driver, h *StrictHook) Memory, env ...string) *Job {
	t.Helper()
	j := &Job{Test: Test{T: t}, Driver: cudastub.Open(t, append(env, "STUB_SCRIBBLE=1")...)}
	j.Hook = &StrictHook{
		Hook: NewHook(), lastSeq: map[uint32]uint64{}, tickets: map[uint32]uint32{}, plain: map[cuda.Ptr]int64{},
		states: map[uint32]hook.Inspect{}, follows: map[uint32]uint32{}, launches: map[uint64]*cuda.RecordedLaunch{}, Recorded: map[uint32]bool{}, Told: map[uint32]int{}, guarded: map[uint32]bool{},
		names: map[uint32]string{KernelElementwise: Elementwise, KernelGemm: "stub_gemm"},
	}
	var err error
	if j.Stream, err = j.Driver.StreamCreate(); err != nil {
		t.Fatal(err)
	}
	j.Hook.Handles = []uint64{0, uint64(j.Stream)}
	if j.Buffer, err = j.Driver.HostAlloc(TensorBytes); err != nil {
		t.Fatal(err)
	}
	j.Add, j.sum, j.AddByTable, j.MakeTable = j.Driver.Function("touch_add"), j.Driver.Function("vec_add"), j.Driver.Function("table_add"), j.Driver.Function("make_table")
	j.Memory = serve(j.Driver, j.Hook)
	t.Cleanup(func() { _ = j.Memory.Close() }) // tests that expect nothing else close it themselves
	return j
}

func (j *Job) Malloc(bytes int64) cuda.Ptr {
	j.Helper()
	return j.MallocOn(bytes, uint64(j.Stream))
}

// Work is an operation as the job launches it.
type Work struct {
	Kind, Flags int
	ID          uint32
	Names       []cuda.Ptr
	Addresses   []cuda.Ptr // in its parameters, where it asks for a grant
	Run         func() error
	Endless     bool                 // its end is never reported
	Again       *cuda.RecordedLaunch // what it is, if its function's launches are recorded
}

// Launch launches an operation as the hook does, which may refuse it.
func (j *Job) Launch(w Work) error {
	j.Helper()
	h := j.Hook
	h.Mu.Lock()
	h.Newest++
	r := hook.Record{Seq: h.Newest, Kind: w.Kind, Flags: w.Flags, ID: w.ID, Stream: 1}
	for _, p := range w.Names {
		if slot, ok := h.SlotOf[p]; ok && !slices.Contains(r.Slots, slot) {
			r.Slots = append(r.Slots, slot)
			h.lastSeq[slot] = r.Seq
		}
	}
	if w.Again != nil && h.Recorded[w.ID] {
		r.Recorded, h.launches[r.Seq] = 1, w.Again
		if n := h.Told[w.ID]; n > 0 { // what it writes to is named first
			r.Flags |= hook.FlagAccess | hook.FlagHasDst | (n-1)<<13
		}
	}
	switch {
	case w.Kind == hook.Copy && w.ID == hook.CopyH2D:
		r.Flags |= hook.FlagAccess | hook.FlagHasDst
	case w.Kind == hook.Copy && w.ID == hook.CopyD2H:
		r.Flags |= hook.FlagAccess
	}
	asks := w.Flags&(hook.FlagInspect|hook.FlagOpaque) != 0
	if asks {
		h.inspected, h.addresses = r.Seq, nil
		for _, p := range w.Addresses {
			h.addresses = append(h.addresses, uint64(p))
		}
	}
	h.Records = append(h.Records, r)
	h.Mu.Unlock()
	select {
	case h.bell <- struct{}{}:
	default:
	}
	for began := time.Now(); !h.mayRun(&r, asks); time.Sleep(5 * time.Microsecond) {
		if code := h.Refuses.Load(); code != 0 {
			return cuda.NewError(int(code), "cuLaunchKernel")
		}
		if time.Since(began) > 40*time.Second {
			j.Fatalf("a launch waits for ever\n%+v", j.Memory.Stats())
		}
	}
	if err := w.Run(); err != nil || w.Endless {
		return err
	}
	return j.Driver.StreamWriteValue32(j.Stream, h.progressWord(1), uint32(r.Seq))
}

// mayRun says whether what an operation names can be used, and the grant is there that it asks for.
func (h *StrictHook) mayRun(r *hook.Record, asks bool) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
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
	KernelAdd = iota
	kernelSum
	KernelMakeTable
	KernelByTable
	KernelOther
	KernelElementwise
	KernelGemm
)

// Elementwise is a kernel of the stub that is called as PyTorch's are.
const Elementwise = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_3StuESt5arrayIPcLm3EEEEviT0_T1_"

// Do launches a kernel of which the parameters tell what it touches.
func (j *Job) Do(id uint32, f cuda.Function, names []cuda.Ptr, args ...uint64) error {
	return j.Launch(Work{Kind: hook.Launch, ID: id, Names: names, Run: func() error { return j.Kernel(f, args...) }})
}

func (j *Job) Kernel(f cuda.Function, args ...uint64) error {
	return j.Driver.Launch(f, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, j.Stream, args...)
}

// Increase adds to every word of a tensor.
func (j *Job) Increase(p cuda.Ptr, bytes int64, by uint32) {
	j.Helper()
	j.Must(j.Do(KernelAdd, j.Add, []cuda.Ptr{p}, uint64(p), uint64(bytes/4), uint64(by)))
}

// Fill writes the same word everywhere.
func (j *Job) Fill(p cuda.Ptr, bytes int64, word uint32) {
	j.Helper()
	j.Must(j.Driver.StreamSynchronize(j.Stream)) // the buffer
	x := Words(j.Buffer, bytes)
	x[0] = word
	for n := 1; n < len(x); n *= 2 { // word by word it takes seconds under the race detector
		copy(x[n:], x[:n])
	}
	j.Must(j.Write(p, bytes))
}

// Write copies from the buffer.
func (j *Job) Write(p cuda.Ptr, bytes int64) error {
	return j.Launch(Work{Kind: hook.Copy, ID: hook.CopyH2D, Names: []cuda.Ptr{p}, Run: func() error { return j.Driver.CopyAsync(p, j.Buffer, bytes, j.Stream) }})
}

// Read copies to the buffer, and answers what is there.
func (j *Job) Read(p cuda.Ptr, bytes int64) []uint32 {
	j.Helper()
	j.Must(j.Launch(Work{Kind: hook.Copy, ID: hook.CopyD2H, Names: []cuda.Ptr{p}, Run: func() error { return j.Driver.CopyAsync(j.Buffer, p, bytes, j.Stream) }}))
	j.Must(j.Driver.StreamSynchronize(j.Stream))
	return Words(j.Buffer, bytes)
}

// Has fails unless every word of a tensor is that.
func (j *Job) Has(p cuda.Ptr, n int64, word uint32) {
	j.Helper()
	words := j.Read(p, n)
	if same := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n); words[0] == word && bytes.Equal(same[4:], same[:n-4]) {
		return // each word is the one before
	}
	for i, x := range words {
		if x != word {
			j.Fatalf("word %d of what is at %#x is %d, want %d", i, uint64(p), x, word)
		}
	}
}

// Closed ends the engine, which must have kept its accounts.
func (j *Job) Closed() {
	j.Helper()
	j.Must(j.Driver.StreamSynchronize(j.Stream))
	j.Must(j.Memory.Close())
}

// Oversubscribe makes more tensors than the budget holds, each filled with its number.
func (j *Job) Oversubscribe(n int) (tensors []cuda.Ptr) {
	j.Helper()
	for i := range n {
		p := j.Malloc(TensorBytes)
		j.Fill(p, TensorBytes, uint32(i))
		tensors = append(tensors, p)
	}
	return tensors
}
