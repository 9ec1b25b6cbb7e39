package live

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool"
)

// PoolID names a private pool, such as that of a CUDA graph.
type PoolID [2]uint64

// private is a pool of memory that nothing else uses until it is released. What is freed in it keeps its contents, as a
// graph that was captured with it may read them when it runs again. Where large allocations are tensors its larger segments
// are, too: they leave the device between the graphs that name them.
type private struct {
	id    PoolID
	pool  *pool.Caching
	users int
}

// privateStream is the handle of no stream: a graph runs on any, so what a private pool is given must be idle.
const privateStream = ^uint64(0)

// privateSource provides the segments of private pools. plainMu is held.
type privateSource struct{ l *Live }

func (s privateSource) Acquire(bytes int64) (cuda.Ptr, error) {
	l := s.l
	if bytes <= pool.SmallSegmentBytes {
		return plainSource{l}.Acquire(bytes)
	}
	if !l.Engine.Serving() {
		p, err := plainSource{l}.Acquire(bytes)
		if err == nil || !l.Engine.StartsWhenFull() {
			return p, err
		}
		if err := l.overflow(bytes); err != nil {
			return 0, err
		}
	}
	l.PrivateTensors.Add(bytes)
	p, err := l.Engine.Malloc(bytes, privateStream)
	if err != nil {
		l.PrivateTensors.Add(-bytes)
	}
	return p, err
}

func (s privateSource) Release(p cuda.Ptr, bytes int64) error {
	l := s.l
	if !l.Engine.Owns(p) {
		return plainSource{l}.Release(p, bytes)
	}
	l.PrivateTensors.Add(-bytes)
	err := l.Engine.Free(p)
	if err != nil {
		l.PrivateTensors.Add(bytes)
	}
	return err
}

// RetainPool makes a private pool, where there is none of that name, and counts one more user of it.
func (l *Live) RetainPool(id PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	l.retain(id)
	return nil
}

// retain is RetainPool. plainMu is held.
func (l *Live) retain(id PoolID) *private {
	p := l.privates[id]
	if p == nil {
		p = &private{id: id, pool: pool.NewCaching(privateSource{l}, eventFences{l.Driver, l.Hook})}
		l.privates[id] = p
	}
	p.users++
	l.anyPrivate.Store(true)
	return p
}

// PoolUsers is how many users a private pool has; 0 when there is none of that name.
func (l *Live) PoolUsers(id PoolID) int {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	if p := l.privates[id]; p != nil {
		return p.users
	}
	return 0
}

// BeginPool sends allocations to a private pool until EndPool, and retains it.
func (l *Live) BeginPool(id PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	if l.active.Load() != nil {
		return fmt.Errorf("a private pool is already in use: captures cannot be nested")
	}
	l.active.Store(l.retain(id))
	l.serveFront()
	return nil
}

// EndPool ends what BeginPool began.
func (l *Live) EndPool(id PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	if p := l.active.Load(); p != nil && p.id != id {
		return fmt.Errorf("private pool %x-%x is not in use, %x-%x is: it goes on being used", id[0], id[1], p.id[0], p.id[1])
	}
	l.active.Store(nil)
	l.serveFront()
	return nil
}

// ReleasePool gives a private pool up: its memory returns when the last
// allocation in it is freed.
func (l *Live) ReleasePool(id PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	defer l.notePrivate()
	p, err := l.privateNamed(id)
	if err != nil {
		return err
	}
	p.users = max(p.users-1, 0)
	l.giveBackUnused(p)
	return nil
}

// giveBackUnused gives back what is free of a pool that has no user any more, and forgets it when that is all. plainMu is held.
func (l *Live) giveBackUnused(p *private) {
	if p.users > 0 {
		return
	}
	p.pool.EmptyCache()
	if p.pool.Stats().ReservedBytes == 0 {
		delete(l.privates, p.id)
	}
}

// MallocIn allocates in a private pool, whichever is in use.
func (l *Live) MallocIn(id PoolID, bytes int64, stream uint64) (cuda.Ptr, error) {
	return l.allocatedIn(id, bytes, stream, func(c *pool.Caching) (cuda.Ptr, error) { return c.Malloc(bytes, stream) })
}

// RestoreIn makes what was an allocation of a private pool one again, at its address and with its contents: a graph that runs
// again writes there. It fails where something is allocated there.
func (l *Live) RestoreIn(id PoolID, p cuda.Ptr, bytes int64) error {
	_, err := l.allocatedIn(id, bytes, privateStream, func(c *pool.Caching) (cuda.Ptr, error) { return p, c.MallocAt(p, bytes) })
	return err
}

// allocatedIn is allocated for what malloc takes from a private pool.
func (l *Live) allocatedIn(id PoolID, bytes int64, stream uint64, malloc func(*pool.Caching) (cuda.Ptr, error)) (cuda.Ptr, error) {
	return l.allocated(bytes, stream, func() (cuda.Ptr, error) {
		l.plainMu.Lock()
		defer l.plainMu.Unlock()
		defer l.notePrivate()
		x, err := l.privateNamed(id)
		if err != nil {
			return 0, err
		}
		return malloc(x.pool)
	})
}

// PoolBlocks are the live allocations of a private pool, by address, of the sizes that were asked for.
func (l *Live) PoolBlocks(id PoolID) []cuda.Range {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	if p := l.privates[id]; p != nil {
		return p.pool.Live()
	}
	return nil
}

// privateNamed is the private pool of that name. plainMu is held.
func (l *Live) privateNamed(id PoolID) (*private, error) {
	if p := l.privates[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no private pool %x-%x", id[0], id[1])
}

// mallocPrivate allocates from the private pool in use; ok is false when there is
// none any more.
func (l *Live) mallocPrivate(bytes int64, stream uint64) (p cuda.Ptr, ok bool, err error) {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	x := l.active.Load()
	if x == nil {
		return 0, false, nil
	}
	p, err = x.pool.Malloc(bytes, stream)
	l.notePrivate()
	return p, true, err
}

// freePrivate frees an allocation of a private pool; ok is false when it is none.
func (l *Live) freePrivate(p cuda.Ptr) (ok bool, err error) {
	if !l.anyPrivate.Load() {
		return false, nil
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	defer l.notePrivate()
	x := l.ownerOf(p)
	if x == nil {
		return false, nil
	}
	err = x.pool.Free(p)
	l.giveBackUnused(x)
	return true, err
}

// recordPrivate is RecordStream for private pools.
func (l *Live) recordPrivate(p cuda.Ptr, stream uint64) (ok bool) {
	if !l.anyPrivate.Load() {
		return false
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	x := l.ownerOf(p)
	if x != nil {
		x.pool.RecordStream(p, stream)
	}
	return x != nil
}

func (l *Live) ownerOf(p cuda.Ptr) *private {
	for _, x := range l.privates {
		if x.pool.Owns(p) {
			return x
		}
	}
	return nil
}

// notePrivate keeps the pools' total where it can be read without the lock.
func (l *Live) notePrivate() {
	n := int64(0)
	for _, x := range l.privates {
		n += x.pool.Stats().LiveBytes
	}
	l.PrivateLive.Store(n)
	l.NoteBesides()
	l.anyPrivate.Store(len(l.privates) > 0)
}

// blocksOf are the blocks of plain memory, private pools among it.
type blocksOf struct{ l *Live }

// Containing is the block that an address lies in.
func (b blocksOf) Containing(p cuda.Ptr) (cuda.Range, bool) {
	l := b.l
	if r, ok := l.plain.Containing(p); ok {
		return r, true
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	return l.privateContaining(p)
}

// TryContaining is the same, and says that it is busy where Containing would wait.
func (b blocksOf) TryContaining(p cuda.Ptr) (r cuda.Range, ok, busy bool) {
	l := b.l
	if r, ok, busy = l.plain.TryContaining(p); ok || busy {
		return r, ok, busy
	}
	if !l.plainMu.TryLock() {
		return r, false, true
	}
	defer l.plainMu.Unlock()
	r, ok = l.privateContaining(p)
	return r, ok, false
}

// privateContaining is the block of a private pool that an address lies in. plainMu is held.
func (l *Live) privateContaining(p cuda.Ptr) (cuda.Range, bool) {
	for _, x := range l.privates {
		if r, ok := x.pool.Containing(p); ok {
			return r, true
		}
	}
	return cuda.Range{}, false
}
