package swapped

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

// multiply makes out = 3 a + b with a kernel of a matrix library, which leaves its workspace as it is not to find it: the job clears it.
func (j *job) multiply(out, a, b, workspace cuda.Ptr, scribbles uint32) {
	j.Helper()
	j.Fill(workspace, productBytes, 0)
	var params []byte
	for _, p := range []cuda.Ptr{out, a, b, workspace} {
		params = binary.LittleEndian.AppendUint64(params, uint64(p))
	}
	params = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(params, productBytes/4), scribbles)
	l := &cuda.RecordedLaunch{Function: j.Driver.Function("stub_gemm"), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Starts: []uint32{0}, Params: params}
	j.Must(j.Launch(livetest.Work{Kind: hook.Launch, ID: livetest.KernelGemm, Names: []cuda.Ptr{out, workspace, a, b}, Again: l, Run: func() error { return j.Driver.LaunchAgain(l, j.Stream) }}))
}

// TestExplicitTrials: what products make is made again once it has been tried out what they write to: a workspace, too, which is not what is guarded or
// read. One that writes to what it should only read is found out, and nothing is wrong for it, however long it is tried: what was recorded
// before that was known is not issued with what the job has.
func TestExplicitTrials(t *testing.T) {
	defer func(before int) { mostWrong = before }(mostWrong)
	const again = 8 // the round after which trials begin anew
	for _, x := range []struct {
		scribbles uint32
		mostWrong int
	}{{0, 0}, {1, 0}, {1, 1000}}[:short.Of(3, 2)] {
		scribbles := x.scribbles
		mostWrong = x.mostWrong
		c := replaying(t, um.ReplayOn)
		c.BudgetBytes += 32 * mib
		j := newJob(t, c)
		in := [2]cuda.Ptr{j.Malloc(productBytes), j.Malloc(productBytes)}
		j.Fill(in[0], productBytes, 1)
		workspace := j.Malloc(productBytes)
		products := make([]cuda.Ptr, 24)
		over := func() (is bool) {
			j.locked(func(e *Engine) { is = e.accesses.functions[livetest.KernelGemm].over() })
			return is
		}
		for round := 0; round < 12 || scribbles == 0 && !over() && round < 60; round++ { // on a busy machine what is tried is soon used again
			j.Fill(in[1], productBytes, 2)
			for i := range products {
				products[i] = j.Malloc(productBytes)
				j.multiply(products[i], in[0], in[1], workspace, scribbles)
			}
			for i, p := range products {
				j.Has(in[0], productBytes, 1)
				j.Has(p, productBytes, 5+scribbles*uint32(i))
			}
			for _, p := range products {
				j.Must(j.l.Free(p))
			}
			if s := j.l.Stats().Explicit; s.Unmade != 0 {
				t.Fatalf("round %d: %+v", round, s)
			}
			if round == again && scribbles == 0 { // a word is an address that never was one
				j.locked(func(e *Engine) {
					f := e.accesses.functions[livetest.KernelGemm]
					f.again()
					f.told = false
				})
			}
		}
		if scribbles == 0 && !over() {
			t.Error("trials began anew, and are not over: what is proven is not tried")
		}
		s := j.l.Stats().Explicit
		j.Hook.Mu.Lock()
		told := j.Hook.Told[livetest.KernelGemm]
		j.Hook.Mu.Unlock()
		switch {
		case scribbles == 0 && (s.Made == 0 || told != 2):
			t.Errorf("%d products were made again, they write to %d operands; %+v", s.Made, told, s)
		case scribbles != 0 && (s.Made != 0 || s.DropsWrong == 0):
			t.Errorf("%d products were made again that write to what they read, %d were found out", s.Made, s.DropsWrong)
		}
		j.locked(func(e *Engine) { j.Must(e.runtime.Check()) })
		j.Closed()
	}
}

// TestMakingTakesMoreMemory: what was dropped without a copy is made also where that needs more memory than there is for what is made on the
// way, as when it is found out later that a launch writes to what it was to read. The memory counts, and is given back.
func TestMakingTakesMoreMemory(t *testing.T) {
	c := replaying(t, um.ReplayOn)
	c.BudgetBytes += 32 * mib
	j := newJob(t, c)
	plain := j.l.Stats().Explicit.PlainBytes
	j.locked(func(e *Engine) { e.verifier.temps = cuda.Range{} })
	a, b, workspace := j.Malloc(productBytes), j.Malloc(productBytes), j.Malloc(productBytes)
	j.Fill(a, productBytes, 1)
	products := make([]cuda.Ptr, 24)
	for round := 0; j.l.Stats().Explicit.Made == 0 && round < 60; round++ {
		j.Fill(b, productBytes, 2)
		for i := range products {
			products[i] = j.Malloc(productBytes)
			j.multiply(products[i], a, b, workspace, 0)
		}
		for _, p := range products {
			j.Has(p, productBytes, 5)
		}
		for _, p := range products {
			j.Must(j.l.Free(p))
		}
	}
	s := j.l.Stats().Explicit
	j.Eventually("no more is held than the budget has", func() (is bool) {
		j.locked(func(e *Engine) { is = e.runtime.RoomBytes() >= 0 })
		return is
	})
	if s.Made == 0 || s.PlainBytes < plain+productBytes {
		t.Errorf("%d products were made, %d bytes of plain memory before, %d now", s.Made, plain, s.PlainBytes)
	}
	j.locked(func(e *Engine) {
		if len(e.verifier.grown) != 1 || e.verifier.temps != e.verifier.grown[0] {
			t.Errorf("%v of %v", e.verifier.temps, e.verifier.grown)
		}
		j.Must(e.runtime.Check())
	})
	j.Closed()
}

// TestTrialBeginsAnew: where a word is an address that never was one, it has to be tried again what is written to.
func TestTrialBeginsAnew(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayOn))
	defer j.Closed()
	p, q := j.Malloc(productBytes), j.Malloc(productBytes)
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(p)), uint64(q))
	j.locked(func(e *Engine) {
		rec := hook.Record{Kind: hook.Launch, ID: 77, Slots: []uint32{e.runtime.SlotOf(p), e.runtime.SlotOf(q)}}
		for _, x := range []struct {
			seen []uint32
			over bool
		}{{[]uint32{0, 8}, true}, {[]uint32{0}, false}} {
			f := &recorded{id: 77, told: true, trial: trial{passed: enoughTrials, made: []uint32{0}, writes: []uint32{0}, seen: x.seen}}
			o := um.Op{Slots: rec.Slots}
			e.accesses.byTrial(e, &rec, &o, f, &cuda.RecordedLaunch{Starts: []uint32{0}, Params: params})
			if f.over() != x.over || f.told != x.over || (o.Again != nil) != x.over {
				t.Errorf("seen %v: passed %d, told %t, can be issued again: %t", x.seen, f.passed, f.told, o.Again != nil)
			}
			if !x.over && (len(f.made) > 0 || slices.Contains(f.writes, 0)) {
				t.Errorf("what a launch makes would be taken for a workspace: %v, %v", f.made, f.writes)
			}
		}
	})
}

// TestSuspects: of several words that point to where something was written those are suspected that never pointed to what was only read.
func TestSuspects(t *testing.T) {
	for _, x := range []struct{ words, reads, writes, want []uint32 }{
		{[]uint32{0, 8}, nil, nil, []uint32{0, 8}},
		{[]uint32{0, 8}, []uint32{0}, nil, []uint32{8}},
		{[]uint32{0, 8}, []uint32{0, 8}, nil, []uint32{0, 8}},
		{[]uint32{0, 8, 16}, []uint32{0}, []uint32{16}, []uint32{8}},
		{[]uint32{0, 16}, []uint32{0}, []uint32{16}, []uint32{0, 16}},
	} {
		f := trial{reads: x.reads, writes: x.writes}
		if got := f.suspects(x.words); !slices.Equal(got, x.want) {
			t.Errorf("of %v, where %v are read and %v known, %v are suspected, want %v", x.words, x.reads, x.writes, got, x.want)
		}
	}
}

// TestWorkspaceInSharedRange: what most products name of a range that allocations share is a workspace to all of them, though it is as it was after
// each; what else they read there is not. The launch hook is told.
func TestWorkspaceInSharedRange(t *testing.T) {
	c := replaying(t, um.ReplayOn)
	c.Packs = true
	j := newJob(t, c)
	defer j.Closed()
	const bytes = 3 * mib / 2
	weights, workspace := j.Malloc(bytes), j.Malloc(bytes)
	outs, inputs := make([]cuda.Ptr, productsSeen), make([]cuda.Ptr, workspaceOf)
	for i := range outs {
		outs[i] = j.Malloc(2 * mib)
	}
	for i := range inputs {
		inputs[i] = j.Malloc(2 * mib)
		j.Fill(inputs[i], 2*mib, 1)
	}
	j.locked(func(e *Engine) {
		slot := e.runtime.SlotOf(workspace)
		if slot != e.runtime.SlotOf(weights) || slot == e.runtime.SlotOf(inputs[0]) || e.runtime.SlotOf(inputs[0]) == e.runtime.SlotOf(inputs[1]) {
			t.Fatal("the first two do not share a range")
		}
		f := &recorded{id: 77, product: true, told: true, trial: trial{passed: enoughTrials, made: []uint32{0}, writes: []uint32{0}, seen: []uint32{0, 8, 16, 24}}}
		launch := func(i int, beside cuda.Ptr) um.Op {
			out, input := outs[i], inputs[i%len(inputs)]
			rec := hook.Record{Kind: hook.Launch, ID: 77, Slots: []uint32{e.runtime.SlotOf(out), slot, e.runtime.SlotOf(input)}}
			var params []byte
			for _, p := range []cuda.Ptr{out, workspace, input, beside} {
				params = binary.LittleEndian.AppendUint64(params, uint64(p))
			}
			o := um.Op{Slots: rec.Slots}
			e.accesses.byTrial(e, &rec, &o, f, &cuda.RecordedLaunch{Function: cuda.Function(1 + i%3), Starts: []uint32{0}, Params: params})
			return o
		}
		for i := range workspaceOf {
			if o := launch(i, inputs[i]); (o.Access[1] == um.AccessScratch) != (i == workspaceOf-1) || o.Again == nil {
				t.Fatalf("launch %d: %v, can be issued again: %t", i, o.Access, o.Again != nil)
			}
		}
		if !slices.Contains(f.writes, 8) || slices.Contains(f.writes, 16) || !f.told {
			t.Errorf("%v are written to, told: %t", f.writes, f.told)
		}
		if o := launch(workspaceOf, weights); o.Again != nil {
			t.Error("what reads beside its workspace would read memory of the engine's")
		}
		f.writes = slices.Repeat([]uint32{1}, hook.MostWritten+1)
		if e.accesses.tell(e, f); f.told {
			t.Error("the hook was told more than it can hold")
		}
	})
}

// TestStaleWords: words that are addresses of nothing alive, as lists with room for more carry them, do not keep a launch from being issued again.
func TestStaleWords(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayOn))
	defer j.Closed()
	out, in, dead := j.Malloc(productBytes), j.Malloc(productBytes), j.Malloc(productBytes)
	j.Fill(in, productBytes, 1)
	j.Fill(dead, productBytes, 1)
	var params []byte
	for _, p := range []cuda.Ptr{out, in, dead} {
		params = binary.LittleEndian.AppendUint64(params, uint64(p))
	}
	j.locked(func(e *Engine) {
		slots := []uint32{e.runtime.SlotOf(out), e.runtime.SlotOf(in), e.runtime.SlotOf(dead)}
		if _, err := e.runtime.Hold(dead); err != nil {
			t.Fatal(err)
		}
		if e.runtime.Lives(slots[2]) || e.runtime.SlotRange(slots[2]).Base != dead {
			t.Fatal("there is no dead range that the job may take again")
		}
		rec := hook.Record{Kind: hook.Launch, ID: 77, Slots: slots}
		o := um.Op{Slots: rec.Slots}
		l := &cuda.RecordedLaunch{Starts: []uint32{0}, Params: params}
		e.accesses.byTrial(e, &rec, &o, &recorded{id: 77}, l)
		if o.Again == nil || !slices.Equal(l.Addresses, []uint32{0, 8}) || !slices.Equal(l.Stale, []uint32{16}) {
			t.Fatalf("addresses %v, stale %v", l.Addresses, l.Stale)
		}
		if found := e.hiddenAddresses(l); len(found) > 0 {
			t.Errorf("%v are taken for addresses that nobody knows of", found)
		}
		if _, err := e.runtime.Retake(dead, productBytes, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestOperandsAreNoWorkspaces: neither what is new in the same range each time, nor what another kernel has written, is a workspace, however many
// products name the address.
func TestOperandsAreNoWorkspaces(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayOn))
	defer j.Closed()
	weights, out := j.Malloc(2*mib), j.Malloc(3*mib)
	j.Increase(weights, 2*mib, 1)
	f := &recorded{id: 77, product: true, trial: trial{passed: enoughTrials, made: []uint32{0}, writes: []uint32{0}, seen: []uint32{0, 8, 16}}}
	at := map[cuda.Ptr]int{}
	for i := range productsSeen {
		input := j.Malloc(4 * mib)
		at[input]++
		j.locked(func(e *Engine) {
			rec := hook.Record{Kind: hook.Launch, ID: 77}
			var params []byte
			for _, p := range []cuda.Ptr{out, weights, input} {
				rec.Slots = append(rec.Slots, e.runtime.SlotOf(p))
				params = binary.LittleEndian.AppendUint64(params, uint64(p))
			}
			o := um.Op{Slots: rec.Slots}
			e.accesses.byTrial(e, &rec, &o, f, &cuda.RecordedLaunch{Function: cuda.Function(1 + i%3), Starts: []uint32{0}, Params: params})
		})
		j.Must(j.l.Free(input))
	}
	if len(at) > productsSeen/workspaceOf {
		t.Fatalf("the inputs lay at %d addresses: too many to tell", len(at))
	}
	if !slices.Equal(f.writes, []uint32{0}) {
		t.Errorf("%v are written to: what is read is taken for a workspace", f.writes)
	}
}

// TestDoubtfulOperands: a product with an operand that nothing but products has named is not issued again, for that may be a workspace with
// semaphores; nor does one get a copy of plain memory that several products use.
func TestDoubtfulOperands(t *testing.T) {
	j := newJob(t, replaying(t, um.ReplayOn))
	defer j.Closed()
	weights, doubtful, workspace := j.Malloc(productBytes), j.Malloc(productBytes), j.Malloc(productBytes)
	j.Increase(weights, productBytes, 1)
	first := j.Malloc(productBytes)
	j.multiply(first, weights, doubtful, workspace, 0)
	j.Eventually("the product is known", func() (is bool) {
		j.locked(func(e *Engine) { is = e.runtime.NamedByProducts(e.runtime.SlotOf(doubtful), 1) })
		return is
	})
	const plain = cuda.Ptr(0x7f0000001000)
	f := &recorded{id: 77, product: true, trial: trial{passed: enoughTrials, made: []uint32{0}, writes: []uint32{0}, seen: []uint32{0, 8, 16, 24}}}
	for _, x := range []struct {
		operand cuda.Ptr
		again   bool
	}{{weights, true}, {doubtful, false}, {weights, true}} {
		out := j.Malloc(3 * mib)
		j.locked(func(e *Engine) {
			rec := hook.Record{Kind: hook.Launch, ID: 77}
			var params []byte
			for _, p := range []cuda.Ptr{out, weights, x.operand} {
				if slot := e.runtime.SlotOf(p); !slices.Contains(rec.Slots, slot) {
					rec.Slots = append(rec.Slots, slot)
				}
				params = binary.LittleEndian.AppendUint64(params, uint64(p))
			}
			params = binary.LittleEndian.AppendUint64(params, uint64(plain))
			o := um.Op{Slots: rec.Slots}
			if e.accesses.byTrial(e, &rec, &o, f, &cuda.RecordedLaunch{Function: 1, Starts: []uint32{0}, Params: params}); (o.Again != nil) != x.again {
				t.Errorf("with the operand at %#x it is issued again: %t, want %t", uint64(x.operand), o.Again != nil, x.again)
			}
		})
		j.Must(j.l.Free(out))
	}
	j.locked(func(e *Engine) {
		uses := e.accesses.products.namedOutside()
		block := cuda.Range{Base: plain - 512, Bytes: 1024}
		if !severalName(uses, block) || severalName(uses[:1], block) || severalName(uses, cuda.Range{Base: plain + 8, Bytes: 512}) {
			t.Errorf("%v use %v", uses, block)
		}
	})
}
