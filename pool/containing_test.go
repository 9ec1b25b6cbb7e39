package pool

import (
	"testing"

	"github.com/penstock-gpu/penstock/pool/internal/model"
)

// askedWhileTaking asks the pool where an address lies while it waits for memory.
type askedWhileTaking struct {
	*model.Machine
	ask func()
}

func (b askedWhileTaking) Take(bytes int64) error {
	b.ask()
	return b.Machine.Take(bytes)
}

// TestTryContaining: who must not wait for the pool hears that somebody has it, who may wait for him.
func TestTryContaining(t *testing.T) {
	m := model.New(1 << 30)
	var p *Pool
	asked := 0
	b := askedWhileTaking{m, func() {
		if p == nil {
			return
		}
		asked++
		if _, ok, busy := p.TryContaining(1); ok || !busy {
			t.Errorf("while memory is waited for: found %t, busy %t", ok, busy)
		}
	}}
	p, err := New(Config{}, m, b, m)
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.Malloc(3<<20, 0)
	if err != nil || asked == 0 {
		t.Fatalf("%v, asked %d times", err, asked)
	}
	if r, ok, busy := p.TryContaining(at + 5); !ok || busy || r.Base != at {
		t.Errorf("%+v, %t, busy %t", r, ok, busy)
	}
	if _, ok, busy := p.TryContaining(1); ok || busy {
		t.Errorf("an address of nobody's: %t, busy %t", ok, busy)
	}
}
