package swapped

import (
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// hear tells the runtime of the calls that the front served and before which every
// operation was reported, which are those up to a seq: a free that is heard of before
// an operation that came before it would let memory go that is in use. The caller
// holds the lock.
func (e *Engine) hear(reported uint64) {
	if e.front == nil {
		return
	}
	if e.front.HasNotes() {
		e.front.Notes(func(n front.Note) { e.calls = append(e.calls, n) })
	}
	k := 0
	for k < len(e.calls) && e.calls[k].When <= reported {
		e.dealWith(e.calls[k])
		k++
	}
	if k > 0 {
		e.calls = append(e.calls[:0], e.calls[k:]...)
	}
}

// HearAll tells it of all that can be told, and the front how much more it may give
// out. The caller holds the lock.
func (e *Engine) HearAll() {
	if e.front != nil {
		e.hear(e.hook.Read())
		e.front.SetMost(e.taken + e.runtime.BeyondLiveBytes())
	}
}

// dealWith tells the runtime of one call. The caller holds the lock.
func (e *Engine) dealWith(n front.Note) {
	proc := e.proc
	e.heard++
	var err error
	if n.Bytes == 0 {
		var size int64
		size, err = e.runtime.Hold(n.At)
		e.taken -= size
		proc.Freed(err)
	} else {
		var size int64
		e.asked(n.Bytes, n.Stream, n.Requests)
		size, err = e.runtime.Retake(n.At, n.Bytes, proc.Streams.Number(n.Stream))
		e.taken += size
		proc.Counts.Allocs.Add(1)
	}
	if err != nil { // the two accounts of what is allocated differ: nothing can be relied on
		proc.Fail(err)
		return
	}
	proc.NoteTensors()
	if n.Bytes > 0 {
		process.Raise(&proc.Counts.LivePeak, proc.LiveBytes())
	}
}

func (e *Engine) ServeFront(may bool) bool {
	if e.front != nil {
		most := int64(0)
		if may {
			most = front.All
		}
		e.front.Serve(most, -1, true)
	}
	return may
}
