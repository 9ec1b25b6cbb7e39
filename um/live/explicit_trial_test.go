package live

import (
	"encoding/binary"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// multiply makes out = 3 a + b with a kernel of a matrix library, which leaves its workspace as it is not to find it: the job clears it.
func (j *stubJob) multiply(out, a, b, workspace cuda.Ptr, scribbles uint32) {
	j.Helper()
	j.fill(workspace, productBytes, 0)
	var params []byte
	for _, p := range []cuda.Ptr{out, a, b, workspace} {
		params = binary.LittleEndian.AppendUint64(params, uint64(p))
	}
	params = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(params, productBytes/4), scribbles)
	l := &cuda.RecordedLaunch{Function: j.d.Function("stub_gemm"), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Starts: []uint32{0}, Params: params}
	j.must(j.launch(work{kind: hook.Launch, id: kernelGemm, names: []cuda.Ptr{out, workspace, a, b}, again: l, queue: func() error { return j.d.LaunchAgain(l, j.stream) }}))
}

// TestExplicitTrials: what products make is made again once it has been tried out what they write to: a workspace, too, which is not what is guarded or
// read. One that writes to what it should only read is found out, and nothing is wrong for it, however long it is tried: what was recorded
// before that was known is not issued with what the job has.
func TestExplicitTrials(t *testing.T) {
	defer func(before int) { mostWrong = before }(mostWrong)
	for _, x := range []struct {
		scribbles uint32
		mostWrong int
	}{{0, 0}, {1, 0}, {1, 1000}} {
		scribbles := x.scribbles
		mostWrong = x.mostWrong
		c := replaying(t, um.ReplayOn)
		c.BudgetBytes += 32 * mib
		j := newStubJob(t, c)
		in := [2]cuda.Ptr{j.malloc(productBytes), j.malloc(productBytes)}
		j.fill(in[0], productBytes, 1)
		workspace := j.malloc(productBytes)
		products := make([]cuda.Ptr, 24)
		for round := range 8 {
			j.fill(in[1], productBytes, 2)
			for i := range products {
				products[i] = j.malloc(productBytes)
				j.multiply(products[i], in[0], in[1], workspace, scribbles)
			}
			for i, p := range products {
				j.has(in[0], productBytes, 1)
				j.has(p, productBytes, 5+scribbles*uint32(i))
			}
			for _, p := range products {
				j.must(j.l.Free(p))
			}
			if s := j.l.Stats().Explicit; s.Unmade != 0 {
				t.Fatalf("round %d: %+v", round, s)
			}
		}
		s := j.l.Stats().Explicit
		j.h.mu.Lock()
		told := j.h.told[kernelGemm]
		j.h.mu.Unlock()
		switch {
		case scribbles == 0 && (s.Made == 0 || told != 2):
			t.Errorf("%d products were made again, they write to %d operands; %+v", s.Made, told, s)
		case scribbles != 0 && (s.Made != 0 || s.DropsWrong == 0):
			t.Errorf("%d products were made again that write to what they read, %d were found out", s.Made, s.DropsWrong)
		}
		j.locked(func(e *swap) { j.must(e.runtime.Check()) })
		j.closed()
	}
}

// TestTrialBeginsAnew: where a word is an address that never was one, it has to be tried again what is written to.
func TestTrialBeginsAnew(t *testing.T) {
	j := newStubJob(t, replaying(t, um.ReplayOn))
	defer j.closed()
	p, q := j.malloc(productBytes), j.malloc(productBytes)
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(p)), uint64(q))
	j.locked(func(e *swap) {
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
		}
	})
}
