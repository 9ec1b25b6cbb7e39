package live

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool"
)

// PoolID names a private pool, such as that of a CUDA graph.
type PoolID [2]uint64

// private is a pool of plain memory that nothing else uses until it is released.
type private struct {
	pool  *pool.Caching
	users int
}

// BeginPool sends allocations to a private pool until EndPool.
func (l *Live) BeginPool(id PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	if l.active.Load() != nil {
		return fmt.Errorf("a private pool is already in use: captures cannot be nested")
	}
	p := l.privates[id]
	if p == nil {
		p = &private{pool: pool.NewCaching(plainSource{l}, eventFences{l.driver})}
		l.privates[id] = p
	}
	p.users++
	l.active.Store(p)
	return nil
}

// EndPool ends what BeginPool began.
func (l *Live) EndPool(PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	l.active.Store(nil)
	return nil
}

// ReleasePool gives a private pool up: its memory returns when the last
// allocation in it is freed.
func (l *Live) ReleasePool(id PoolID) error {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	p := l.privates[id]
	if p == nil {
		return fmt.Errorf("no private pool %x-%x", id[0], id[1])
	}
	if p.users--; p.users > 0 {
		return nil
	}
	p.pool.EmptyCache()
	if p.pool.Stats().ReservedBytes == 0 {
		delete(l.privates, id)
	}
	return nil
}

// plainPool is the pool that holds a live allocation of plain memory.
func (l *Live) plainPool(p cuda.Ptr) *pool.Caching {
	for _, x := range l.privates {
		if x.pool.Owns(p) {
			return x.pool
		}
	}
	return l.plain
}
