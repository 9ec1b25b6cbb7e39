package top

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/trace"
)

func report(n int64) *analyse.Report {
	r := &analyse.Report{Trace: "run", Seconds: 10, Header: trace.Header{BudgetBytes: 4 << 30}}
	r.Summary = analyse.Summary{Faults: 100 * n, H2DBytes: n << 30, D2HBytes: n << 29, ResidentBytes: 2 << 30, ResidentPeakBytes: 3 << 30, LostEvents: 7 * n}
	r.Kernels = []analyse.KernelRow{
		{Kernel: "gemm\x1b[2J", Faults: 60 * n, FaultedBytes: 1 << 20, Causes: map[string]int64{"first touch": 60 * n}},
		{Kernel: "softmax", Faults: 40 * n, FaultedBytes: 1 << 30, Causes: map[string]int64{"never predicted": 40 * n}},
	}
	r.Allocations = []analyse.AllocRow{{Site: "model.py:3 f", Bytes: 1 << 20, Faults: 100 * n, H2DBytes: n << 30}}
	r.Causes = []analyse.CauseRow{{Cause: "first touch", Faults: 60 * n}, {Cause: "never predicted", Faults: 40 * n}}
	return r
}

func shown(msgs ...tea.Msg) string {
	m := tea.Model(New())
	at := time.Unix(1000, 0)
	for _, x := range append([]tea.Msg{tea.WindowSizeMsg{Width: 120, Height: 20}, Sample{Report: report(1), At: at}, Sample{Report: report(3), At: at.Add(2 * time.Second)}}, msgs...) {
		m, _ = m.Update(x)
	}
	return m.View()
}

func keys(text string) []tea.Msg {
	var out []tea.Msg
	for _, r := range text {
		switch r {
		case '\t':
			out = append(out, tea.KeyMsg{Type: tea.KeyTab})
		case '\n':
			out = append(out, tea.KeyMsg{Type: tea.KeyEnter})
		default:
			out = append(out, tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune{r}})
		}
	}
	return out
}

func TestView(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	text := shown()
	for _, want := range []string{"300 faults in all", "21 events lost", "2 GiB of 4 GiB (budget)", "[####", "faults/s 100", "HtoD/s 1 GiB", "DtoH/s 512 MiB", "[kernels] allocations causes   by faults", `gemm\x1b[2J`, "first touch"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") || strings.Index(text, "gemm") > strings.Index(text, "softmax") {
		t.Errorf("%q", text)
	}
	// Sorted by bytes softmax is first; filtered it is alone; the next table is another.
	if text := shown(keys("s")...); strings.Index(text, "gemm") < strings.Index(text, "softmax") {
		t.Errorf("by bytes:\n%s", text)
	}
	if text := shown(keys("/SOFT\n")...); strings.Contains(text, "gemm") || !strings.Contains(text, "filter: SOFT") {
		t.Errorf("filtered:\n%s", text)
	}
	if text := shown(keys("/nothing\n")...); !strings.Contains(text, "nothing matches the filter") {
		t.Errorf("filtered:\n%s", text)
	}
	if text := shown(keys("\t")...); !strings.Contains(text, "model.py:3 f") {
		t.Errorf("allocations:\n%s", text)
	}
	if text := shown(keys("?")...); !strings.Contains(text, "filter by name") {
		t.Errorf("help:\n%s", text)
	}
	// Paused, nothing changes.
	late := Sample{Report: report(50), At: time.Unix(2000, 0)}
	if text := shown(append(keys("p"), late)...); !strings.Contains(text, "paused") || strings.Contains(text, "5,000") {
		t.Errorf("paused:\n%s", text)
	}
	if text := shown(append(keys("pp"), late)...); !strings.Contains(text, "5,000 faults in all") {
		t.Errorf("going on:\n%s", text)
	}
	if text := shown(Sample{Waiting: true}); !strings.Contains(text, "waiting for CUDA") {
		t.Errorf("waiting:\n%s", text)
	}
	if text := shown(Sample{Err: errors.New("no rights")}); !strings.Contains(text, "no rights") {
		t.Errorf("failed:\n%s", text)
	}
	if _, cmd := New().Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("q")}); cmd == nil {
		t.Error("q does not quit")
	}
}

// Whatever the size, no line is too long and nothing breaks.
func TestSizes(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	for w := range 130 {
		text := shown(append(keys("jjjjj\t"), tea.WindowSizeMsg{Width: w, Height: w / 5})...)
		lines := strings.Split(text, "\n")
		if len(lines) > max(w/5, 8) {
			t.Errorf("%d lines in a height of %d", len(lines), w/5)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > max(w, 20) {
				t.Errorf("a line of %d in a width of %d", n, w)
			}
		}
	}
}

func TestText(t *testing.T) {
	var out strings.Builder
	n := int64(0)
	err := Text(context.Background(), &out, time.Millisecond, 0, func() Sample {
		n++
		return Sample{Report: report(n), At: time.Unix(n, 0), Final: n == 3}
	})
	if err != nil || strings.Count(out.String(), "events lost") != 3 || !strings.Contains(out.String(), "faults/s n/a") || !strings.Contains(out.String(), "faults/s 100") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := Text(context.Background(), &out, time.Millisecond, 0, func() Sample { return Sample{Err: errors.New("gone")} }); err == nil {
		t.Error("an error is lost")
	}
}
