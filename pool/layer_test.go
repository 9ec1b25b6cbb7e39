package pool

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock-gpu/penstock/pool/internal/model"
)

// TestLayers: every link of the chain does the same to those above it.
func TestLayers(t *testing.T) {
	for name, of := range map[string]func(*Pool) Layer{
		"pool":     func(p *Pool) Layer { return p },
		"planned":  func(p *Pool) Layer { return p.planned },
		"stitched": func(p *Pool) Layer { return p.stitched },
	} {
		t.Run(name, func(t *testing.T) {
			const bytes = 3<<20 + 100
			m := model.New(1 << 30)
			p := newFronted(t, Config{}, m, false)
			l := of(p.Pool)
			at, err := l.Malloc(bytes, 1)
			if err != nil {
				t.Fatal(err)
			}
			inside, found := l.Containing(at + bytes - 1)
			if !l.Owns(at) || !found || inside.Base != at || inside.Bytes < bytes {
				t.Errorf("owned %v, in %+v", l.Owns(at), inside)
			}
			if _, err := l.Malloc(2<<30, 1); err == nil {
				t.Error("more than there is was given out")
			}
			m.Queue(2) // what is recorded is in use until the stream is done
			l.RecordStream(at, 2)
			if err := l.Free(at); err != nil {
				t.Error(err)
			}
			if l.Owns(at) || l.Free(at) == nil {
				t.Error("what was freed is live")
			}
			if again, err := l.Malloc(bytes, 1); err != nil || again == at {
				t.Errorf("%#x, %v: given out while stream 2 uses it", uint64(again), err)
			} else if err = l.Free(again); err != nil {
				t.Error(err)
			}
			m.Finish(2, rand.New(rand.NewPCG(1, 1)))
			if l.Trim(1) == 0 && l.EmptyCache() == 0 {
				t.Error("nothing is given back")
			}
			if at, err := l.Malloc(bytes, 2); err != nil || at == 0 {
				t.Error(err)
			}
			l.ResetPeaks()
			if err := l.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
