package stitch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/trace"
)

// load is testlogs.Load for a package two folders below the root.
func load(t testing.TB, name string) *trace.Trace {
	t.Helper()
	path := filepath.Join("..", "..", "..", "shared", "traces", name+".tsv.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no shared launch logs on this machine: %v", err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestReplay: what real jobs need.
func TestReplay(t *testing.T) {
	for _, name := range []string{"gpt2m", "gpt2l", "llama1b", "llama1b-lr", "moe", "resnet152"} {
		t.Run(name, func(t *testing.T) {
			tr := load(t, name)
			for _, strategy := range []Strategy{Eager, Never} {
				m := newMachine(1 << 40)
				p, err := New(Config{Strategy: strategy}, m, m, m)
				if err != nil {
					t.Fatal(err)
				}
				at := map[uint64]cuda.Ptr{}
				for _, e := range tr.Events {
					switch e.Kind {
					case trace.KindAlloc:
						q, err := p.Malloc(max(e.Bytes, 1), 0)
						if err != nil {
							t.Fatal(err)
						}
						at[e.Alloc] = q
					case trace.KindFree:
						if err := p.Free(at[e.Alloc]); err != nil {
							t.Fatal(err)
						}
						delete(at, e.Alloc)
					case trace.KindMark:
						s := p.Stats()
						if strings.HasPrefix(e.Name, "iter") || e.Name == "end" {
							t.Logf("%d %s: peak live %.3f GiB, reserved %.3f, %+.2f %%, made %d handles, %d stitches of %d handles, %d reused, %d freed", strategy, e.Name,
								float64(s.LivePeakBytes)/(1<<30), float64(s.ReservedPeakBytes)/(1<<30), 100*(float64(s.ReservedPeakBytes)/float64(s.LivePeakBytes)-1),
								s.Created, s.Stitches, s.StitchedHandles, s.StitchReuses, s.StitchFrees)
						}
						p.ResetPeaks()
					}
				}
				if err := p.Check(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
