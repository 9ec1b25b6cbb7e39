package pool

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/pool/internal/model"
)

// fronted calls a pool as cabi/exports.c does: the front first.
type fronted struct {
	*Pool
	front *front.Front // nil: none
}

func newFronted(t testing.TB, c Config, m *model.Machine, withFront bool) fronted {
	t.Helper()
	if withFront {
		f, err := front.New(0)
		if err != nil {
			t.Fatal(err)
		}
		c.Front = f
	}
	p, err := New(c, m, m, m)
	if err != nil {
		t.Fatal(err)
	}
	p.ServeFront(true)
	return fronted{p, c.Front}
}

func (x fronted) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if x.front == nil {
		return x.Pool.Malloc(bytes, stream)
	}
	at, epoch := x.front.Take(bytes, stream)
	if at != 0 {
		return at, nil
	}
	at, err := x.Pool.Malloc(bytes, stream)
	if err == nil {
		x.front.Add(at, bytes, stream, epoch)
	}
	return at, err
}

func (x fronted) Free(at cuda.Ptr) error {
	if x.front == nil || x.front.Hold(at) == front.Pass {
		return x.Pool.Free(at)
	}
	return nil
}

func (x fronted) RecordStream(at cuda.Ptr, stream uint64) {
	if x.front == nil || x.front.Forget(at) {
		x.Pool.RecordStream(at, stream)
	}
}
