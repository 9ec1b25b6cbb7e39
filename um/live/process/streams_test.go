package process

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/internal/hook"
)

// hooked are the handles of a hook's streams.
type hooked []uint64

func (h *hooked) Streams() []uint64 { return *h }

func newStreams(handles ...uint64) (s Streams, h *hooked, ended *[]string) {
	h, ended = (*hooked)(&handles), new([]string)
	return NewStreams(h, func(number int, seq uint64) { *ended = append(*ended, fmt.Sprint(number, " ", seq)) }), h, ended
}

func TestNumbers(t *testing.T) {
	s, _, ended := newStreams(0, 0x50)
	if s.Number(0) != 0 || s.Number(1) != 0 || s.Handle(0) != 0 {
		t.Error("the default stream is not 0, by both of its names")
	}
	n := s.Number(0x50)
	if s.Index(n) != -1 || s.Launched(1, 7) != n || s.Index(n) != 1 || s.Handle(n) != 0x50 || s.HandleAt(1) != 0x50 || s.HandleAt(9) != 0 {
		t.Errorf("number %d, index %d, handle %#x", n, s.Index(n), s.Handle(n))
	}
	if at, ok := s.At(1); at != n || !ok || s.Indices() != 2 {
		t.Errorf("%d at index 1 of %d", at, s.Indices())
	}
	for _, index := range []int{0, 5} { // launched on, or known to the hook, by nobody
		if at, ok := s.At(index); at != -1 || ok {
			t.Errorf("%d at index %d", at, index)
		}
	}
	if len(*ended) > 0 {
		t.Errorf("ended: %v", *ended)
	}
}

// TestAnotherStream: an index that is another stream's ends the one before, whose number is used again.
func TestAnotherStream(t *testing.T) {
	s, h, ended := newStreams(0, 0x50)
	n := s.Launched(1, 7)
	(*h)[1] = hook.StreamGone
	if !s.Still(1, 8) || s.Launched(1, 8) != n {
		t.Error("a stream that is gone, and may have work yet, is not itself")
	}
	(*h)[1] = 0x60
	if m := s.Launched(1, 9); m != n || s.Handle(m) != 0x60 || !slices.Equal(*ended, []string{fmt.Sprint(n, " 8")}) {
		t.Errorf("number %d of %#x, %v ended", m, s.Handle(m), *ended)
	}
	(*h)[1] = 0x70 // and launches nothing
	if s.Still(1, 20) || (*ended)[1] != fmt.Sprint(n, " 20") {
		t.Errorf("%v ended", *ended)
	}
	if at, ok := s.At(1); at != -1 || ok || s.Len() != 2 {
		t.Errorf("%d at its index, of %d numbers", at, s.Len())
	}
}

// TestOneHandleOfSeveral: each thread has a default stream of its own, with one handle for all; and a handle that comes back
// under another index is that of another stream, while the one before may have work.
func TestOneHandleOfSeveral(t *testing.T) {
	s, h, ended := newStreams(0, hook.StreamPerThread, hook.StreamPerThread, 0x50, 0x50)
	if a, b := s.Launched(1, 1), s.Launched(2, 2); a == b {
		t.Errorf("threads' streams are both %d", a)
	}
	first, second := s.Launched(3, 3), s.Launched(4, 4)
	if first == second || s.Number(0x50) != second || s.Index(first) != 3 {
		t.Errorf("numbers %d and %d, allocations are for %d", first, second, s.Number(0x50))
	}
	(*h)[3] = 0x80
	if s.Launched(3, 5); !slices.Equal(*ended, []string{fmt.Sprint(first, " 4")}) || s.Number(0x50) != second {
		t.Errorf("%v ended; allocations are for %d", *ended, s.Number(0x50))
	}
}

func TestNews(t *testing.T) {
	s, _, _ := newStreams(0, 0x50)
	s.Launched(1, 7)
	for _, c := range []struct {
		progress uint64
		news     bool
	}{{7, true}, {7, false}, {9, true}} {
		if handle, news := s.News(1, c.progress); handle != 0x50 || news != c.news {
			t.Errorf("%d of %#x is news: %t", c.progress, handle, news)
		}
	}
}
