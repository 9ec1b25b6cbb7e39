package live

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um/live/livetest"
)

// BenchmarkDrain is what an operation costs the engine from the ring to the runtime, and its end.
func BenchmarkDrain(b *testing.B) {
	const batch = 64
	h := livetest.NewHook()
	c := defaults()
	l, err := New(c, livetest.NewDriver(1<<30), h, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	p, err := l.Malloc(4*mib, 0)
	if err != nil {
		b.Fatal(err)
	}
	slots := []uint32{h.SlotOf[p]}
	l.Mu.Lock() // nothing else goes on
	records := make([]hook.Record, 0, batch)
	b.ReportAllocs()
	for range b.N {
		if records = append(records, hook.Record{Seq: h.Newest + 1, Kind: hook.Launch, ID: uint32(h.Newest % 500), Slots: slots}); len(records) == batch {
			h.Records = records
			h.Done[0] = h.Newest
			l.Drain()
			l.Progress()
			records = records[:0]
		}
		h.Newest++
	}
	l.Mu.Unlock()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
