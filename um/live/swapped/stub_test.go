package swapped

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// stubTensors are more than the budget holds: five do.
const stubTensors = 9

// TestExplicitKeepsBytes: a job of nearly twice the budget computes what it would in memory, within the budget.
func TestExplicitKeepsBytes(t *testing.T) {
	for name, verify := range map[string]bool{"plain": false, "verified": true} {
		t.Run(name, func(t *testing.T) {
			c := defaults()
			c.Verify = verify
			j := newJob(t, c)
			const rounds = 2
			tensors := j.Oversubscribe(stubTensors)
			for range rounds {
				for i, p := range tensors {
					j.Increase(p, livetest.TensorBytes, uint32(i+1))
				}
			}
			for i, p := range tensors {
				j.Has(p, livetest.TensorBytes, uint32(i+rounds*(i+1)))
			}
			if most := j.Driver.Count("physical_peak_bytes"); most > c.BudgetBytes {
				t.Errorf("%d bytes of device memory at most, the budget is %d", most, c.BudgetBytes)
			}
			s := j.l.Stats()
			if s.Engine != "explicit" || s.AllocatedBytes != stubTensors*livetest.TensorBytes || s.FetchedBytes == 0 || s.EvictedBytes == 0 || s.InSeconds <= 0 || s.OutSeconds <= 0 {
				t.Errorf("%+v", s)
			}
			for _, part := range []string{"in_begin", "out_begin", "out_unmap", "in_map", "lane_submit"} {
				if s.Explicit.WorkerSeconds[part] <= 0 {
					t.Errorf("no time went to %s of %v", part, s.Explicit.WorkerSeconds)
				}
			}
			for _, p := range tensors {
				j.Must(j.l.Free(p))
			}
			j.l.EmptyCache()
			if on, s := j.Driver.Count("physical_bytes"), j.l.Stats(); on != 0 || s.AllocatedBytes != 0 || s.ReservedBytes != 0 {
				t.Errorf("%d bytes of device memory, %d allocated, %d reserved when all is freed and emptied", on, s.AllocatedBytes, s.ReservedBytes)
			}
			if err := j.l.Free(tensors[0]); !errors.Is(err, um.ErrNotOurs) {
				t.Errorf("freed twice: %v", err)
			}
			j.Closed()
		})
	}
}

// fails waits for the engine to have failed, and answers what a launch of something absent is refused with.
func (j *job) fails(tensors []cuda.Ptr) (refused *cuda.Error) {
	j.Helper()
	for range 2 { // rounds, if it fails in the middle
		for _, p := range tensors {
			if err := j.Do(livetest.KernelAdd, j.Add, []cuda.Ptr{p}, uint64(p), livetest.TensorBytes/4, 1); errors.As(err, &refused) {
				return refused
			}
		}
	}
	j.Fatal("no launch is refused")
	return nil
}

// TestExplicitFailures: a move that fails ends the engine, launches of what is away are refused with a code that says what
// it was, and the error names it; where the driver has only less memory than was thought, the job goes on.
func TestExplicitFailures(t *testing.T) {
	for _, test := range []struct {
		fail string
		code int // a launch is refused with
		why  string
	}{
		{"cuMemMap:1", resultUnknown, "mapping"},
		{"cuMemUnmap:1", resultUnknown, "unmapping"},
		{"cuMemcpyAsync:1", resultUnknown, "copying"},
		{"cuStreamWriteValue32:1+", resultUnknown, "marking"},
		{"copy:1", 214, "ECC"},
	} {
		t.Run(test.fail, func(t *testing.T) {
			j := newJob(t, defaults())
			tensors := j.Oversubscribe(stubTensors)
			j.Must(j.Driver.StreamSynchronize(j.Stream))
			j.Driver.Fail(test.fail)
			refused := j.fails(tensors)
			j.Driver.Fail("")
			if err := j.l.Close(); err == nil || !strings.Contains(err.Error(), test.why) {
				t.Errorf("the engine ended with: %v", err)
			}
			if refused.Code != test.code && refused.Code != 2 { // a launch of the job's own may be what fails
				t.Errorf("a launch is refused with %v", refused)
			}
		})
	}
}

// TestExplicitVerifyFindsAWrongByte: a byte that changes on its way is found when it comes back, and nobody computes with it.
func TestExplicitVerifyFindsAWrongByte(t *testing.T) {
	c := defaults()
	c.Verify = true
	j := newJob(t, c)
	tensors := j.Oversubscribe(stubTensors)
	j.Must(j.Driver.StreamSynchronize(j.Stream))
	j.Driver.Fail("flip:1")
	if refused := j.fails(tensors); refused.Code != resultUnknown {
		t.Errorf("a launch is refused with %v", refused)
	}
	if err := j.l.Close(); !errors.Is(err, explicit.ErrMismatch) || !strings.Contains(err.Error(), "last named by kernel") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// TestExplicitLessMemoryThanTheBudget: where the driver has no more, the budget becomes what there is, and all goes on in it.
func TestExplicitLessMemoryThanTheBudget(t *testing.T) {
	j := newJob(t, defaults())
	first := j.Oversubscribe(3)
	j.Driver.Fail("cuMemCreate:1+")
	for i := range stubTensors - 3 {
		p := j.Malloc(livetest.TensorBytes)
		j.Fill(p, livetest.TensorBytes, uint32(3+i))
		first = append(first, p)
	}
	for i, p := range first {
		j.Has(p, livetest.TensorBytes, uint32(i))
	}
	if b := j.l.Stats().BudgetBytes; b >= defaults().BudgetBytes || b < 2*livetest.TensorBytes {
		t.Errorf("the budget is %d", b)
	}
	j.Closed()
}

// TestExplicitContextEnds: the job's own kernel reaches what is not mapped. What waits for memory meanwhile ends with what
// the driver answers from then on, and the error says what it can mean.
func TestExplicitContextEnds(t *testing.T) {
	j := newJob(t, defaults())
	tensors := j.Oversubscribe(5)
	more := j.Malloc(livetest.TensorBytes)
	// An operation that never finishes keeps all of the memory that there is.
	j.Must(j.Launch(livetest.Work{Kind: hook.Launch, Names: tensors, Endless: true, Run: func() error { return j.Kernel(j.Add, 64, 1, 1) }}))
	err := j.Do(livetest.KernelAdd, j.Add, []cuda.Ptr{more}, uint64(more), 1, 1)
	var driver *cuda.Error
	if !errors.As(err, &driver) || driver.Code != 700 {
		t.Errorf("a launch that waits ends with %v", err)
	}
	if err := j.l.Close(); !errors.Is(err, cuda.ErrIllegalAddress) || !strings.Contains(err.Error(), "--engine managed") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// asks launches a kernel whose parameters may lead to more than they name.
func (j *job) asks(id uint32, flags int, f cuda.Function, names, addresses []cuda.Ptr, args ...uint64) error {
	return j.Launch(livetest.Work{Kind: hook.Launch, Flags: flags, ID: id, Names: names, Addresses: addresses, Run: func() error { return j.Kernel(f, args...) }})
}

// table writes a table of addresses at an address of a tensor.
func (j *job) table(at cuda.Ptr, entries ...cuda.Ptr) {
	j.Helper()
	j.Must(j.Driver.StreamSynchronize(j.Stream))
	for i, p := range entries {
		x := livetest.Words(j.Buffer, livetest.TensorBytes)
		x[2*i], x[2*i+1] = uint32(p), uint32(p>>32)
	}
	j.Must(j.Write(at, int64(8*len(entries))))
}

// TestExplicitPointers: what a kernel reaches through a table of addresses is on the device when it runs, whether the table
// is in a tensor, in plain memory or in pinned memory of the job's own.
func TestExplicitPointers(t *testing.T) {
	j := newJob(t, defaults())
	tensors := j.Oversubscribe(stubTensors)
	a, b := tensors[0], tensors[1] // which have left
	own := j.Malloc(livetest.TensorBytes)
	j.table(own, a, b)
	byTable := func(at cuda.Ptr, names ...cuda.Ptr) error {
		return j.asks(livetest.KernelByTable, hook.FlagInspect, j.AddByTable, names, []cuda.Ptr{at}, uint64(at), 2, livetest.TensorBytes/4, 100)
	}
	j.Must(byTable(own, own))
	j.Has(a, livetest.TensorBytes, 100)
	j.Has(b, livetest.TensorBytes, 101)
	small := j.Malloc(4096) // plain memory
	for _, p := range tensors[2:] {
		j.Increase(p, livetest.TensorBytes, 0) // a and b leave
	}
	j.table(small, a, b)
	j.Must(byTable(small))
	j.Has(a, livetest.TensorBytes, 200)
	pinned, err := j.Driver.HostAlloc(4096)
	j.Must(err)
	x := livetest.Words(pinned, 16)
	x[0], x[1], x[2], x[3] = uint32(a), uint32(a>>32), uint32(b), uint32(b>>32)
	j.Must(byTable(pinned))
	j.Has(b, livetest.TensorBytes, 301)
	if j.Hook.GraphsChased.Load() {
		t.Error("graphs would be searched each time, and there were none")
	}
	j.Must(j.Launch(livetest.Work{Kind: hook.Graph, Flags: hook.FlagInspect, Names: []cuda.Ptr{own}, Addresses: []cuda.Ptr{own}, Run: func() error {
		return j.Kernel(j.AddByTable, uint64(own), 2, livetest.TensorBytes/4, 100)
	}}))
	j.Has(a, livetest.TensorBytes, 400)
	if !j.Hook.GraphsChased.Load() {
		t.Error("the graph would not be searched the next time")
	}
	s := j.l.Stats().Explicit
	if s.Inspected != 4 || s.Chasers != 4 || s.GrantStallSeconds <= 0 {
		t.Errorf("%d inspected, %d of them reach tensors, %f s", s.Inspected, s.Chasers, s.GrantStallSeconds)
	}
	if state, _ := j.Hook.State(livetest.KernelByTable); state != hook.InspectAlways {
		t.Errorf("the kernel's state is %d: it would not be searched the next time", state)
	}
	j.Closed()
}

// TestExplicitFollows: a kernel that has reached sixteen times what the one before it names is searched no longer; once
// it reaches something else it is, for good.
func TestExplicitFollows(t *testing.T) {
	j := newJob(t, defaults())
	at, a, stranger := j.Malloc(livetest.TensorBytes), j.Malloc(livetest.TensorBytes), j.Malloc(livetest.TensorBytes)
	for _, p := range []cuda.Ptr{at, a, stranger} {
		j.Fill(p, livetest.TensorBytes, 0)
	}
	round := func(to cuda.Ptr) {
		t.Helper()
		j.Must(j.Do(livetest.KernelMakeTable, j.MakeTable, []cuda.Ptr{at, a}, uint64(at), 1, uint64(to), 0))
		j.Must(j.asks(livetest.KernelByTable, hook.FlagInspect, j.AddByTable, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1, 1024, 1))
	}
	for i := range followsAfter {
		if state, _ := j.Hook.State(livetest.KernelByTable); i > 0 && state != hook.InspectAlways {
			t.Fatalf("in round %d its state is %d", i, state)
		}
		round(a)
	}
	j.Eventually("it follows", func() bool {
		_, after := j.Hook.State(livetest.KernelByTable)
		return after == livetest.KernelMakeTable
	})
	round(stranger) // one that is looked at all the same
	j.Eventually("it is searched again", func() bool {
		state, after := j.Hook.State(livetest.KernelByTable)
		return state == hook.InspectAlways && after == 0
	})
	for range 2 * followsAfter {
		round(a)
	}
	if _, after := j.Hook.State(livetest.KernelByTable); after != 0 {
		t.Error("one that has strayed is trusted again")
	}
	if got := j.Read(a, livetest.TensorBytes)[0]; got != 3*followsAfter {
		t.Errorf("%d launches have added to a", got)
	}
	j.Closed()
}

// TestExplicitCleared: a kernel in whose memory something was found, and then sixteen times nothing, is searched as
// seldom as any other.
func TestExplicitCleared(t *testing.T) {
	j := newJob(t, defaults())
	at, a := j.Malloc(livetest.TensorBytes), j.Malloc(livetest.TensorBytes)
	j.Fill(at, livetest.TensorBytes, 0)
	j.Fill(a, livetest.TensorBytes, 0)
	j.table(at, a)
	j.Must(j.asks(livetest.KernelOther, hook.FlagInspect, j.AddByTable, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1, 1024, 1))
	j.Fill(at, livetest.TensorBytes, 0)
	for i := range clearedAfter {
		if state, _ := j.Hook.State(livetest.KernelOther); state != hook.InspectAlways {
			t.Fatalf("after %d searches that found nothing its state is %d", i, state)
		}
		j.Must(j.asks(livetest.KernelOther, hook.FlagInspect, j.Add, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1024, 0))
	}
	if state, _ := j.Hook.State(livetest.KernelOther); state != hook.InspectCleared {
		t.Errorf("its state is %d", state)
	}
	j.Closed()
}

// TestExplicitManyPlainAddresses: where more of plain memory's addresses are found than can be kept, one that leads somewhere may be
// among the others: the kernel is searched again.
func TestExplicitManyPlainAddresses(t *testing.T) {
	j := newJob(t, defaults())
	at, first, dead, last := j.Malloc(livetest.TensorBytes), j.Malloc(4096), j.Malloc(4096), j.Malloc(4096)
	j.Must(j.l.Free(dead)) // between two that live
	if dead < min(first, last) || dead > max(first, last) {
		t.Fatalf("%#x is not between %#x and %#x", uint64(dead), uint64(first), uint64(last))
	}
	search := func(id uint32, n int, entry cuda.Ptr) hook.Inspect {
		t.Helper()
		j.table(at, slices.Repeat([]cuda.Ptr{entry}, n)...)
		j.Must(j.asks(id, hook.FlagInspect, j.Add, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1, 0))
		state, _ := j.Hook.State(id)
		return state
	}
	if state := search(livetest.KernelAdd, findCapacity, dead); state == hook.InspectAlways {
		t.Error("addresses of dead memory are followed")
	}
	if state := search(livetest.KernelOther, findCapacity+1, dead); state != hook.InspectAlways {
		t.Errorf("the kernel's state is %d: it would not be searched the next time", state)
	}
	j.Closed()
}

// TestExplicitOpaque: everything is on the device for a launch of which nobody knows what it touches; where that
// cannot be, the engine says so.
func TestExplicitOpaque(t *testing.T) {
	j := newJob(t, defaults())
	tensors := j.Oversubscribe(4)
	last := tensors[3]
	j.Must(j.asks(livetest.KernelOther, hook.FlagOpaque, j.Add, nil, nil, uint64(tensors[0]), livetest.TensorBytes/4, 7))
	j.Has(tensors[0], livetest.TensorBytes, 7)
	if n := j.l.Stats().Explicit.Unresolved; n != 1 {
		t.Errorf("%d launches were unresolved", n)
	}
	for range 3 {
		p := j.Malloc(livetest.TensorBytes)
		j.Fill(p, livetest.TensorBytes, 0)
	}
	err := j.asks(livetest.KernelOther, hook.FlagOpaque, j.Add, nil, nil, uint64(last), 1, 1)
	var refused *cuda.Error
	if !errors.As(err, &refused) || refused.Code != resultUnknown {
		t.Errorf("a launch for which not everything can be there: %v", err)
	}
	if err := j.l.Close(); err == nil || !strings.Contains(err.Error(), "cannot be read") || !strings.Contains(err.Error(), "raise --budget") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// TestExplicitPlainFails: what fails on the way to a segment of plain memory is undone, and its room is given back.
func TestExplicitPlainFails(t *testing.T) {
	j := newJob(t, defaults())
	for _, fail := range []string{"cuMemCreate:1+", "cuMemAddressReserve:1+", "cuMemMap:1+", "cuMemSetAccess:1+"} {
		j.Driver.Fail(fail)
		if _, err := j.e.AcquirePlain(4096); !errors.Is(err, um.ErrOutOfMemory) {
			t.Errorf("%s: %v", fail, err)
		}
		j.Driver.Fail("")
		if plain, on := j.l.Stats().Explicit.PlainBytes, j.Driver.Count("physical_bytes"); plain != 0 || on != 0 {
			t.Errorf("%s: %d bytes of plain memory are counted, %d made", fail, plain, on)
		}
		j.locked(func(e *Engine) { // the budget has become what there was
			e.proc.Budget = defaults().BudgetBytes
			e.runtime.SetBudget(e.proc.Budget)
		})
	}
	j.Closed()
}

// TestExplicitPlainTakesRoom: tensors leave for plain memory, and keep what they hold; what stays does not, and then
// the request is refused with what to do.
func TestExplicitPlainTakesRoom(t *testing.T) {
	j := newJob(t, defaults())
	tensors := j.Oversubscribe(5) // of 12 MiB in 64
	j.Must(j.Driver.StreamSynchronize(j.Stream))
	source := j.e
	const segment = 16 * mib
	p, err := source.AcquirePlain(segment)
	j.Must(err)
	for i, p := range tensors {
		j.Has(p, livetest.TensorBytes, uint32(i))
	}
	if most := j.Driver.Count("physical_peak_bytes"); most > defaults().BudgetBytes {
		t.Errorf("%d bytes of device memory at most", most)
	}
	if _, err := source.AcquirePlain(defaults().BudgetBytes); !errors.Is(err, um.ErrOutOfMemory) || !strings.Contains(err.Error(), "raise --budget") {
		t.Errorf("more than the budget: %v", err)
	}
	// Addresses of four of them are where no launch shows them: they stay.
	j.Must(j.Launch(livetest.Work{Kind: hook.Launch, Flags: hook.FlagKeep, Names: tensors[:4], Run: func() error { return nil }}))
	j.Must(source.ReleasePlain(p, segment))
	began := time.Now()
	if _, err := source.AcquirePlain(segment + mib); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("what stays made room: %v", err)
	}
	if took := time.Since(began); took < plainPatience {
		t.Errorf("it was given up after %s", took)
	}
	if n := j.l.Stats().Explicit.PlainBytes; n != 0 {
		t.Errorf("%d bytes of plain memory are counted", n)
	}
	j.Closed()
}

// TestExplicitReleaseAsksEveryStream: plain memory is unmapped when the streams have finished that can be asked, and
// the whole device where one cannot.
func TestExplicitReleaseAsksEveryStream(t *testing.T) {
	for _, handles := range [][]uint64{{0, hook.StreamMany}, {0, hook.StreamGone}, {0, hook.StreamPerThread}} {
		j := newJob(t, defaults())
		source := j.e
		p, err := source.AcquirePlain(explicit.PageBytes)
		j.Must(err)
		const us = 20000
		j.Must(j.Kernel(j.Driver.Function("slow_add"), uint64(p), 1024, 1, us))
		j.Hook.Mu.Lock()
		j.Hook.Handles = append(slices.Clone(handles), uint64(j.Stream))
		j.Hook.Mu.Unlock()
		j.Must(source.ReleasePlain(p, explicit.PageBytes))
		if err := j.Driver.StreamSynchronize(j.Stream); err != nil {
			t.Errorf("%x: the memory was unmapped under a kernel: %v", handles, err)
		}
		j.Must(j.l.Close())
	}
}

// TestExplicitAfterFailure: when the engine has failed no room is made any more, and the error says why.
func TestExplicitAfterFailure(t *testing.T) {
	j := newJob(t, defaults())
	j.Oversubscribe(5)
	j.l.GiveUp(errors.New("its accounts are wrong"))
	if _, err := j.e.AcquirePlain(16 * mib); err == nil || !strings.Contains(err.Error(), "its accounts are wrong") {
		t.Errorf("plain memory after a failure: %v", err)
	}
	if code := j.Hook.Refuses.Load(); code != resultUnknown {
		t.Errorf("launches are refused with %d", code)
	}
	if err := j.l.Close(); err == nil || !strings.Contains(err.Error(), "its accounts are wrong") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// TestExplicitHostMemoryRefused: when the machine pins no memory nothing can leave, and a launch that waits for room is
// given up, later than where nothing could come of waiting.
func TestExplicitHostMemoryRefused(t *testing.T) {
	j := newJob(t, defaults(), "STUB_FAIL=cuMemHostRegister")
	j.Oversubscribe(5)
	more := j.Malloc(livetest.TensorBytes)
	done := make(chan error, 1)
	go func() { done <- j.Do(livetest.KernelAdd, j.Add, []cuda.Ptr{more}, uint64(more), 1, 1) }()
	j.Eventually("nothing can leave", func() (refused bool) {
		j.locked(func(e *Engine) {
			var growth *hostpool.GrowthError
			refused = errors.As(e.hostErr, &growth)
		})
		return refused
	})
	j.locked(func(e *Engine) {
		if p := e.patience(plainPatience); p != growthPatience {
			t.Errorf("it is waited for %s", p)
		}
		if err := e.deadlock(); err != nil {
			t.Errorf("it was given up at once: %v", err)
		}
		e.proc.Vain.Duration = growthPatience // as if so much had passed
	})
	var refused *cuda.Error
	if err := <-done; !errors.As(err, &refused) || refused.Code != resultOOM {
		t.Errorf("a launch for which no room can be made: %v", err)
	}
	var growth *hostpool.GrowthError
	if err := j.l.Close(); !errors.As(err, &growth) {
		t.Errorf("the engine ended with: %v", err)
	}
}

// TestExplicitDeadlock: a launch that waits while nothing moves and nothing runs is given up, and what it waits for is said.
func TestExplicitDeadlock(t *testing.T) {
	j := newJob(t, defaults())
	tensors := j.Oversubscribe(5)
	j.Must(j.Driver.StreamSynchronize(j.Stream))
	j.locked(func(e *Engine) {
		if p := e.patience(process.WatchdogPatience); p != process.WatchdogPatience {
			t.Errorf("it is waited for %s", p)
		}
		e.hostErr = hostpool.ErrHostBudget
		if p := e.patience(process.WatchdogPatience); p != hostPatience {
			t.Errorf("where the host budget is spent it is waited for %s", p)
		}
		e.proc.Vain.Duration = hostPatience
		if err := e.deadlock(); !errors.Is(err, hostpool.ErrHostBudget) {
			t.Errorf("the reason is not said: %v", err)
		}
		e.hostErr, e.proc.Vain.Duration = nil, process.WatchdogPatience
		if err := e.deadlock(); err == nil || !strings.Contains(err.Error(), "without any move being possible") {
			t.Errorf("the reason is not said: %v", err)
		}
		e.proc.Vain.Duration = 0
	})
	for i, p := range tensors {
		j.Has(p, livetest.TensorBytes, uint32(i))
	}
	j.Closed()
}
