package faults

import (
	"errors"
	"runtime"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/trace"
)

// On a real GPU: a prefetch each way must come out of the queue as migrations
// of just those bytes, caused by the user.
func TestDeviceMigrations(t *testing.T) {
	const bytes = 16 << 20
	d, err := cuda.Open(cuda.Options{ManagedLimitBytes: bytes})
	if err != nil {
		t.Skipf("no GPU here: %v", err)
	}
	if err := cuda.ManagedEngineError(d.Capabilities()); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(d.BindThread())
	s, err := Open(Options{})
	var u *Unavailable
	if errors.As(err, &u) {
		t.Skip(err)
	}
	ok(err)
	defer func() { ok(s.Close()) }()
	stream, err := d.StreamCreate()
	ok(err)
	defer func() { ok(d.StreamDestroy(stream)) }()
	p, err := d.MemAllocManaged(bytes)
	ok(err)
	defer func() { ok(d.MemFree(p)) }()

	r := []cuda.Range{{Base: p, Bytes: bytes}}
	ok(d.Prefetch(r, cuda.Host, stream)) // brings the pages to life
	ok(d.StreamSynchronize(stream))
	ok(s.Flush())
	s.Drain(nil)
	for _, to := range []cuda.Location{cuda.Device, cuda.Host} {
		begin := Clock()
		ok(d.Prefetch(r, to, stream))
		ok(d.StreamSynchronize(stream))
		ok(s.Flush())
		end := Clock()
		var moved int64
		for _, e := range s.Drain(nil) {
			if e.Address < uint64(p) || e.Address >= uint64(p)+bytes {
				continue
			}
			if e.Kind != trace.KindMigration || e.Cause != trace.CauseUser {
				t.Errorf("to the %v: %+v", to, e)
				continue
			}
			if e.BeginNanos < begin || e.EndNanos > end {
				t.Errorf("to the %v between %d and %d: %+v", to, begin, end, e)
			}
			if side := e.Trace(0).To; (side == trace.SideDevice) != (to == cuda.Device) {
				t.Errorf("to the %v: %+v", to, e)
			}
			moved += e.Bytes
		}
		if moved != bytes {
			t.Errorf("to the %v: %d bytes moved, want %d", to, moved, bytes)
		}
	}
	if s.Dropped() != 0 || s.Unknown() != 0 {
		t.Errorf("%d dropped, %d unknown", s.Dropped(), s.Unknown())
	}
}
