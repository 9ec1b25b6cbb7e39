package live

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

// shown is the segment and the block of an allocation.
func shown(t *testing.T, l *Live, p cuda.Ptr) (segments.Segment, segments.Block) {
	t.Helper()
	all := l.Segments()
	if err := segments.Check(all, l.LiveBytes()); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, b := range s.Blocks {
			if b.Address == p && b.State == segments.Allocated {
				return s, b
			}
		}
	}
	t.Fatalf("%#x is in no segment", uint64(p))
	return segments.Segment{}, segments.Block{}
}

// TestSegments: plain memory, tensors and private pools are shown side by side, with what of them is on the device.
func TestSegments(t *testing.T) {
	l, j := newExplicitJob(t)
	small, untouched, tensor := j.Malloc(5000), j.Malloc(3*mib-7), j.Malloc(4*mib)
	id := PoolID{3, 4}
	j.Must(l.BeginPool(id))
	privateSmall, private := j.Malloc(4096), j.Malloc(2*pool.SmallSegmentBytes)
	j.Must(l.EndPool(id))
	j.Increase(tensor, 4*mib, 1)
	j.Increase(private, 2*pool.SmallSegmentBytes, 1)
	if s, b := shown(t, l, small); b.Requested != 5000 || b.Bytes != 5120 || !s.Small || s.Tensor || s.OnDevice != s.Bytes || s.Stream != uint64(j.Stream) || s.Pool != (PoolID{}) {
		t.Errorf("small: %+v, %+v", s, b)
	}
	if s, b := shown(t, l, untouched); b.Requested != 3*mib-7 || b.Bytes != 4*mib || s.Bytes != 4*mib || s.OnDevice != 0 {
		t.Errorf("untouched: %+v, %+v", s, b)
	}
	if s, b := shown(t, l, tensor); b.Bytes != 4*mib || s.OnDevice != 4*mib || s.Stream != uint64(j.Stream) || s.Small || !s.Tensor {
		t.Errorf("tensor: %+v, %+v", s, b)
	}
	if s, b := shown(t, l, privateSmall); b.Requested != 4096 || s.Pool != id || s.OnDevice != s.Bytes || s.Bytes != pool.SmallSegmentBytes {
		t.Errorf("small of a private pool: %+v, %+v", s, b)
	}
	if s, b := shown(t, l, private); b.Requested != 2*pool.SmallSegmentBytes || s.Pool != id || s.OnDevice != s.Bytes || len(s.Blocks) != 2 {
		t.Errorf("of a private pool: %+v, %+v", s, b)
	}
	all := []cuda.Ptr{small, untouched, tensor, privateSmall, private}
	for range 10 { // more than the device has
		p := j.Malloc(livetest.TensorBytes)
		j.Increase(p, livetest.TensorBytes, 1)
		all = append(all, p)
	}
	away := 0
	for _, p := range all[5:] {
		if s, _ := shown(t, l, p); s.OnDevice < s.Bytes {
			away++
		}
	}
	if most := int(l.Budget / livetest.TensorBytes); away < 10-most {
		t.Errorf("%d of 10 tensors are shown off the device, which has room for %d", away, most)
	}
	for _, p := range all {
		j.Must(l.Free(p))
	}
	for _, s := range l.Segments() {
		for _, b := range s.Blocks {
			if b.State == segments.Allocated {
				t.Errorf("%+v is live after its free", b)
			}
		}
	}
	j.Closed()
}

// TestSegmentsOfTheManagedEngine: its tensors are whole blocks, which are on the device when they are.
func TestSegmentsOfTheManagedEngine(t *testing.T) {
	r := newRig(t, defaults())
	p := r.MallocOn(3*mib, 7)
	r.MallocOn(1000, 0)
	if s, b := shown(t, r.l, p); s.Stream != 7 || b.Bytes != 4*mib || b.Requested != 3*mib || s.OnDevice > s.Bytes {
		t.Errorf("%+v, %+v", s, b)
	}
}
