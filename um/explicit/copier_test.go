package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// copies notes what is copied, and by how much the driver was ahead of its words.
type copies struct {
	cuda.Driver
	t      *testing.T
	pieces []cuda.Range // of the device
	hosts  []cuda.Range
	marks  []uint32
}

func (c *copies) CopyAsync(dst, src cuda.Ptr, bytes int64, _ cuda.Stream) error {
	if len(c.pieces) != len(c.marks) {
		c.t.Error("a piece was queued behind another one")
	}
	c.pieces = append(c.pieces, cuda.Range{Base: src, Bytes: bytes})
	c.hosts = append(c.hosts, cuda.Range{Base: dst, Bytes: bytes})
	return nil
}

func (c *copies) StreamCreate() (cuda.Stream, error) { return 1, nil }

func (c *copies) StreamWriteValue32(_ cuda.Stream, _ cuda.Ptr, v uint32) error {
	c.marks = append(c.marks, v)
	return nil
}

func TestPiecesOfAMoveOut(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name   string
		bytes  int64
		host   []int64 // extents
		pieces []int64
	}{
		{"one", 2 * mib, []int64{2 * mib}, []int64{2 * mib}},
		{"less than the chunk", 3*mib + 512, []int64{4 * mib}, []int64{3*mib + 512}},
		{"several", 20 * mib, []int64{20 * mib}, []int64{8 * mib, 8 * mib, 4 * mib}},
		{"extents", 15 * mib, []int64{2 * mib, 10 * mib, 4 * mib}, []int64{2 * mib, 8 * mib, 2 * mib, 3 * mib}},
	} {
		d := &copies{t: t}
		k, err := NewCopier(d, 0x100)
		if err != nil {
			t.Fatal(err)
		}
		m := &Move{Kind: MoveEvict, Chunk: cuda.Range{Base: 0x4000_0000, Bytes: WholePages(test.bytes)}, Bytes: test.bytes}
		var hosts []cuda.Range
		for i, bytes := range test.host {
			hosts = append(hosts, cuda.Range{Base: cuda.Ptr(i+1) << 32, Bytes: bytes})
		}
		m.Host = hosts
		at := m.Chunk.Base
		for i, want := range test.pieces {
			p, err := k.Next(m, PieceBytes)
			if err != nil || p.Bytes != want || p.Last != (i == len(test.pieces)-1) || p.Ticket != uint32(i+1) {
				t.Fatalf("%s: piece %d is %+v, %v", test.name, i, p, err)
			}
			if d.pieces[i] != (cuda.Range{Base: at, Bytes: want}) {
				t.Fatalf("%s: piece %d copies %+v", test.name, i, d.pieces[i])
			}
			at += cuda.Ptr(want)
		}
		var inHost int64
		for _, h := range d.hosts {
			inHost += h.Bytes
			inside := false
			for _, x := range hosts {
				inside = inside || h.Base >= x.Base && h.End() <= x.End()
			}
			if !inside {
				t.Errorf("%s: %+v is not host memory of the move", test.name, h)
			}
		}
		if inHost != test.bytes {
			t.Errorf("%s: %d bytes of %d", test.name, inHost, test.bytes)
		}
	}
	short := &Move{Kind: MoveEvict, Chunk: cuda.Range{Base: 0x4000_0000, Bytes: 4 * mib}, Bytes: 4 * mib, Host: []cuda.Range{{Base: 1 << 32, Bytes: 2 * mib}}}
	k, err := NewCopier(&copies{t: t}, 0x100)
	if err == nil {
		_, err = k.Next(short, PieceBytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Next(short, PieceBytes); err == nil {
		t.Error("a move with too little host memory was copied")
	}
}
