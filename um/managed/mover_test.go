package managed

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// calls is a Space, and a Driver, that writes down what it is asked.
type calls struct {
	cuda.Driver
	log       []string
	fail      string // the call that fails, by its first word
	noDiscard bool
}

func (c *calls) note(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	c.log = append(c.log, text)
	if word, _, _ := strings.Cut(text, " "); word == c.fail {
		return errors.New("no luck")
	}
	return nil
}

func (c *calls) Migrate(r cuda.Range, to cuda.Location) error {
	return c.note("migrate %d+%d %v", r.Base, r.Bytes, to)
}

// space is the Space; the driver's Discard has another signature.
type space struct{ *calls }

func (s space) Evict(r cuda.Range) error   { return s.note("evict %d+%d", r.Base, r.Bytes) }
func (s space) Touch(r cuda.Range) error   { return s.note("touch %d+%d", r.Base, r.Bytes) }
func (s space) Discard(r cuda.Range) error { return s.note("discard %d+%d", r.Base, r.Bytes) }

func (c *calls) Capabilities() cuda.Capabilities {
	return cuda.Capabilities{DiscardBatch: !c.noDiscard}
}
func (c *calls) StreamCreate() (cuda.Stream, error) { return 9, c.note("create") }
func (c *calls) StreamDestroy(s cuda.Stream) error  { return c.note("destroy %d", s) }
func (c *calls) StreamSynchronize(s cuda.Stream) error {
	return c.note("synchronize %d", s)
}
func (c *calls) Prefetch(r []cuda.Range, to cuda.Location, s cuda.Stream) error {
	return c.note("prefetch %d ranges %v %d", len(r), to, s)
}
func (c *calls) Discard(r []cuda.Range, s cuda.Stream) error {
	return c.note("discard %d ranges %d", len(r), s)
}

func move(k MoveKind, stale bool) *Move {
	return &Move{Kind: k, StaleFirst: stale, Ranges: []cuda.Range{{Base: 100, Bytes: 2}, {Base: 200, Bytes: 4}}}
}

func TestMoves(t *testing.T) {
	in := []string{"migrate 100+2 device", "migrate 200+4 device"}
	out := []string{"migrate 100+2 host", "migrate 200+4 host"}
	drop := []string{"discard 100+2", "discard 200+4"}
	for _, c := range []struct {
		kind     MoveKind
		stale    bool
		direct   []string
		streamed []string
	}{
		{MoveFetch, false, in, []string{"prefetch 2 ranges device 9"}},
		{MoveTouch, false, []string{"touch 100+2", "touch 200+4"}, []string{"prefetch 2 ranges device 9"}},
		{MoveEvict, false, []string{"evict 100+2", "evict 200+4"}, []string{"prefetch 2 ranges host 9"}},
		{MovePrepare, false, out, []string{"prefetch 2 ranges host 9"}},
		{MovePopulate, false, in, []string{"prefetch 2 ranges device 9"}},
		{MovePopulate, true, slices.Concat(drop, in), []string{"discard 2 ranges 9", "prefetch 2 ranges device 9"}},
		{MoveDiscard, false, drop, []string{"discard 2 ranges 9"}},
	} {
		d := space{&calls{}}
		mover := NewDirect(d)
		if err := mover.Do(move(c.kind, c.stale)); err != nil || !slices.Equal(d.log, c.direct) {
			t.Errorf("direct %v (stale %t): %v, did %q, want %q", c.kind, c.stale, err, d.log, c.direct)
		}
		if err := mover.Close(); err != nil {
			t.Error(err)
		}
		s := &calls{}
		streamed, err := NewStreamed(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(streamed.Do(move(c.kind, c.stale)), streamed.Close()); err != nil {
			t.Error(err)
		}
		if want := slices.Concat([]string{"create"}, c.streamed, []string{"synchronize 9", "destroy 9"}); !slices.Equal(s.log, want) {
			t.Errorf("streamed %v (stale %t): did %q, want %q", c.kind, c.stale, s.log, want)
		}
	}
}

// TestOldDriver: without discard, dead pages stay and move like others.
func TestOldDriver(t *testing.T) {
	c := &calls{noDiscard: true}
	s, err := NewStreamed(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Move{move(MoveDiscard, false), move(MovePopulate, true)} {
		if err := s.Start(m); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"create", "prefetch 2 ranges device 9"}; !slices.Equal(c.log, want) {
		t.Errorf("did %q, want %q", c.log, want)
	}
	if s.Stream() != 9 {
		t.Errorf("stream %d", s.Stream())
	}
}

func TestFailures(t *testing.T) {
	d := space{&calls{fail: "evict"}}
	if err := NewDirect(d).Do(move(MoveEvict, false)); err == nil || err.Error() != "evict of 2 ranges: no luck" || len(d.log) != 1 {
		t.Errorf("a failing eviction: %v after %q", err, d.log)
	}
	d = space{&calls{fail: "discard"}}
	if err := NewDirect(d).Do(move(MovePopulate, true)); err == nil || err.Error() != "populate of 2 ranges: no luck" || len(d.log) != 1 {
		t.Errorf("a failing discard: %v after %q; nothing may be migrated after it", err, d.log)
	}
	if _, err := NewStreamed(&calls{fail: "create"}); err == nil || !strings.Contains(err.Error(), "managed mover") {
		t.Errorf("no stream: %v", err)
	}
	for _, word := range []string{"prefetch", "synchronize"} {
		s, err := NewStreamed(&calls{fail: word})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Do(move(MoveFetch, false)); err == nil {
			t.Errorf("a failing %s is not reported", word)
		}
	}
}
