package explicit

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// recipeBytes is the size of what the launches of these tests make, which is less than a chunk.
const recipeBytes = 3 * copyUnit

// filled is a chunk of device memory of which each word is a function of its index.
func (c *carrier) filled(word func(i uint32) uint32) cuda.Range {
	c.Helper()
	r := c.chunk()
	host := c.host(0)
	at := uint32(0)
	for _, x := range host {
		w := wordsAt(x.Base, x.Bytes)
		for i := range w {
			w[i] = word(at)
			at++
		}
	}
	c.move(&Move{Kind: MoveFetch, Chunk: r, Bytes: carriedChunk, Host: host, tensor: owned(r)})
	return cuda.Range{Base: r.Base, Bytes: recipeBytes}
}

// device are the words of device memory, which is the host's on the test double, once all that is queued has run.
func (c *carrier) device(r cuda.Range) []uint32 {
	c.Helper()
	if err := c.d.StreamSynchronize(c.mover.Stream()); err != nil {
		c.Fatal(err)
	}
	return wordsAt(r.Base, r.Bytes)
}

// launch is one of the test double's kernels as it was recorded: addresses come first among its parameters.
func (c *carrier) launch(kernel string, addresses []cuda.Ptr, values ...uint64) *cuda.RecordedLaunch {
	c.Helper()
	l := &cuda.RecordedLaunch{Function: c.d.Function(kernel), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}
	for _, p := range addresses {
		l.Addresses = append(l.Addresses, uint32(len(l.Params)))
		l.Params = binary.LittleEndian.AppendUint64(l.Params, uint64(p))
	}
	for _, x := range values {
		l.Params = binary.LittleEndian.AppendUint64(l.Params, x)
	}
	return l
}

// wait waits for a ticket of the mover.
func (c *carrier) wait(ticket uint32, err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
	for began := time.Now(); wordsAt(c.words, 4)[0] != ticket; time.Sleep(10 * time.Microsecond) {
		if time.Since(began) > 20*time.Second {
			c.Fatalf("ticket %d is not reached", ticket)
		}
	}
}

// doubled makes a tensor of another in two launches: what the first one makes was freed, so that it is made in scratch memory.
type doubled struct {
	*carrier
	input, output, freed, scratch cuda.Range
	launches                      []*cuda.RecordedLaunch
	temps                         [][]Temp
}

func newDoubled(t *testing.T) *doubled {
	x := &doubled{carrier: newCarrier(t)}
	x.checksums(false)
	x.input, x.output = x.filled(func(i uint32) uint32 { return i }), x.filled(func(i uint32) uint32 { return 2 * i })
	x.scratch = x.filled(func(uint32) uint32 { return 0xdead })
	x.freed = cuda.Range{Base: x.base + carrierBytes - carriedChunk, Bytes: recipeBytes} // nothing is mapped there: whoever went there would crash
	const words = recipeBytes / 4
	x.launches = []*cuda.RecordedLaunch{
		x.launch("touch_add", []cuda.Ptr{x.freed.Base}, words, 5), // to zeros: it is scratch memory
		x.launch("vec_add", []cuda.Ptr{x.freed.Base, x.freed.Base, x.input.Base}, words),
		x.launch("vec_add", []cuda.Ptr{x.output.Base, x.freed.Base, x.input.Base}, words),
	}
	temp := []Temp{{At: x.freed, Scratch: true}}
	x.temps = [][]Temp{temp, temp, temp}
	return x
}

// verification is the move that verifies that; output is what is to be found in scratch memory.
func (x *doubled) verification() *Move {
	return &Move{Kind: MoveVerify, Chunk: x.output, Bytes: recipeBytes, Launches: x.launches, Temps: x.temps, Inputs: []cuda.Range{x.input}, tensor: owned(x.output)}
}

func made(i uint32) uint32 { return 5 + 2*i }

// TestMoverMakesAgain: what launches make in scratch memory is verified there, and made in its place when it has gone.
func TestMoverMakesAgain(t *testing.T) {
	x := newDoubled(t)
	before := slices.Clone(x.device(x.output))
	v := x.verification()
	x.wait(x.mover.Verify(v, x.scratch.Base))
	x.mover.Summed(v)
	if !v.Summed || v.Clean {
		t.Errorf("verified: %+v", v)
	}
	if !slices.Equal(x.device(x.output), before) {
		t.Error("what is verified has been written to")
	}
	for i, w := range x.device(cuda.Range{Base: x.scratch.Base, Bytes: recipeBytes}) {
		if w != made(uint32(i)) {
			t.Fatalf("word %d of what was verified is %d, want %d", i, w, made(uint32(i)))
		}
	}

	place := x.chunk()
	moved := func(l *cuda.RecordedLaunch) *cuda.RecordedLaunch { return l.Redirected(x.output, place.Base) }
	m := &Move{Kind: MoveMake, Chunk: place, Bytes: recipeBytes, Sum: v.Sum, Launches: []*cuda.RecordedLaunch{x.launches[0], x.launches[1], moved(x.launches[2])}, Temps: x.temps, tensor: owned(place)}
	if x.begin(m) != 0 {
		t.Fatal("a making has a ticket before its launches are queued")
	}
	x.wait(x.mover.Make(m, x.scratch.Base))
	if !x.mover.Made(m) {
		t.Error("what is the same is said to be another")
	}
	for i, w := range x.device(cuda.Range{Base: place.Base, Bytes: recipeBytes}) {
		if w != made(uint32(i)) {
			t.Fatalf("word %d of what was made is %d, want %d", i, w, made(uint32(i)))
		}
	}
	x.finish(m)

	x.device(x.input)[recipeBytes/4-1]++ // what it is made of is not what it was
	x.wait(x.mover.Make(m, x.scratch.Base))
	if x.mover.Made(m) {
		t.Error("what is another is said to be the same")
	}
}

// TestMoverTries: a trial reads copies, and tells which of them it has written to.
func TestMoverTries(t *testing.T) {
	x := newDoubled(t)
	other := x.filled(func(i uint32) uint32 { return 7 * i })
	v := x.verification()
	v.Launches = append(v.Launches, x.launch("touch_add", []cuda.Ptr{other.Base}, recipeBytes/4, 1)) // writes to what it reads
	v.Temps, v.Inputs, v.Isolated = append(v.Temps, nil), append(v.Inputs, other), true
	if need := 4 * int64(recipeBytes); x.mover.MayTry(v, need-1) || !x.mover.MayTry(v, need) { // made, freed, and the two copies
		t.Fatal("a trial takes memory for what it makes, what was freed and copies of two inputs")
	}
	x.wait(x.mover.Verify(v, x.scratch.Base))
	if x.mover.MayTry(x.verification(), 1<<30) {
		t.Error("a trial may begin while there is another")
	}
	x.mover.Summed(v)
	x.mover.Tried(v)
	if !slices.Equal(v.Changed, []cuda.Range{other}) {
		t.Errorf("%v was written to, want %v", v.Changed, other)
	}
	for i, w := range x.device(other) {
		if w != 7*uint32(i) {
			t.Fatalf("word %d of what a trial reads is %d", i, w)
		}
	}
	if !x.mover.MayTry(x.verification(), 1<<30) {
		t.Error("a trial that is over is in the way of the next")
	}

	// What is isolated is copied: the launches find there what the job left.
	v = x.verification()
	v.Launches = append(v.Launches, x.launch("vec_add", []cuda.Ptr{x.output.Base, x.output.Base, other.Base}, recipeBytes/4), x.launch("touch_add", []cuda.Ptr{other.Base}, recipeBytes/4, 1))
	v.Temps = append(v.Temps, nil, nil)
	v.Isolate([]Overwritten{{other, false}})
	x.wait(x.mover.Verify(v, x.scratch.Base))
	x.mover.Summed(v)
	for i, w := range x.device(cuda.Range{Base: x.scratch.Base, Bytes: recipeBytes}) {
		if want := made(uint32(i)) + 7*uint32(i); w != want {
			t.Fatalf("word %d is %d, want %d", i, w, want)
		}
	}
	if w := x.device(other)[1]; w != 7 {
		t.Errorf("what was isolated was written to: %d", w)
	}
}

// TestMoverCannotVerify: a launch that the driver refuses is an error, after which another trial may begin; what is proven issues nothing.
func TestMoverCannotVerify(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		x := newDoubled(t)
		v := x.verification()
		v.Isolated = isolated
		x.d.Fail("cuLaunchKernel")
		if _, err := x.mover.Verify(v, x.scratch.Base); err == nil {
			t.Error("a launch was refused without an error")
		}
		if _, err := x.mover.Make(v, x.scratch.Base); err == nil {
			t.Error("a launch was refused without an error")
		}
		x.d.Fail("cuMemcpyAsync")
		v.Isolated = true
		if _, err := x.mover.Verify(v, x.scratch.Base); err == nil {
			t.Error("a copy was refused without an error")
		}
		if !x.mover.MayTry(v, 1<<30) {
			t.Error("a trial that failed is in the way of the next")
		}
	}
	x := newDoubled(t)
	v := x.verification()
	v.Proven = true
	launches := x.d.Count("launches")
	if ticket, err := x.mover.Verify(v, x.scratch.Base); ticket != 0 || err != nil {
		t.Errorf("there is nothing to wait for: ticket %d, %v", ticket, err)
	}
	v.Clones = []cuda.Range{x.input}
	x.wait(x.mover.Verify(v, x.scratch.Base)) // for the copies
	if n := x.d.Count("launches") - launches; n != 0 {
		t.Errorf("%d launches of what is proven", n)
	}
	x.mover.Summed(v)
	if v.Summed {
		t.Error("what was not made has a checksum")
	}
}
