package live

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
)

// stubTensors are more than the budget holds: five do.
const stubTensors = 9

// TestExplicitKeepsBytes: a job of nearly twice the budget computes what it would in memory, within the budget.
func TestExplicitKeepsBytes(t *testing.T) {
	for name, verify := range map[string]bool{"plain": false, "verified": true} {
		t.Run(name, func(t *testing.T) {
			c := explicitConfig()
			c.Verify = verify
			j := newSwapJob(t, c)
			const rounds = 2
			tensors := j.oversubscribe(stubTensors)
			for range rounds {
				for i, p := range tensors {
					j.increase(p, stubTensor, uint32(i+1))
				}
			}
			for i, p := range tensors {
				j.has(p, stubTensor, uint32(i+rounds*(i+1)))
			}
			if most := j.d.Count("physical_peak_bytes"); most > c.BudgetBytes {
				t.Errorf("%d bytes of device memory at most, the budget is %d", most, c.BudgetBytes)
			}
			s := j.l.Stats()
			if s.Engine != "explicit" || s.AllocatedBytes != stubTensors*stubTensor || s.FetchedBytes == 0 || s.EvictedBytes == 0 || s.InSeconds <= 0 || s.OutSeconds <= 0 {
				t.Errorf("%+v", s)
			}
			for _, part := range []string{"in_begin", "out_begin", "out_unmap", "in_map", "lane_submit"} {
				if s.Explicit.WorkerSeconds[part] <= 0 {
					t.Errorf("no time went to %s of %v", part, s.Explicit.WorkerSeconds)
				}
			}
			for _, p := range tensors {
				j.must(j.l.Free(p))
			}
			j.l.EmptyCache()
			if on, s := j.d.Count("physical_bytes"), j.l.Stats(); on != 0 || s.AllocatedBytes != 0 || s.ReservedBytes != 0 {
				t.Errorf("%d bytes of device memory, %d allocated, %d reserved when all is freed and emptied", on, s.AllocatedBytes, s.ReservedBytes)
			}
			if err := j.l.Free(tensors[0]); !errors.Is(err, um.ErrNotOurs) {
				t.Errorf("freed twice: %v", err)
			}
			j.closed()
		})
	}
}

// fails waits for the engine to have failed, and answers what a launch of something absent is refused with.
func (j *swapJob) fails(tensors []cuda.Ptr) (refused *cuda.Error) {
	j.Helper()
	for range 2 { // rounds, if it fails in the middle
		for _, p := range tensors {
			if err := j.run(kernelAdd, j.add, []cuda.Ptr{p}, uint64(p), stubTensor/4, 1); errors.As(err, &refused) {
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
			j := newSwapJob(t, explicitConfig())
			tensors := j.oversubscribe(stubTensors)
			j.must(j.d.StreamSynchronize(j.stream))
			j.d.Fail(test.fail)
			refused := j.fails(tensors)
			j.d.Fail("")
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
	c := explicitConfig()
	c.Verify = true
	j := newSwapJob(t, c)
	tensors := j.oversubscribe(stubTensors)
	j.must(j.d.StreamSynchronize(j.stream))
	j.d.Fail("flip:1")
	if refused := j.fails(tensors); refused.Code != resultUnknown {
		t.Errorf("a launch is refused with %v", refused)
	}
	if err := j.l.Close(); !errors.Is(err, explicit.ErrMismatch) || !strings.Contains(err.Error(), "last named by kernel") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// TestExplicitLessMemoryThanTheBudget: where the driver has no more, the budget becomes what there is, and all goes on in it.
func TestExplicitLessMemoryThanTheBudget(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	first := j.oversubscribe(3)
	j.d.Fail("cuMemCreate:1+")
	for i := range stubTensors - 3 {
		p := j.malloc(stubTensor)
		j.fill(p, stubTensor, uint32(3+i))
		first = append(first, p)
	}
	for i, p := range first {
		j.has(p, stubTensor, uint32(i))
	}
	if b := j.l.Stats().BudgetBytes; b >= explicitConfig().BudgetBytes || b < 2*stubTensor {
		t.Errorf("the budget is %d", b)
	}
	j.closed()
}

// TestExplicitContextEnds: the job's own kernel reaches what is not mapped. What waits for memory meanwhile ends with what
// the driver answers from then on, and the error says what it can mean.
func TestExplicitContextEnds(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	tensors := j.oversubscribe(5)
	more := j.malloc(stubTensor)
	// An operation that never finishes keeps all of the memory that there is.
	j.must(j.launch(work{kind: hook.Launch, names: tensors, endless: true, queue: func() error { return j.kernel(j.add, 64, 1, 1) }}))
	err := j.run(kernelAdd, j.add, []cuda.Ptr{more}, uint64(more), 1, 1)
	var driver *cuda.Error
	if !errors.As(err, &driver) || driver.Code != 700 {
		t.Errorf("a launch that waits ends with %v", err)
	}
	if err := j.l.Close(); !errors.Is(err, cuda.ErrIllegalAddress) || !strings.Contains(err.Error(), "--engine managed") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// asks launches a kernel whose parameters may lead to more than they name.
func (j *swapJob) asks(id uint32, flags int, f cuda.Function, names, addresses []cuda.Ptr, args ...uint64) error {
	return j.launch(work{kind: hook.Launch, flags: flags, id: id, names: names, addresses: addresses, queue: func() error { return j.kernel(f, args...) }})
}

// table writes a table of addresses at an address of a tensor.
func (j *swapJob) table(at cuda.Ptr, entries ...cuda.Ptr) {
	j.Helper()
	j.must(j.d.StreamSynchronize(j.stream))
	for i, p := range entries {
		x := words(j.buffer, stubTensor)
		x[2*i], x[2*i+1] = uint32(p), uint32(p>>32)
	}
	j.must(j.write(at, int64(8*len(entries))))
}

// TestExplicitPointers: what a kernel reaches through a table of addresses is on the device when it runs, whether the table
// is in a tensor, in plain memory or in pinned memory of the job's own.
func TestExplicitPointers(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	tensors := j.oversubscribe(stubTensors)
	a, b := tensors[0], tensors[1] // which have left
	own := j.malloc(stubTensor)
	j.table(own, a, b)
	byTable := func(at cuda.Ptr, names ...cuda.Ptr) error {
		return j.asks(kernelByTable, hook.FlagInspect, j.addByTable, names, []cuda.Ptr{at}, uint64(at), 2, stubTensor/4, 100)
	}
	j.must(byTable(own, own))
	j.has(a, stubTensor, 100)
	j.has(b, stubTensor, 101)
	small := j.malloc(4096) // plain memory
	for _, p := range tensors[2:] {
		j.increase(p, stubTensor, 0) // a and b leave
	}
	j.table(small, a, b)
	j.must(byTable(small))
	j.has(a, stubTensor, 200)
	pinned, err := j.d.HostAlloc(4096)
	j.must(err)
	x := words(pinned, 16)
	x[0], x[1], x[2], x[3] = uint32(a), uint32(a>>32), uint32(b), uint32(b>>32)
	j.must(byTable(pinned))
	j.has(b, stubTensor, 301)
	s := j.l.Stats().Explicit
	if s.Inspected != 3 || s.Chasers != 3 || s.GrantStallSeconds <= 0 {
		t.Errorf("%d inspected, %d of them reach tensors, %f s", s.Inspected, s.Chasers, s.GrantStallSeconds)
	}
	if state, _ := j.h.state(kernelByTable); state != hook.InspectAlways {
		t.Errorf("the kernel's state is %d: it would not be searched the next time", state)
	}
	j.closed()
}

// TestExplicitFollows: a kernel that has reached sixteen times what the one before it names is searched no longer; once
// it reaches something else it is, for good.
func TestExplicitFollows(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	at, a, stranger := j.malloc(stubTensor), j.malloc(stubTensor), j.malloc(stubTensor)
	for _, p := range []cuda.Ptr{at, a, stranger} {
		j.fill(p, stubTensor, 0)
	}
	round := func(to cuda.Ptr) {
		t.Helper()
		j.must(j.run(kernelMakeTable, j.makeTable, []cuda.Ptr{at, a}, uint64(at), 1, uint64(to), 0))
		j.must(j.asks(kernelByTable, hook.FlagInspect, j.addByTable, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1, 1024, 1))
	}
	for i := range followsAfter {
		if state, _ := j.h.state(kernelByTable); i > 0 && state != hook.InspectAlways {
			t.Fatalf("in round %d its state is %d", i, state)
		}
		round(a)
	}
	j.eventually("it follows", func() bool { _, after := j.h.state(kernelByTable); return after == kernelMakeTable })
	round(stranger) // one that is looked at all the same
	j.eventually("it is searched again", func() bool {
		state, after := j.h.state(kernelByTable)
		return state == hook.InspectAlways && after == 0
	})
	for range 2 * followsAfter {
		round(a)
	}
	if _, after := j.h.state(kernelByTable); after != 0 {
		t.Error("one that has strayed is trusted again")
	}
	if got := j.read(a, stubTensor)[0]; got != 3*followsAfter {
		t.Errorf("%d launches have added to a", got)
	}
	j.closed()
}

// TestExplicitCleared: a kernel in whose memory something was found, and then sixteen times nothing, is searched as
// seldom as any other.
func TestExplicitCleared(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	at, a := j.malloc(stubTensor), j.malloc(stubTensor)
	j.fill(at, stubTensor, 0)
	j.fill(a, stubTensor, 0)
	j.table(at, a)
	j.must(j.asks(kernelOther, hook.FlagInspect, j.addByTable, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1, 1024, 1))
	j.fill(at, stubTensor, 0)
	for i := range clearedAfter {
		if state, _ := j.h.state(kernelOther); state != hook.InspectAlways {
			t.Fatalf("after %d searches that found nothing its state is %d", i, state)
		}
		j.must(j.asks(kernelOther, hook.FlagInspect, j.add, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1024, 0))
	}
	if state, _ := j.h.state(kernelOther); state != hook.InspectCleared {
		t.Errorf("its state is %d", state)
	}
	j.closed()
}

// TestExplicitManyPlainAddresses: where more of plain memory's addresses are found than can be kept, one that leads somewhere may be
// among the others: the kernel is searched again.
func TestExplicitManyPlainAddresses(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	at, first, dead, last := j.malloc(stubTensor), j.malloc(4096), j.malloc(4096), j.malloc(4096)
	j.must(j.l.Free(dead)) // between two that live
	if dead < min(first, last) || dead > max(first, last) {
		t.Fatalf("%#x is not between %#x and %#x", uint64(dead), uint64(first), uint64(last))
	}
	search := func(id uint32, n int, entry cuda.Ptr) hook.Inspect {
		t.Helper()
		j.table(at, slices.Repeat([]cuda.Ptr{entry}, n)...)
		j.must(j.asks(id, hook.FlagInspect, j.add, []cuda.Ptr{at}, []cuda.Ptr{at}, uint64(at), 1, 0))
		state, _ := j.h.state(id)
		return state
	}
	if state := search(kernelAdd, findCapacity, dead); state == hook.InspectAlways {
		t.Error("addresses of dead memory are followed")
	}
	if state := search(kernelOther, findCapacity+1, dead); state != hook.InspectAlways {
		t.Errorf("the kernel's state is %d: it would not be searched the next time", state)
	}
	j.closed()
}

// TestExplicitOpaque: everything is on the device for a launch of which nobody knows what it touches; where that
// cannot be, the engine says so.
func TestExplicitOpaque(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	tensors := j.oversubscribe(4)
	last := tensors[3]
	j.must(j.asks(kernelOther, hook.FlagOpaque, j.add, nil, nil, uint64(tensors[0]), stubTensor/4, 7))
	j.has(tensors[0], stubTensor, 7)
	if n := j.l.Stats().Explicit.Unresolved; n != 1 {
		t.Errorf("%d launches were unresolved", n)
	}
	for range 3 {
		p := j.malloc(stubTensor)
		j.fill(p, stubTensor, 0)
	}
	err := j.asks(kernelOther, hook.FlagOpaque, j.add, nil, nil, uint64(last), 1, 1)
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
	j := newSwapJob(t, explicitConfig())
	for _, fail := range []string{"cuMemCreate:1+", "cuMemAddressReserve:1+", "cuMemMap:1+", "cuMemSetAccess:1+"} {
		j.d.Fail(fail)
		if _, err := j.e.acquirePlain(4096); !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%s: %v", fail, err)
		}
		j.d.Fail("")
		if plain, on := j.l.Stats().Explicit.PlainBytes, j.d.Count("physical_bytes"); plain != 0 || on != 0 {
			t.Errorf("%s: %d bytes of plain memory are counted, %d made", fail, plain, on)
		}
		j.locked(func(e *swap) { // the budget has become what there was
			e.proc.budget = explicitConfig().BudgetBytes
			e.runtime.SetBudget(e.proc.budget)
		})
	}
	j.closed()
}

// TestExplicitPlainTakesRoom: tensors leave for plain memory, and keep what they hold; what stays does not, and then
// the request is refused with what to do.
func TestExplicitPlainTakesRoom(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	tensors := j.oversubscribe(5) // of 12 MiB in 64
	j.must(j.d.StreamSynchronize(j.stream))
	source := j.e
	const segment = 16 * mib
	p, err := source.acquirePlain(segment)
	j.must(err)
	for i, p := range tensors {
		j.has(p, stubTensor, uint32(i))
	}
	if most := j.d.Count("physical_peak_bytes"); most > explicitConfig().BudgetBytes {
		t.Errorf("%d bytes of device memory at most", most)
	}
	if _, err := source.acquirePlain(explicitConfig().BudgetBytes); !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "raise --budget") {
		t.Errorf("more than the budget: %v", err)
	}
	// Addresses of four of them are where no launch shows them: they stay.
	j.must(j.launch(work{kind: hook.Launch, flags: hook.FlagKeep, names: tensors[:4], queue: func() error { return nil }}))
	j.must(source.releasePlain(p, segment))
	began := time.Now()
	if _, err := source.acquirePlain(segment + mib); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("what stays made room: %v", err)
	}
	if took := time.Since(began); took < plainPatience {
		t.Errorf("it was given up after %s", took)
	}
	if n := j.l.Stats().Explicit.PlainBytes; n != 0 {
		t.Errorf("%d bytes of plain memory are counted", n)
	}
	j.closed()
}

// TestExplicitReleaseAsksEveryStream: plain memory is unmapped when the streams have finished that can be asked, and
// the whole device where one cannot.
func TestExplicitReleaseAsksEveryStream(t *testing.T) {
	for _, handles := range [][]uint64{{0, hook.StreamMany}, {0, hook.StreamGone}, {0, hook.StreamPerThread}} {
		j := newSwapJob(t, explicitConfig())
		source := j.e
		p, err := source.acquirePlain(explicit.PageBytes)
		j.must(err)
		const us = 20000
		j.must(j.kernel(j.d.Function("slow_add"), uint64(p), 1024, 1, us))
		j.h.mu.Lock()
		j.h.handles = append(slices.Clone(handles), uint64(j.stream))
		j.h.mu.Unlock()
		j.must(source.releasePlain(p, explicit.PageBytes))
		if err := j.d.StreamSynchronize(j.stream); err != nil {
			t.Errorf("%x: the memory was unmapped under a kernel: %v", handles, err)
		}
		j.must(j.l.Close())
	}
}

// TestExplicitAfterFailure: when the engine has failed no room is made any more, and the error says why.
func TestExplicitAfterFailure(t *testing.T) {
	j := newSwapJob(t, explicitConfig())
	j.oversubscribe(5)
	j.l.GiveUp(errors.New("its accounts are wrong"))
	if _, err := j.e.acquirePlain(16 * mib); err == nil || !strings.Contains(err.Error(), "its accounts are wrong") {
		t.Errorf("plain memory after a failure: %v", err)
	}
	if code := j.h.refuses.Load(); code != resultUnknown {
		t.Errorf("launches are refused with %d", code)
	}
	if err := j.l.Close(); err == nil || !strings.Contains(err.Error(), "its accounts are wrong") {
		t.Errorf("the engine ended with: %v", err)
	}
}

// TestExplicitHostMemoryRefused: when the machine pins no memory nothing can leave, and a launch that waits for room is
// given up, later than where nothing could come of waiting.
func TestExplicitHostMemoryRefused(t *testing.T) {
	j := newSwapJob(t, explicitConfig(), "STUB_FAIL=cuMemHostRegister")
	j.oversubscribe(5)
	more := j.malloc(stubTensor)
	done := make(chan error, 1)
	go func() { done <- j.run(kernelAdd, j.add, []cuda.Ptr{more}, uint64(more), 1, 1) }()
	j.eventually("nothing can leave", func() (refused bool) {
		j.locked(func(e *swap) {
			var growth *hostpool.GrowthError
			refused = errors.As(e.hostErr, &growth)
		})
		return refused
	})
	j.locked(func(e *swap) {
		if p := e.patience(plainPatience); p != growthPatience {
			t.Errorf("it is waited for %s", p)
		}
		if err := e.deadlock(); err != nil {
			t.Errorf("it was given up at once: %v", err)
		}
		e.proc.vain.Duration = growthPatience // as if so much had passed
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
	j := newSwapJob(t, explicitConfig())
	tensors := j.oversubscribe(5)
	j.must(j.d.StreamSynchronize(j.stream))
	j.locked(func(e *swap) {
		if p := e.patience(watchdogPatience); p != watchdogPatience {
			t.Errorf("it is waited for %s", p)
		}
		e.hostErr = hostpool.ErrHostBudget
		if p := e.patience(watchdogPatience); p != hostPatience {
			t.Errorf("where the host budget is spent it is waited for %s", p)
		}
		e.proc.vain.Duration = hostPatience
		if err := e.deadlock(); !errors.Is(err, hostpool.ErrHostBudget) {
			t.Errorf("the reason is not said: %v", err)
		}
		e.hostErr, e.proc.vain.Duration = nil, watchdogPatience
		if err := e.deadlock(); err == nil || !strings.Contains(err.Error(), "without any move being possible") {
			t.Errorf("the reason is not said: %v", err)
		}
		e.proc.vain.Duration = 0
	})
	for i, p := range tensors {
		j.has(p, stubTensor, uint32(i))
	}
	j.closed()
}
