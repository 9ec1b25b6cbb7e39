package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/hook"
)

// BenchmarkDrain is what an operation costs the engine from the ring to the runtime, and its end.
func BenchmarkDrain(b *testing.B) {
	const batch = 64
	h := newHook()
	c := defaults()
	l, err := New(c, newDriver(1<<30), h, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	p, err := l.Malloc(4*mib, 0)
	if err != nil {
		b.Fatal(err)
	}
	slots := []uint32{h.slotOf[p]}
	l.mu.Lock() // nothing else goes on
	records := make([]hook.Record, 0, batch)
	b.ReportAllocs()
	for range b.N {
		if records = append(records, hook.Record{Seq: h.head + 1, Kind: hook.Launch, ID: uint32(h.head % 500), Slots: slots}); len(records) == batch {
			h.records = records
			h.progress[0] = h.head
			l.drain()
			l.progress()
			records = records[:0]
		}
		h.head++
	}
	l.mu.Unlock()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
