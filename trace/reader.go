package trace

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Reader iterates over a recording without holding it: one chunk at a time.
type Reader struct {
	in     io.Reader
	header Header
	offset int64 // of the next byte to read
	chunk  int64 // where the current chunk begins
	want   uint32
	events int // returned so far
	dec    decoder
	zstd   *zstd.Decoder
	stored []byte
	raw    []byte
	err    error // sticky
}

// NewReader reads the head of a recording. The stream should be buffered or in
// memory: reads are of one head and one payload each.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: in}
	var head [fileHeadBytes]byte
	if n, err := io.ReadFull(in, head[:]); err != nil {
		if n > 0 && string(head[:min(n, len(fileMagic))]) != fileMagic[:min(n, len(fileMagic))] {
			return nil, ErrNotTrace
		}
		return nil, r.damage(err, "the file's head is incomplete")
	}
	if string(head[:len(fileMagic)]) != fileMagic {
		return nil, ErrNotTrace
	}
	if v := binary.LittleEndian.Uint16(head[len(fileMagic):]); v == 0 || v > formatVersion {
		return nil, &VersionError{Version: v}
	}
	r.offset = int64(fileHeadBytes)
	h, payload, err := r.readChunk()
	if err == io.EOF {
		r.chunk = r.offset
		return nil, r.damage(io.ErrUnexpectedEOF, "the recording has no header")
	}
	if err != nil {
		return nil, err
	}
	if h.kind != chunkHeader || len(payload) > maxHeaderBytes || json.Unmarshal(payload, &r.header) != nil {
		return nil, r.damage(nil, "the recording's header is malformed")
	}
	return r, nil
}

// Header says where the recording comes from.
func (r *Reader) Header() Header { return r.header }

// Next returns the next event, which belongs to the caller. At the end of a
// complete recording the error is io.EOF, at damage a *DamageError; either stays.
func (r *Reader) Next() (Event, error) {
	var e Event
	for r.err == nil {
		if r.dec.next(&e) {
			r.want--
			r.events++
			return e, nil
		}
		if r.dec.problem != "" {
			r.err = r.damage(nil, fmt.Sprintf("%s (byte %d of the chunk's payload)", r.dec.problem, r.dec.pos))
		} else if r.want != 0 {
			r.err = r.damage(nil, "the chunk does not hold the events it claims")
		} else {
			r.err = r.nextChunk()
		}
	}
	return Event{}, r.err
}

// All iterates over the rest of the recording; the last pair may carry an error, never io.EOF.
func (r *Reader) All() func(yield func(Event, error) bool) {
	return func(yield func(Event, error) bool) {
		for {
			e, err := r.Next()
			if err == io.EOF || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// nextChunk makes the next chunk of events current, or returns io.EOF behind the end chunk.
func (r *Reader) nextChunk() error {
	h, payload, err := r.readChunk()
	if err == io.EOF {
		r.chunk = r.offset
		return r.damage(io.ErrUnexpectedEOF, "the recording stops without its end mark (the process was killed or is still running)")
	}
	if err != nil {
		return err
	}
	switch h.kind {
	case chunkEvents:
		// Each record has at least one byte, so the count cannot exceed the payload.
		if h.events == 0 || h.events > h.bytes {
			return r.damage(nil, "the chunk claims an impossible number of events")
		}
		r.want = h.events
		r.dec.reset(payload)
		return nil
	case chunkEnd:
		total, n := binary.Uvarint(payload)
		if n <= 0 || n != len(payload) || total != uint64(r.events) {
			return r.damage(nil, fmt.Sprintf("the recording ends after %d events, but says it has %d", r.events, total))
		}
		var one [1]byte
		if _, err := io.ReadFull(r.in, one[:]); err != io.EOF {
			r.chunk = r.offset
			return r.damage(nil, "there is more data behind the end of the recording")
		}
		r.close()
		return io.EOF
	}
	return r.damage(nil, fmt.Sprintf("the chunk is of unknown kind %d", h.kind))
}

// readChunk reads, checks and decompresses one chunk. The payload is valid until
// the next call. io.EOF means that the file ends exactly here.
func (r *Reader) readChunk() (chunkHead, []byte, error) {
	r.chunk = r.offset
	var head [chunkHeadBytes]byte
	var h chunkHead
	n, err := io.ReadFull(r.in, head[:])
	if err == io.EOF {
		return h, nil, io.EOF
	}
	if err != nil {
		return h, nil, r.damage(err, fmt.Sprintf("only %d bytes of a chunk's head are there", n))
	}
	if problem := h.parse(&head); problem != "" {
		return h, nil, r.damage(nil, problem)
	}
	r.stored = grow(r.stored, int(h.storedBytes))
	if n, err := io.ReadFull(r.in, r.stored); err != nil {
		return h, nil, r.damage(err, fmt.Sprintf("only %d of the chunk's %d bytes are there", chunkHeadBytes+n, chunkHeadBytes+len(r.stored)))
	}
	if sum(&head, r.stored) != h.checksum {
		return h, nil, r.damage(nil, "the chunk's checksum is wrong")
	}
	r.offset += int64(chunkHeadBytes + len(r.stored))
	if h.codec == codecRaw {
		return h, r.stored, nil
	}
	if r.zstd == nil {
		r.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxChunkBytes), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return h, nil, fmt.Errorf("cannot start decompression: %w", err)
		}
	}
	r.raw = grow(r.raw, int(h.bytes))
	// The capacity bounds what a hostile frame can make of itself.
	raw, err := r.zstd.DecodeAll(r.stored, r.raw[:0:h.bytes])
	if err != nil || len(raw) != int(h.bytes) {
		return h, nil, r.damage(nil, "the chunk cannot be decompressed")
	}
	return h, raw, nil
}

// grow returns a slice of n bytes, reusing b's memory when it is enough.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

func (r *Reader) damage(cause error, problem string) error {
	r.close()
	if cause != nil {
		cause = truncation(cause)
		if !errors.Is(cause, ErrTruncated) {
			problem += ": " + cause.Error()
		}
	}
	return &DamageError{Offset: r.chunk, Events: r.events, Problem: problem, Err: cause}
}

func (r *Reader) close() {
	if r.zstd != nil {
		r.zstd.Close()
		r.zstd = nil
	}
}
