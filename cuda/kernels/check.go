package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// Check compares the kernels with their Go functions on up to that many bytes of
// random memory, at several sizes and offsets. It takes as much memory of the
// device, and pinned; the calling thread waits.
func (k *Kernels) Check(bytes int64) (err error) {
	d := k.driver
	bytes = max(bytes, 4096)
	device, err := d.MemAlloc(bytes)
	if err != nil {
		return err
	}
	defer release(&err, d.MemFree, device)
	host, err := d.HostAlloc(bytes + k.SumBytes())
	if err != nil {
		return err
	}
	defer release(&err, d.HostFree, host)
	s, err := d.StreamCreate()
	if err != nil {
		return err
	}
	defer release(&err, d.StreamDestroy, s)
	f, err := k.NewFinder(64)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()

	sums := host
	content := unsafe.Slice((*byte)(unsafe.Pointer(&words(host+cuda.Ptr(k.SumBytes()), bytes/8)[0])), bytes)
	lo, hi := cuda.Ptr(0x7000_0000_0000), cuda.Ptr(0x7100_0000_0000)
	fill(content, lo, hi)
	if err := d.CopyAsync(device, host+cuda.Ptr(k.SumBytes()), bytes, s); err != nil {
		return err
	}
	for _, c := range []struct{ offset, bytes int64 }{{0, bytes}, {16, 1}, {0, 15}, {32, 16}, {0, 1000}, {bytes / 32 * 16, bytes/4 + 7}} {
		r := cuda.Range{Base: device + cuda.Ptr(c.offset), Bytes: c.bytes}
		if err := k.Checksum(r, sums, s); err != nil {
			return err
		}
		if err := d.StreamSynchronize(s); err != nil {
			return err
		}
		if got, want := k.Sum(c.bytes, sums), Sum(content[c.offset:c.offset+c.bytes]); got != want {
			return fmt.Errorf("the card's checksum of %d bytes is %v, it should be %v", c.bytes, got, want)
		}
	}
	in := func(offset, n int64) cuda.Range { return cuda.Range{Base: device + cuda.Ptr(offset), Bytes: n} }
	for _, ranges := range [][]cuda.Range{
		{in(0, bytes)}, {in(8, 8)}, {in(8, bytes-8)}, {in(8, bytes-16)}, {in(24, 2000)},
		{in(8, 8), in(24, 2000), in(bytes/16*8, bytes/4)},
	} {
		of := [spans]Span{{lo, hi - 1}, {hi - 1, hi + 1}}
		if err := f.Search(ranges, of, s); err != nil {
			return err
		}
		if err := d.StreamSynchronize(s); err != nil {
			return err
		}
		for i, span := range of {
			found, total := f.Found(i)
			got := slices.Sorted(slices.Values(found))
			var want []uint64
			for _, r := range ranges {
				from := int64(r.Base - device)
				for _, p := range Find(content[from:from+r.Bytes], span) {
					want = append(want, uint64(p))
				}
			}
			slices.Sort(want)
			if total != int64(len(want)) || !slices.Equal(got, want) {
				return fmt.Errorf("the card finds %d addresses in %d ranges, it should find %d", total, len(ranges), len(want))
			}
		}
	}
	return nil
}

// fill makes random memory with a few addresses of [lo, hi) in it, at its ends,
// in the middle and just outside of what is sought.
func fill(content []byte, lo, hi cuda.Ptr) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i+8 <= len(content); i += 8 {
		binary.LittleEndian.PutUint64(content[i:], random.Uint64()|1<<63)
	}
	last := len(content)/8*8 - 8
	for at, p := range map[int]cuda.Ptr{0: lo, 8: hi - 1, 16: hi, 24: lo - 1, 32: lo + 4096, last / 16 * 8: lo + 1, last - 8: lo + 8, last: hi - 8} {
		binary.LittleEndian.PutUint64(content[at:], uint64(p))
	}
}

func release[T any](err *error, free func(T) error, what T) {
	if e := free(what); *err == nil {
		*err = e
	}
}
