package swapped

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

// combine makes out = (a + b) * by, word by word, with a kernel whose launches are recorded once one has been seen.
func (j *job) combine(out, a, b cuda.Ptr, by uint64) {
	j.Helper()
	params := binary.LittleEndian.AppendUint64(nil, productBytes/4)
	for _, x := range []uint64{by, uint64(out), uint64(a), uint64(b)} {
		params = binary.LittleEndian.AppendUint64(params, x)
	}
	l := &cuda.RecordedLaunch{
		Function: j.Driver.Function(livetest.Elementwise), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Starts: []uint32{0, 8, 16}, Params: params,
	}
	j.Must(j.Launch(livetest.Work{Kind: hook.Launch, ID: livetest.KernelElementwise, Names: []cuda.Ptr{out, a, b}, Again: l, Run: func() error { return j.Driver.LaunchAgain(l, j.Stream) }}))
}

// products makes n tensors of two inputs.
func (j *job) products(n int) (inputs [2]cuda.Ptr, products []cuda.Ptr) {
	j.Helper()
	for i := range inputs {
		inputs[i] = j.Malloc(productBytes)
		j.Fill(inputs[i], productBytes, uint32(1+i))
	}
	first := j.Malloc(productBytes)
	j.combine(first, inputs[0], inputs[1], 1)
	j.Eventually("the kernel's launches are recorded", func() bool {
		j.Hook.Mu.Lock()
		defer j.Hook.Mu.Unlock()
		return j.Hook.Recorded[livetest.KernelElementwise]
	})
	j.Must(j.l.Free(first))
	for i := range n {
		p := j.Malloc(productBytes)
		j.combine(p, inputs[0], inputs[1], uint64(i+1))
		products = append(products, p)
	}
	return inputs, products
}

// haveProducts fails unless the products are what they were made as. Their inputs are read in between, and so stay on the device.
func (j *job) haveProducts(in [2]cuda.Ptr, products []cuda.Ptr) {
	j.Helper()
	for i, p := range products {
		j.Has(in[0], productBytes, 1)
		j.Has(in[1], productBytes, 2)
		j.Has(p, productBytes, uint32(3*(i+1)))
	}
}

// dropping reads products until they are dropped and made again without a copy.
func (j *job) dropping(in [2]cuda.Ptr, products []cuda.Ptr) {
	j.Helper()
	j.withoutCopies(func() { j.haveProducts(in, products) })
}

// withoutCopies goes through tensors until, once, some are made again and none is copied in or out: on a busy machine an input may have
// to leave now and then.
func (j *job) withoutCopies(through func()) {
	j.Helper()
	for range 30 {
		before := j.l.Stats()
		through()
		s := j.l.Stats()
		if s.Explicit.Dropped > before.Explicit.Dropped && s.Explicit.Made > before.Explicit.Made && s.EvictedBytes == before.EvictedBytes && s.FetchedBytes == before.FetchedBytes {
			return
		}
	}
	j.Fatalf("nothing is dropped without a copy\n%+v", j.l.Stats().Explicit)
}

func replaying(t *testing.T, r um.Replay) jobConfig {
	trustAfter, level = 8, explicit.LevelAll
	t.Cleanup(func() { trustAfter, level = 0, explicit.LevelTried })
	c := defaults()
	c.Replay = r
	return c
}

const (
	productBytes = 4 * mib
	stubProducts = 14 // more than the budget holds beside what verifies them and their inputs
)

// TestExplicitMakesAgain: what has left is made again by the launch that made it while its inputs are there, and is the same.
func TestExplicitMakesAgain(t *testing.T) {
	for _, verify := range []bool{false, true} {
		c := replaying(t, um.ReplayInsured)
		c.Verify = verify
		j := newJob(t, c)
		in, products := j.products(stubProducts)
		for range 2 {
			j.haveProducts(in, products)
		}
		s := j.l.Stats().Explicit
		if s.Dropped == 0 || s.Made == 0 || s.MadeBytes != s.Made*productBytes || s.Unmade != 0 || s.DropsWrong != 0 {
			t.Errorf("verify %t: %d tensors dropped and %d made again, %d bytes, %d not the same, %d found wrong before", verify, s.Dropped, s.Made, s.MadeBytes, s.Unmade, s.DropsWrong)
		}
		j.locked(func(e *Engine) { j.Must(e.runtime.Check()) })
		j.Closed()
	}
}

// TestExplicitDrops: once a kernel has made the same often enough, nothing of what it makes is copied, in or out, and the budget holds.
func TestExplicitDrops(t *testing.T) {
	c := replaying(t, um.ReplayOn)
	j := newJob(t, c)
	in, products := j.products(stubProducts)
	j.dropping(in, products)
	if s := j.l.Stats().Explicit; s.DropsWrong+s.Unmade != 0 {
		t.Errorf("%+v", s)
	}
	if most := j.Driver.Count("physical_peak_bytes"); most > c.BudgetBytes {
		t.Errorf("%d bytes of device memory at most, the budget is %d", most, c.BudgetBytes)
	}
	j.Closed()
}

// TestExplicitDropsClones: what launches read of small memory is kept for them, whatever becomes of it.
func TestExplicitDropsClones(t *testing.T) {
	const words = 1024
	j := newJob(t, replaying(t, um.ReplayOn))
	in, products := j.products(stubProducts)
	j.dropping(in, products)
	for _, p := range products {
		j.Must(j.l.Free(p))
	}
	dropped := j.l.Stats().Explicit.Dropped
	small := j.Malloc(4 * words)
	j.Fill(small, 4*words, 5)
	for i := range products {
		products[i] = j.Malloc(productBytes)
		j.combine(products[i], in[0], small, words<<32|uint64(i+1))
	}
	for round := range 4 {
		j.Fill(small, 4*words, uint32(100+round))
		for i, p := range products {
			j.Has(in[0], productBytes, 1)
			j.Has(p, productBytes, uint32(6*(i+1)))
		}
	}
	s := j.l.Stats().Explicit
	if s.Dropped == dropped || s.DropsWrong == 0 { // those that had not been dropped before the small memory was written to
		t.Errorf("%d dropped, %d found wrong", s.Dropped-dropped, s.DropsWrong)
	}
	j.Closed()
	if free := j.e.verifier.clones.free; len(free[4*words]) == 0 {
		t.Error("no copy of the small memory was given back")
	}
}

// TestExplicitGuards: what dropped tensors are made of is written to, by something of which nothing is known, or freed: they are
// still what they were.
func TestExplicitGuards(t *testing.T) {
	for name, change := range map[string]func(j *job, in [2]cuda.Ptr){
		"written": func(j *job, in [2]cuda.Ptr) { j.Increase(in[0], productBytes, 100) },
		"freed":   func(j *job, in [2]cuda.Ptr) { j.Must(j.l.Free(in[0])); j.Must(j.l.Free(in[1])) },
		"freed and taken again": func(j *job, in [2]cuda.Ptr) {
			j.Must(j.l.Free(in[0]))
			j.Fill(j.Malloc(productBytes), productBytes, 77)
		},
		"overwritten by a known one": func(j *job, in [2]cuda.Ptr) { j.combine(in[0], in[1], in[1], 9) },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, replaying(t, um.ReplayOn))
			in, products := j.products(stubProducts)
			j.dropping(in, products)
			change(j, in)
			for i, p := range products {
				j.Has(p, productBytes, uint32(3*(i+1)))
			}
			s := j.l.Stats().Explicit
			if s.Unmade != 0 || name != "freed" && name != "freed and taken again" && s.GuardWaits == 0 {
				t.Errorf("%+v", s)
			}
			for _, p := range products {
				j.Must(j.l.Free(p))
			}
			j.locked(func(e *Engine) { j.Must(e.runtime.Check()) })
			j.Closed()
		})
	}
}

// TestExplicitDropsFoundWrong: what was written to by something that nobody knows of is not what its launch makes, which is found out when it
// is to leave: it is moved.
func TestExplicitDropsFoundWrong(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayInsured))
	in, products := j.products(stubProducts)
	j.Increase(in[0], productBytes, 100)
	for range 2 {
		for i, p := range products {
			j.Has(p, productBytes, uint32(3*(i+1)))
		}
	}
	s := j.l.Stats().Explicit
	if s.DropsWrong == 0 || s.Unmade != 0 {
		t.Errorf("%d found wrong, %d not the same later", s.DropsWrong, s.Unmade)
	}
	j.Has(in[0], productBytes, 101)
	j.Closed()
}

// TestExplicitMadeWrongly: an input is written to by something that nobody sees, while what is made of it is away: where there is
// a copy that comes in, where there is none the job ends, and what was wrong is named.
func TestExplicitMadeWrongly(t *testing.T) {
	unseen := func(j *job, in cuda.Ptr) {
		j.Must(j.Kernel(j.Add, uint64(in), productBytes/4, 100))
		j.Must(j.Driver.StreamSynchronize(j.Stream))
	}
	t.Run("insured", func(t *testing.T) {
		j := newJob(t, replaying(t, um.ReplayInsured))
		in, products := j.products(stubProducts)
		j.haveProducts(in, products)
		unseen(j, in[0])
		for i, p := range products {
			j.Has(in[0], productBytes, 101)
			j.Has(in[1], productBytes, 2)
			j.Has(p, productBytes, uint32(3*(i+1)))
		}
		if s := j.l.Stats().Explicit; s.Unmade == 0 {
			t.Errorf("%+v", s)
		}
		j.Closed()
	})
	t.Run("on", func(t *testing.T) {
		j := newJob(t, replaying(t, um.ReplayOn))
		in, products := j.products(stubProducts)
		j.dropping(in, products)
		unseen(j, in[0])
		var refused *cuda.Error
		for _, p := range products {
			if err := j.Do(livetest.KernelAdd, j.Add, []cuda.Ptr{p}, uint64(p), 0, 1); errors.As(err, &refused) {
				break
			}
		}
		if refused == nil {
			t.Error("no launch is refused")
		}
		if err := j.l.Close(); !errors.Is(err, explicit.ErrMismatch) || !strings.Contains(err.Error(), "vectorized_elementwise") || !strings.Contains(err.Error(), "--replay off") {
			t.Errorf("the engine ended with: %v", err)
		}
	})
}

// TestExplicitForgetsLaunches: when modules are unloaded, no launch of before is issued again.
func TestExplicitForgetsLaunches(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayInsured))
	in, products := j.products(stubProducts)
	j.haveProducts(in, products)
	before := j.l.Stats().Explicit
	j.Hook.Unloaded.Add(1)
	j.haveProducts(in, products)
	if s := j.l.Stats().Explicit; s.Made != before.Made || s.Unmade != 0 || before.Made == 0 {
		t.Errorf("%d tensors made again, then %d, and %d tried", before.Made, s.Made, s.Unmade)
	}
	j.Closed()
}

// TestExplicitDropsThroughFreed: what was made of something that the job has freed since is made again with that.
func TestExplicitDropsThroughFreed(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayOn))
	in, first := j.products(stubProducts)
	j.dropping(in, first)
	for _, p := range first {
		j.Must(j.l.Free(p))
	}
	products := make([]cuda.Ptr, stubProducts)
	for i := range products {
		temp := j.Malloc(productBytes)
		j.combine(temp, in[0], in[1], uint64(i+1)) // 3 * (i + 1)
		products[i] = j.Malloc(productBytes)
		j.combine(products[i], temp, in[1], 5)
		j.Must(j.l.Free(temp))
	}
	j.withoutCopies(func() {
		for i, p := range products {
			j.Has(in[0], productBytes, 1)
			j.Has(in[1], productBytes, 2)
			j.Has(p, productBytes, uint32(5*(3*(i+1)+2)))
		}
	})
	if s := j.l.Stats().Explicit; s.DropsWrong+s.Unmade != 0 {
		t.Errorf("%+v", s)
	}
	j.locked(func(e *Engine) { j.Must(e.runtime.Check()) })
	j.Closed()
}

// TestExplicitEndsReplay: where nothing can be made again, the memory to verify it in goes back to the job after a while.
func TestExplicitEndsReplay(t *testing.T) {
	c := replaying(t, um.ReplayOn)
	j := newJob(t, c)
	j.products(1) // has the kernel's launches recorded
	tensors := j.Oversubscribe(stubTensors)
	kept := j.l.Stats().Explicit.PlainBytes
	for round := 0; j.l.Stats().Explicit.PlainBytes == kept; round++ {
		if round == 40 {
			j.Fatalf("%d bytes are kept after %d bytes have come in", kept, j.l.Stats().FetchedBytes)
		}
		for _, p := range tensors {
			j.Increase(p, livetest.TensorBytes, 1)
		}
		for i, p := range tensors {
			j.Has(p, livetest.TensorBytes, uint32(i+round+1))
		}
	}
	if s := j.l.Stats(); s.Explicit.PlainBytes >= kept-8*mib || s.FetchedBytes < 12*c.BudgetBytes/2 {
		t.Errorf("%d bytes were kept, %d are, after %d bytes have come in", kept, s.Explicit.PlainBytes, s.FetchedBytes)
	}
	if most := j.Driver.Count("physical_peak_bytes"); most > c.BudgetBytes {
		t.Errorf("%d bytes of device memory at most, the budget is %d", most, c.BudgetBytes)
	}
	j.locked(func(e *Engine) { j.Must(e.runtime.Check()) })
	j.Hook.Mu.Lock()
	if j.Hook.Recorded[livetest.KernelElementwise] {
		t.Error("launches are recorded that nobody issues again")
	}
	j.Hook.Mu.Unlock()
	j.Closed()
}

// TestHiddenAddresses: an address lies in one parameter.
func TestHiddenAddresses(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayOn))
	defer j.Closed()
	const p = cuda.Ptr(0x3_0200_0000) // as low as those of a card
	j.Hook.PublishPlain(cuda.Range{Base: p, Bytes: productBytes})
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(p)), 7)
	for _, x := range []struct {
		starts, known []uint32
		hidden        bool
	}{
		{starts: []uint32{0, 8}, hidden: true},
		{starts: []uint32{0, 8}, known: []uint32{0}},
		{starts: []uint32{0}, hidden: true},
		{starts: []uint32{0, 4, 8}}, // two numbers of four bytes
		{starts: []uint32{0, 7, 8}},
	} {
		l := &cuda.RecordedLaunch{Starts: x.starts, Params: params, Addresses: x.known}
		j.locked(func(e *Engine) {
			if at := e.hiddenAddresses(l); len(at) > 0 != x.hidden || x.hidden && l.Address(at[0]) != p {
				t.Errorf("parameters at %v, addresses at %v: found at %v", x.starts, x.known, at)
			}
		})
	}
}
