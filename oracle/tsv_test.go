package oracle

import (
	"bufio"
	"compress/gzip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

func loadTSV(t testing.TB, name string) []trace.Event {
	f, err := os.Open(filepath.Join("..", "..", "shared", "traces", name+".tsv.gz"))
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var events []trace.Event
	timing := map[string]int{}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 64<<20)
	num := func(s string) uint64 { n, _ := strconv.ParseUint(s, 10, 64); return n }
	access := func(s string) trace.Access {
		a, off, _ := strings.Cut(s, "+")
		return trace.Access{Alloc: num(a), Offset: num(off)}
	}
	for sc.Scan() {
		c := strings.Split(sc.Text(), "\t")
		switch c[0] {
		case "A":
			events = append(events, trace.Event{Kind: trace.KindAlloc, Alloc: num(c[1]), Bytes: int64(num(c[2]))})
		case "F":
			events = append(events, trace.Event{Kind: trace.KindFree, Alloc: num(c[1])})
		case "N":
			events = append(events, trace.Event{Kind: trace.KindFunction, Function: uint32(num(c[1])), Name: c[3]})
		case "K":
			e := trace.Event{Kind: trace.KindLaunch, Function: uint32(num(c[3])), Duration: -1}
			for _, a := range c[10:] {
				e.Accesses = append(e.Accesses, access(a))
			}
			timing[c[1]] = len(events)
			events = append(events, e)
		case "C":
			e := trace.Event{Kind: trace.KindCopy, Bytes: int64(num(c[4])), Duration: -1}
			for _, a := range c[5:] {
				e.Accesses = append(e.Accesses, access(a[1:]))
			}
			if c[1] != "-1" {
				timing[c[1]] = len(events)
			}
			events = append(events, e)
		case "M":
			events = append(events, trace.Event{Kind: trace.KindMark, Name: c[1]})
		case "T":
			if i, ok := timing[c[1]]; ok {
				events[i].Duration = time.Duration(num(c[2]))
			}
		}
	}
	return events
}

func TestTable(t *testing.T) {
	for _, name := range []string{"gpt2m", "gpt2l", "llama1b", "llama1b-lr", "moe", "resnet152"} {
		ev := loadTSV(t, name)
		for _, ratio := range []float64{1.25, 1.5, 2, 3} {
			p, err := newProgram(ev, Options{BudgetBytes: 1 << 60, BlockBytes: 1, PieceBytes: 32 << 20, SmallBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			r, err := RunEvents(ev, Options{BudgetBytes: int64(float64(p.peakBytes) / ratio), H2DBytesPerSecond: 46e9, D2HBytesPerSecond: 46e9, Duplex: true})
			t.Logf("%s %g: %.4f s compute %.4f in %.2f out %.2f GB, peak %.2f GB, plan %s err %v rep %v took %v", name, ratio, r.IterationSeconds, r.ComputeSeconds, float64(r.H2DBytes)/1e9, float64(r.D2HBytes)/1e9, float64(p.peakBytes)/1e9, r.Plan, err, r.Repeats, time.Since(began))
		}
	}
}
