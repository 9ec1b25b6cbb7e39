package paged

import (
	"testing"

	"github.com/penstock-gpu/penstock/internal/hook"
)

// have makes handles those of the hook's streams.
func (r *rig) have(handles ...uint64) {
	r.h.Mu.Lock()
	defer r.h.Mu.Unlock()
	r.h.Handles = handles
}

// look has the engine read what was launched and finished, and answers how many
// operations are not finished.
func (r *rig) look() int {
	r.l.Mu.Lock()
	defer r.l.Mu.Unlock()
	r.l.Drain()
	r.l.Progress()
	return r.e.runtime.Queued()
}

// TestStreamsComeAndGo: a job that makes its streams anew leaves nothing of the old ones
// behind. The driver gives handles anew; those that pass faster than they are looked at do
// not matter then.
func TestStreamsComeAndGo(t *testing.T) {
	r := newRig(t, defaults())
	const streams, first, few, most = 4000, 0x6000, 5, 16
	for i := range uint64(streams) {
		handle := first + i*16
		if i > streams/2 {
			handle = first + i%few*16
		}
		p := r.MallocOn(4*mib, handle)
		r.have(0, handle)
		seq, _ := r.h.Queue(1, p)
		r.h.Finish(1, seq)
		r.Must(r.l.Free(p))
		if i <= streams/2 {
			r.look()
		}
		r.have(0, hook.StreamGone)
	}
	if n := r.look(); n != 0 {
		t.Errorf("%d operations are taken for unfinished", n)
	}
	r.l.Mu.Lock()
	defer r.l.Mu.Unlock()
	if n := r.l.Streams.Len(); n > most {
		t.Errorf("%d numbers", n)
	}
	if err := r.e.runtime.Check(); err != nil {
		t.Error(err)
	}
}

// TestFinishedBeforeItIsRead: a stream reports an operation as done that the engine has not read yet,
// and launches no other: when it is read it is done.
func TestFinishedBeforeItIsRead(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(4*mib, 0x5000)
	first, _ := r.h.Queue(1, p)
	r.h.Finish(1, first)
	r.look()
	r.l.Mu.Lock() // the engine's threads see nothing of what is between
	r.l.Drain()
	seq, _ := r.h.Queue(1, p)
	r.h.Finish(1, seq)
	r.l.Progress()
	r.l.Mu.Unlock()
	if n := r.look(); n != 0 {
		t.Errorf("%d operations are taken for unfinished", n)
	}
}

// TestStreamsOfOneHandle: threads' default streams have one handle, and so have streams that
// were destroyed; what one has finished says nothing of another.
func TestStreamsOfOneHandle(t *testing.T) {
	for name, handle := range map[string]uint64{"default": hook.StreamPerThread, "gone": hook.StreamGone} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, defaults())
			r.have(0, handle, handle)
			a, b := r.MallocOn(4*mib, 0), r.MallocOn(4*mib, 0)
			slow, _ := r.h.Queue(1, a)
			quick, _ := r.h.Queue(2, b)
			r.h.Finish(2, quick)
			if n := r.look(); n != 1 {
				t.Errorf("%d operations are unfinished, want that of the slow stream", n)
			}
			r.h.Finish(1, slow)
			if n := r.look(); n != 0 {
				t.Errorf("%d operations are unfinished", n)
			}
		})
	}
}

// TestHandleUnderAnotherIndex: the driver gives the handle of a destroyed stream anew while that
// has work: what the new one finishes says nothing of the old one, under whichever index.
func TestHandleUnderAnotherIndex(t *testing.T) {
	r := newRig(t, defaults())
	const handle = 0x7000
	p := r.MallocOn(4*mib, 0)
	r.have(0, handle)
	first, _ := r.h.Queue(1, p)
	r.h.Finish(1, first)
	r.look()
	r.have(0, hook.StreamGone, handle)
	slow, _ := r.h.Queue(2, p)
	r.look()
	r.have(0, handle, hook.StreamGone) // index 1 was free, the stream of index 2 is at work
	quick, _ := r.h.Queue(1, p)
	r.h.Finish(1, quick)
	if n := r.look(); n != 1 {
		t.Errorf("%d operations are unfinished, want that of the stream that was destroyed", n)
	}
	r.h.Finish(2, slow)
	if n := r.look(); n != 0 {
		t.Errorf("%d operations are unfinished", n)
	}
}

// TestIndexOfQuietStream: an index is given to a stream that launches nothing. What the one before
// had is done.
func TestIndexOfQuietStream(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(4*mib, 0)
	r.have(0, 0x7000)
	r.h.Queue(1, p)
	if n := r.look(); n != 1 {
		t.Fatalf("%d operations are unfinished, want 1", n)
	}
	r.have(0, 0x8000)
	if n := r.look(); n != 0 {
		t.Errorf("%d operations are unfinished, whose stream is gone", n)
	}
}

// TestSharedStream: streams beyond those that the hook tells apart report nothing, and their
// operations are not waited for.
func TestSharedStream(t *testing.T) {
	r := newRig(t, defaults())
	r.have(append(make([]uint64, hook.SharedStream), hook.StreamMany)...)
	p := r.MallocOn(4*mib, 0)
	for range 1000 {
		r.h.Queue(hook.SharedStream, p)
	}
	held, _ := r.h.Queue(0, p)
	if n := r.look(); n != 1 {
		t.Errorf("%d operations are unfinished, want that of the default stream", n)
	}
	r.h.Finish(0, held)
	if n := r.look(); n != 0 {
		t.Errorf("%d operations are unfinished", n)
	}
}

// TestGatesFollow: the gates of quiet streams are never so far behind that they seem open; one
// that holds something back stays as it is.
func TestGatesFollow(t *testing.T) {
	r := newRig(t, defaults())
	r.holdBack()
	a, b := r.MallocOn(40*mib, 0x5000), r.MallocOn(40*mib, 0)
	seq, held := r.h.Queue(1, a)
	if !held {
		t.Fatal("what is nowhere is launched at once")
	}
	r.Eventually("the gate opens", func() bool { return r.h.Gate(1) == seq })
	r.d.Mu.Lock()
	r.d.Block = make(chan struct{}) // nothing moves from here on
	r.d.Mu.Unlock()
	t.Cleanup(func() { close(r.d.Block) }) // before the engine is closed
	if _, held := r.h.Queue(0, b); !held {
		t.Fatal("what is nowhere is launched at once")
	}
	r.look()
	r.h.Mu.Lock()
	r.h.Newest += 3 << 30
	head := r.h.Newest
	r.h.Mu.Unlock()
	r.Eventually("the quiet stream's gate follows", func() bool { return head-r.h.Gate(1) < 1<<30 })
	if at := r.h.Gate(0); at != 0 {
		t.Errorf("the gate of what is held back is open up to %d", at)
	}
}
