package trace

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

// WriterOptions tune a Writer. The zero value is right for recording a run.
type WriterOptions struct {
	Uncompressed bool          // store records as they are
	FlushEvery   time.Duration // how old an event may be before it is in the file; 0 means a second, negative means only when a chunk is full
}

// Writer records events. It only ever appends to the file, a whole chunk in one
// write, so a process killed at any moment leaves a readable recording. It is
// safe for concurrent use; the order of events is the order of Append calls.
type Writer struct {
	mu      sync.Mutex // guards enc and closed; see doc.go for who may wait for it
	enc     encoder
	closed  bool
	queue   chan sealed
	buffers chan []byte // used buffers, to be filled again
	done    chan struct{}

	failed  atomic.Pointer[error] // the first write error; sticky
	written atomic.Int64
	late    atomic.Int64
	total   atomic.Uint64

	out     io.Writer
	closer  io.Closer
	zstd    *zstd.Encoder
	scratch []byte
}

// sealed is a chunk ready to be compressed and written; or, with only ack set, a request to say when all before it is.
type sealed struct {
	kind   uint8
	raw    []byte
	events uint32
	ack    chan struct{}
}

// queuedChunks is how far the file may lag behind: with chunks of 256 KiB, 8 MiB.
const queuedChunks = 32

// ErrClosed is returned by a Writer that was closed.
var ErrClosed = errors.New("the trace writer is closed")

// Create starts a recording in a new or emptied file. The file is locked while
// it is recorded to (the lock is the kernel's: nothing of it outlives the
// process), because two processes writing the same file would ruin it. A new one
// is the user's alone: the command line in its header may have a secret.
func Create(path string, header Header, options WriterOptions) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot record a trace: %w", err)
	}
	// Pipes and devices have no locks and no length; recording to them is fine.
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("cannot record a trace: another process is recording to %s: give each its own file", path)
		}
		if err := f.Truncate(0); err != nil {
			f.Close()
			return nil, fmt.Errorf("cannot record a trace: %w", err)
		}
	}
	w, err := NewWriter(f, header, options)
	if err != nil {
		f.Close()
		return nil, err
	}
	w.closer = f
	return w, nil
}

// NewWriter starts a recording on a stream, which it does not close.
func NewWriter(out io.Writer, header Header, options WriterOptions) (*Writer, error) {
	w := &Writer{
		out:     out,
		queue:   make(chan sealed, queuedChunks),
		buffers: make(chan []byte, queuedChunks),
		done:    make(chan struct{}),
	}
	payload, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("cannot record a trace: its header: %w", err)
	}
	if len(payload) > maxHeaderBytes {
		return nil, fmt.Errorf("cannot record a trace: its header has %d bytes, the most is %d: shorten the command line in it", len(payload), maxHeaderBytes)
	}
	if !options.Uncompressed {
		w.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, fmt.Errorf("cannot start compression: %w", err)
		}
	}
	head := append([]byte(fileMagic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint16(head[len(fileMagic):], formatVersion)
	if err := w.write(head); err != nil {
		return nil, err
	}
	// The header goes out before the first event, so a mistake in the path or a full disk shows at once.
	w.writeChunk(sealed{kind: chunkHeader, raw: payload})
	if err := w.Err(); err != nil {
		return nil, err
	}
	w.enc.reset(make([]byte, 0, targetChunkBytes+4096))
	every := options.FlushEvery
	if every == 0 {
		every = time.Second
	}
	go w.run(every)
	return w, nil
}

// Append records an event. It copies what it needs. It does not wait for the
// file unless that lags megabytes behind. An error means that this event is not
// recorded; after a failed write every later call returns the same error.
func (w *Writer) Append(e *Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.append(e)
}

// AppendAll is Append of every event that fill gives to append, with nobody else's
// between them. It returns the first error; events after one are still recorded when
// they can be.
func (w *Writer) AppendAll(fill func(append func(*Event))) (first error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fill(func(e *Event) {
		if err := w.append(e); err != nil && first == nil {
			first = err
		}
	})
	return first
}

// append records an event. w.mu is held.
func (w *Writer) append(e *Event) error {
	if failed := w.failed.Load(); failed != nil {
		return *failed
	}
	if err := encodable(e); err != nil {
		return err
	}
	if w.closed {
		return ErrClosed
	}
	w.enc.add(e)
	w.total.Add(1)
	if len(w.enc.buf) >= targetChunkBytes {
		w.send(w.seal())
	}
	return nil
}

// seal takes the current chunk and begins the next. w.mu is held.
func (w *Writer) seal() sealed {
	s := sealed{kind: chunkEvents, raw: w.enc.buf, events: w.enc.events}
	select {
	case buf := <-w.buffers:
		w.enc.reset(buf)
	default:
		w.enc.reset(make([]byte, 0, targetChunkBytes+4096))
	}
	return s
}

// send queues a chunk. w.mu is held, which keeps chunks in order.
func (w *Writer) send(s sealed) {
	select {
	case w.queue <- s:
	default:
		w.late.Add(1)
		w.queue <- s
	}
}

// Flush waits until everything appended before it is in the file.
func (w *Writer) Flush() error {
	ack := make(chan struct{})
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return ErrClosed
	}
	if w.enc.events > 0 {
		w.send(w.seal())
	}
	w.send(sealed{ack: ack})
	w.mu.Unlock()
	<-ack
	return w.Err()
}

// Close writes what is left and the end of the recording. Later calls do nothing and return ErrClosed.
func (w *Writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return ErrClosed
	}
	if w.enc.events > 0 {
		w.send(w.seal())
	}
	w.send(sealed{kind: chunkEnd, raw: binary.AppendUvarint(nil, w.total.Load())})
	w.closed = true
	close(w.queue)
	w.mu.Unlock()
	<-w.done
	err := w.Err()
	if w.closer != nil {
		if closeErr := w.closer.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("cannot finish the trace: %w", closeErr)
		}
	}
	return err
}

// Err is the first write error, nil while all is well.
func (w *Writer) Err() error {
	if failed := w.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// WriterStats are counters of a recording so far.
type WriterStats struct {
	Events       uint64 // appended
	FileBytes    int64  // written
	StalledSends int64  // times that Append had to wait for a slow disk
}

// Stats returns the counters. It never waits.
func (w *Writer) Stats() WriterStats {
	return WriterStats{Events: w.total.Load(), FileBytes: w.written.Load(), StalledSends: w.late.Load()}
}

// run is the background goroutine: it alone compresses and writes.
func (w *Writer) run(every time.Duration) {
	defer close(w.done)
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case s, ok := <-w.queue:
			if !ok {
				return
			}
			w.handle(s)
		case <-tick:
			w.flushOld()
		}
	}
}

// flushOld writes a chunk that has been waiting to fill up. It only tries the
// lock: its holder may be waiting for room in the queue, which only this
// goroutine makes; then the next tick is soon enough.
func (w *Writer) flushOld() {
	if !w.mu.TryLock() {
		return
	}
	var s sealed
	if w.enc.events > 0 && !w.closed {
		s = w.seal()
	}
	// No one can queue while the lock is held, so this empties the queue and
	// keeps the order.
	var queued []sealed
	for s.events > 0 && len(w.queue) > 0 {
		queued = append(queued, <-w.queue)
	}
	w.mu.Unlock()
	for _, q := range queued {
		w.handle(q)
	}
	if s.events > 0 {
		w.handle(s)
	}
}

func (w *Writer) handle(s sealed) {
	if s.ack != nil {
		close(s.ack)
		return
	}
	w.writeChunk(s)
	if s.kind == chunkEvents && cap(s.raw) <= 2*targetChunkBytes {
		select {
		case w.buffers <- s.raw:
		default:
		}
	}
}

// writeChunk compresses a chunk and writes it. After a failure it drops it: the
// file stays readable up to the failure.
func (w *Writer) writeChunk(s sealed) {
	if w.failed.Load() != nil {
		return
	}
	h := chunkHead{kind: s.kind, codec: codecRaw, bytes: uint32(len(s.raw)), events: s.events}
	out := append(w.scratch[:0], make([]byte, chunkHeadBytes)...)
	if w.zstd != nil && s.kind == chunkEvents {
		out = w.zstd.EncodeAll(s.raw, out)
		h.codec = codecZstd
	}
	if h.codec == codecRaw || len(out)-chunkHeadBytes >= len(s.raw) {
		h.codec = codecRaw
		out = append(out[:chunkHeadBytes], s.raw...)
	}
	stored := out[chunkHeadBytes:]
	h.storedBytes = uint32(len(stored))
	h.put((*[chunkHeadBytes]byte)(out), stored)
	w.scratch = out
	_ = w.write(out)
}

// write appends to the file and remembers the first error.
func (w *Writer) write(b []byte) error {
	n, err := w.out.Write(b)
	w.written.Add(int64(n))
	if err != nil {
		err = fmt.Errorf("cannot record a trace, recording stops: %w", err)
		w.failed.Store(&err)
	}
	return err
}

// WriteFile records a whole trace into a file.
func (t *Trace) WriteFile(path string) error {
	w, err := Create(path, t.Header, WriterOptions{FlushEvery: -1})
	if err != nil {
		return err
	}
	for i := range t.Events {
		if err := w.Append(&t.Events[i]); err != nil {
			w.Close()
			return err
		}
	}
	return w.Close()
}
