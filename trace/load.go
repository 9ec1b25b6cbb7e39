package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"
)

// LoadLimitBytes is the most memory that the events of one loaded trace may
// take. It is what stands between a small hostile file and the whole machine.
const LoadLimitBytes = 4 << 30

// Load reads a recording (.pstrace), a launch log (.tsv, .tsv.gz), a PyTorch memory
// snapshot (.pickle) or an RMM log (.csv), told apart by content, and validates it. When the file is damaged the trace holds the
// intact part and the error is a *DamageError; after any other error it is nil.
func Load(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read trace: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, fmt.Errorf("cannot read trace: %s is a folder: name a %s, .tsv or .tsv.gz file", path, Extension)
	}
	return load(path, f, LoadLimitBytes)
}

// Parse is Load for a trace that is already in memory, under the given file name.
func Parse(name string, data []byte) (*Trace, error) {
	return load(name, bytes.NewReader(data), LoadLimitBytes)
}

func load(path string, r io.Reader, limitBytes int64) (*Trace, error) {
	in := bufio.NewReaderSize(r, 256<<10)
	head, err := in.Peek(len(fileMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read trace %s: %w", path, err)
	}
	l := &loader{trace: &Trace{Name: nameOf(path)}, path: path, limitBytes: limitBytes}
	switch {
	case bytes.Equal(head, []byte(fileMagic)):
		err = l.recording(in)
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		var zr *gzip.Reader
		if zr, err = gzip.NewReader(in); err == nil {
			err = l.foreign(bufio.NewReaderSize(zr, 64<<10), true)
		} else {
			err = &DamageError{Path: path, Problem: "the gzip header is damaged", Err: truncation(err)}
		}
	default:
		err = l.foreign(in, false)
	}
	var damage *DamageError
	if err != nil && !errors.As(err, &damage) {
		return nil, err
	}
	if invalid := l.trace.Validate(); invalid != nil {
		return nil, invalid
	}
	return l.trace, err
}

// foreign imports what is no recording of ours.
func (l *loader) foreign(in *bufio.Reader, compressed bool) error {
	head, err := in.Peek(len(rmmHeading))
	switch {
	case len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
		return l.snapshot(in)
	case string(head) == rmmHeading:
		return l.rmmLog(in)
	case looksLikeText(head) || compressed: // its errors name the line
		return l.launchLog(in)
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("cannot read trace %s: %w", l.path, err)
	}
	return fmt.Errorf("%s: %w: it is neither a %s recording, a launch log (.tsv, .tsv.gz), a PyTorch memory snapshot (.pickle) nor an RMM log (.csv): name one of those", l.path, ErrNotTrace, Extension)
}

// looksLikeText says whether the file may be a launch log: a letter, a tab.
func looksLikeText(head []byte) bool {
	return len(head) >= 2 && (head[1] == '\t' && head[0] >= 'A' && head[0] <= 'Z' || head[0] == '#')
}

// truncation names the one cause that callers treat specially.
func truncation(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return err
}

// loader gathers the events of one trace, within a memory limit.
type loader struct {
	trace      *Trace
	path       string
	limitBytes int64
	usedBytes  int64
}

// add appends an event; its memory is charged first.
func (l *loader) add(e Event) error {
	l.usedBytes += int64(unsafe.Sizeof(e)) + int64(len(e.Accesses))*int64(unsafe.Sizeof(Access{})) + int64(len(e.Name))
	if l.usedBytes > l.limitBytes {
		return &TooLargeError{Path: l.path, LimitBytes: l.limitBytes, Events: len(l.trace.Events)}
	}
	l.trace.Events = append(l.trace.Events, e)
	return nil
}

func (l *loader) recording(in io.Reader) error {
	r, err := NewReader(in)
	if err != nil {
		return l.named(err)
	}
	l.trace.Header = r.Header()
	for {
		e, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return l.named(err)
		}
		if err := l.add(e); err != nil {
			return err
		}
	}
}

// named puts the file's path into an error that does not know it.
func (l *loader) named(err error) error {
	var damage *DamageError
	var version *VersionError
	switch {
	case errors.As(err, &damage):
		damage.Path = l.path
	case errors.As(err, &version):
		version.Path = l.path
	}
	return err
}
