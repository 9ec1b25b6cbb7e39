package analyse

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// FuzzEvents makes events of any bytes: whatever a file says, sums must agree
// and nothing may run away.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef0123456789abcdef"))
	f.Add(bytes.Repeat([]byte{6, 0, 1, 2, 0xff, 0xff, 0, 0, 0, 0, 0x20, 0, 7, 1, 1, 1}, 40))
	f.Add(bytes.Repeat([]byte{7, 1, 2, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 7, 1, 1, 1}, 40))
	f.Fuzz(func(t *testing.T, data []byte) {
		a := New(trace.Header{Source: SourceObserved})
		for len(data) >= 16 {
			v := binary.LittleEndian.Uint64(data[4:])
			e := trace.Event{
				Kind: trace.Kind(data[0] % 14), To: trace.Side(data[1] & 1), Cause: trace.Cause(data[1] >> 1 & 7), GPU: data[2],
				Time: time.Duration(binary.LittleEndian.Uint16(data[2:])) << (data[3] & 31), Duration: time.Duration(int8(data[3])),
				Alloc: uint64(data[12] & 7), Address: v &^ 4095, Bytes: int64(v) >> (data[13] & 63), Stream: uint64(data[14]),
				Function: uint32(data[15] & 3), Batch: uint32(data[15]), CopyEngine: data[1]&0x80 != 0, Name: string(data[:data[13]&7]),
				Accesses: []trace.Access{{Alloc: uint64(data[14] & 7)}},
			}
			if data[1]&0x40 != 0 {
				e.Time = -e.Time
			}
			a.Add(&e)
			data = data[16:]
		}
		r := a.Report(true)
		checkSums(t, r)
		if r.Summary.ResidentBytes < 0 || r.Summary.ResidentPeakBytes < r.Summary.ResidentBytes || len(r.Timeline.Buckets) > buckets || len(r.Heat.Rows) > heatRows {
			t.Errorf("%+v", r.Summary)
		}
	})
}

// FuzzRead reads any bytes as a recording.
func FuzzRead(f *testing.F) {
	var file bytes.Buffer
	w, err := trace.NewWriter(&file, trace.Header{}, trace.WriterOptions{Uncompressed: true})
	if err != nil {
		f.Fatal(err)
	}
	var g synthetic
	var e trace.Event
	for range 2000 {
		g.next(&e)
		if err := w.Append(&e); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add(file.Bytes()[:file.Len()/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := Read(bytes.NewReader(data)); err == nil {
			checkSums(t, r)
		}
	})
}
