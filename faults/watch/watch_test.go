package watch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

func wait(t *testing.T, what string, until func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !until(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what + ": waited in vain")
		}
	}
}

// A recording is followed as long as it is written, and is final when it is closed.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live.pstrace")
	rec, err := trace.Create(path, trace.Header{Command: "x"}, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(from, to int) {
		for i := from; i < to; i++ {
			if err := rec.Append(&trace.Event{Kind: trace.KindFault, Time: time.Duration(i) * time.Millisecond, Address: uint64(i) << 12, GPU: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := rec.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	add(0, 1000)
	w, err := File(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the first events", func() bool {
		r, final := w.Report()
		if final {
			t.Fatal("the recording is final while it is written")
		}
		return r.Summary.Faults >= 600
	})
	add(1000, 3000)
	wait(t, "events that came later", func() bool { r, _ := w.Report(); return r.Summary.Faults > 2000 })
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	<-w.Done()
	if r, final := w.Report(); !final || r.Summary.Faults != 3000 || r.Damage != "" || w.Err() != nil {
		t.Errorf("final %v, %d faults, %q", final, r.Summary.Faults, r.Damage)
	}
}

// A recorder that was killed leaves no lock: what is there is all there will be.
func TestFollowAbandoned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cut.pstrace")
	rec, err := trace.Create(path, trace.Header{}, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := rec.Append(&trace.Event{Kind: trace.KindFault, Address: 4096}); err != nil {
			t.Fatal(err)
		}
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)-5], 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := File(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	<-w.Done()
	if r, final := w.Report(); !final || r.Summary.Faults != 100 || r.Damage == "" {
		t.Errorf("final %v, %d faults, %q", final, r.Summary.Faults, r.Damage)
	}
}

func TestProcessHere(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	w := Process(ctx, os.Getpid())
	wait(t, "waiting for CUDA, or a refusal", func() bool { return w.Waiting() || w.Err() != nil })
	stop()
	<-w.Done()
	if _, err := File(context.Background(), "/dev/null"); err == nil {
		t.Error("an empty file is a recording")
	}
}
