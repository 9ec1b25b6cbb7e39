package swapped

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// question is an operation that waits for a grant.
type question struct {
	seq      uint64
	stream   int    // the hook's index
	function uint32 // noFunction: it is no launch of one
	opaque   bool
	named    []uint32      // slots, by its parameters
	before   trail         // what came before it on its stream
	searched bool          // what its parameters name has been searched for addresses
	settled  bool          // what it is known to need is there
	since    time.Duration // it is settled
}

// answer grants what the operation that asks may have. The caller holds the lock,
// which is released while the device searches.
func (e *Engine) answer() {
	q, proc := e.asking, e.proc
	if q == nil || proc.Failed != nil || !e.runtime.Settled(q.seq) {
		return
	}
	if !q.settled {
		q.settled, q.since = true, proc.Driver.Now()
	}
	if !q.opaque && !q.searched {
		found, chases, err := e.search(q)
		if err != nil && !errors.Is(err, errManyAddresses) {
			proc.Fail(err)
			return
		}
		q.searched = true
		e.inspected++
		if err != nil { // then it may reach anything
			e.judge(q, nil, true)
			e.extendAll(q.seq)
			q.settled = false
			e.grantTime += proc.Driver.Now() - q.since
			return // when all has come
		}
		e.judge(q, found, chases)
		proc.Log.Debug("a launch has been searched for addresses", zap.Uint64("operation", q.seq),
			zap.String("kernel", proc.Hook.FunctionName(q.function)), zap.Int("addresses", len(found)))
		if len(found) > 0 {
			e.chasers++
			n := e.runtime.Extend(q.seq, found)
			if n > 0 {
				q.settled = false
				e.grantTime += proc.Driver.Now() - q.since
				return // when they have come
			}
		}
	}
	e.grantTime += proc.Driver.Now() - q.since
	e.asking = nil
	e.runtime.Granted(q.seq)
	e.hook.Grant(q.seq)
}

// errManyAddresses is a search that found more than can be told apart.
var errManyAddresses = errors.New("more addresses than can be followed")

// extendAll has everything come for an operation of which nobody knows what it touches.
func (e *Engine) extendAll(seq uint64) {
	e.unresolved++
	if err := e.runtime.ExtendAll(seq); err != nil {
		e.proc.Fail(err)
	}
}

// foreignBytes is how much of memory that is not the engine's is searched, from where a parameter points at.
const foreignBytes = 16 << 20

// search looks in everything that an operation's parameters name for addresses of
// tensors, after what was queued on its stream before; and for such of plain memory: a kernel that finds these reaches memory through
// addresses, and the next time it may be that of a tensor. Tables of addresses may lie in memory of others as well: PyTorch
// hands them to MAGMA in pinned host memory, and MAGMA has some of its own on the device. Where nothing has written since an allocation is not
// looked: what a grouped GEMM left in memory that is now a kernel's output would have that one searched for ever. The
// caller holds the lock, which is released meanwhile.
func (e *Engine) search(q *question) (found []cuda.Ptr, chases bool, err error) {
	proc := e.proc
	seq, addresses := e.hook.Inspection()
	if seq != q.seq {
		return nil, false, fmt.Errorf("operation %d asks for a grant while %d is inspected", q.seq, seq)
	}
	ranges := map[cuda.Range]bool{}
	var plain []cuda.Ptr
	for _, a := range addresses {
		p := cuda.Ptr(a)
		if r, ok := e.runtime.Range(p); !ok {
			plain = append(plain, p)
		} else if !e.runtime.Unwritten(p, q.seq) {
			ranges[r] = true
		}
	}
	lo, hi := e.runtime.Span()
	spans := [2]kernels.Span{{Lo: lo, Hi: hi}}
	stream := cuda.Stream(proc.Streams.HandleAt(q.stream))
	if stream <= process.DefaultStreams {
		stream = 0
	}
	proc.Mu.Unlock()
	for _, p := range plain {
		if r, ok := e.blocks.Containing(p); !ok {
			if r, ok := e.foreign(p); ok {
				ranges[r] = true
			}
		} else if !e.unwritten(r.Base, q.seq) {
			ranges[r] = true
		}
	}
	if len(ranges) == 0 { // nor is the stream waited for
		proc.Mu.Lock()
		return nil, false, nil
	}
	spans[1] = e.plain.addresses()
	err = e.finder.Search(slices.Collect(maps.Keys(ranges)), spans, stream)
	if err == nil {
		err = proc.Driver.StreamSynchronize(stream)
	}
	if err == nil {
		words, total := e.finder.Found(1)
		// What was not kept may be such.
		chases = total > int64(len(words)) || slices.ContainsFunc(unique(words), func(p cuda.Ptr) bool { _, ok := e.blocks.Containing(p); return ok })
	}
	proc.Mu.Lock()
	if err != nil {
		return nil, false, err
	}
	kept, total := e.finder.Found(0)
	if total > int64(len(kept)) {
		return nil, false, errManyAddresses
	}
	for _, p := range unique(kept) {
		if _, ok := e.runtime.Range(p); ok { // else it is data that looks like an address
			found = append(found, p)
		}
	}
	return found, chases || len(found) > 0, nil
}

// foreign is what to search where a parameter points at memory that is not the engine's. What it points at in the engine's
// own, where nothing is allocated, is of no use to anyone, and may go at any time.
func (e *Engine) foreign(p cuda.Ptr) (r cuda.Range, ok bool) {
	if e.hook.Published(p) {
		return r, false
	}
	if r, ok = e.proc.Driver.AllocationAt(p); ok && r.Bytes > foreignBytes {
		r = cuda.Range{Base: p, Bytes: min(foreignBytes, int64(r.End()-p))}
	}
	return r, ok
}

// unwritten says whether plain memory has been given out and no operation has come since
// but the one with that seq, which can find nothing there: what is there is of before.
func (e *Engine) unwritten(base cuda.Ptr, seq uint64) bool {
	head, ok := e.bornAt(base)
	return ok && head+1 == seq
}

// bornAt is the seq of the operation before which a block of plain memory was given out, where that is known.
func (e *Engine) bornAt(base cuda.Ptr) (seq uint64, known bool) {
	f := e.config.PlainFront
	if f == nil {
		return 0, false
	}
	return f.BornAt(base)
}

// unique are the different words, in no order.
func unique(words []uint64) []cuda.Ptr {
	seen := make(map[uint64]bool, len(words))
	out := make([]cuda.Ptr, 0, len(words))
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, cuda.Ptr(w))
		}
	}
	return out
}
