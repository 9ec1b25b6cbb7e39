package live

import (
	"encoding/binary"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
)

// combine makes out = (a + b) * by, word by word, with a kernel whose launches are recorded once one has been seen.
func (j *stubJob) combine(out, a, b cuda.Ptr, by uint64) {
	j.Helper()
	params := binary.LittleEndian.AppendUint64(nil, stubTensor/4)
	for _, x := range []uint64{by, uint64(out), uint64(a), uint64(b)} {
		params = binary.LittleEndian.AppendUint64(params, x)
	}
	l := &cuda.RecordedLaunch{
		Function: j.d.Function(elementwise), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Starts: []uint32{0, 8, 16}, Params: params,
	}
	j.must(j.launch(work{kind: hook.Launch, id: kernelElementwise, names: []cuda.Ptr{out, a, b}, again: l, queue: func() error { return j.d.LaunchAgain(l, j.stream) }}))
}

// products makes n tensors of two inputs, which are then used by a kernel of which nothing is known.
func (j *stubJob) products(n int) (inputs [2]cuda.Ptr, products []cuda.Ptr) {
	j.Helper()
	for i := range inputs {
		inputs[i] = j.malloc(stubTensor)
		j.fill(inputs[i], stubTensor, uint32(1+i))
	}
	for i := range n {
		p := j.malloc(stubTensor)
		j.combine(p, inputs[0], inputs[1], uint64(i+1))
		products = append(products, p)
	}
	return inputs, products
}

func replaying() Config {
	c := explicitConfig()
	c.Replay = true
	return c
}

// TestExplicitMakesAgain: what has left is made again by the launch that made it while its inputs are there, and is the same.
func TestExplicitMakesAgain(t *testing.T) {
	for name, verify := range map[string]bool{"plain": false, "verified": true} {
		t.Run(name, func(t *testing.T) {
			c := replaying()
			c.Verify = verify
			j := newStubJob(t, c)
			in, products := j.products(stubTensors)
			for range 2 {
				for i, p := range products {
					j.must(j.run(kernelOther, j.sum, in[:], uint64(in[0]), uint64(in[0]), uint64(in[1]), 0)) // of no words: they are used
					j.has(p, stubTensor, uint32(3*(i+1)))
				}
			}
			if s := j.l.Stats().Explicit; s.Made == 0 || s.MadeBytes != s.Made*stubTensor || s.Unmade != 0 {
				t.Errorf("%d tensors made again, %d bytes, %d not the same", s.Made, s.MadeBytes, s.Unmade)
			}
			j.closed()
		})
	}
}

// TestExplicitMadeWrongly: where an input was written to by something that nobody knows of, what is made is not what left: its
// copy comes in, and the same is not tried for ever.
func TestExplicitMadeWrongly(t *testing.T) {
	j := newStubJob(t, replaying())
	in, products := j.products(stubTensors)
	j.must(j.run(kernelOther, j.add, in[:1], uint64(in[0]), stubTensor/4, 100))
	const rounds = 6
	for range rounds {
		for i, p := range products {
			j.must(j.run(kernelOther, j.sum, in[:], uint64(in[0]), uint64(in[0]), uint64(in[1]), 0))
			j.has(p, stubTensor, uint32(3*(i+1)))
			x := j.malloc(stubTensor / 2) // so that what comes in takes dead memory's place
			j.fill(x, stubTensor/2, 7)
			j.must(j.l.Free(x))
		}
	}
	j.locked(func(e *swap) { j.must(e.runtime.Check()) })
	s := j.l.Stats().Explicit
	if s.Unmade == 0 || s.Unmade > stubTensors || s.Made != 0 {
		t.Errorf("%d tensors were not made rightly, %d were", s.Unmade, s.Made)
	}
	j.has(in[0], stubTensor, 101)
	j.closed()
}

// TestExplicitForgetsLaunches: when modules are unloaded, no launch of before is made again.
func TestExplicitForgetsLaunches(t *testing.T) {
	j := newStubJob(t, replaying())
	_, products := j.products(stubTensors)
	j.h.unloads.Add(1)
	for i, p := range products {
		j.has(p, stubTensor, uint32(3*(i+1)))
	}
	if s := j.l.Stats().Explicit; s.Made+s.Unmade != 0 {
		t.Errorf("%d tensors made again, and %d tried", s.Made, s.Unmade)
	}
	j.closed()
}
