package report

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock-gpu/penstock/replay"
)

func TestTable(t *testing.T) {
	results := append(synthetic("llama1b", replay.EngineManaged, 9*gib, 1.25, 1.5, 2, 3), synthetic("größe", replay.EngineManaged, gib, 2)...)
	var b strings.Builder
	if err := WriteTable(&b, results); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
	width, rows := 0, 0
	for _, line := range strings.Split(b.String(), "\n") {
		if line == "" {
			width = 0
		}
		if !strings.HasPrefix(line, "  ") {
			continue
		}
		n := utf8.RuneCountInString(line)
		if width == 0 {
			width = n
		}
		if n != width {
			t.Errorf("line %q is %d wide, the others %d", line, n, width)
		}
		if n > 120 {
			t.Errorf("line of %d characters", n)
		}
		rows++
		policy := strings.Fields(line)[0]
		if policy == "penstock" && strings.Count(line, " s ") < 3 {
			t.Errorf("line %q lacks its bound", line)
		}
		if policy == "oracle" && !strings.Contains(line, "itself") {
			t.Errorf("line %q does not say that it is the bound", line)
		}
	}
	if want := 2 + 5*5; rows != want {
		t.Errorf("%d rows, want %d", rows, want)
	}
	if strings.Count(b.String(), "simulated") < 3 {
		t.Error("the table does not say that it is simulated")
	}
}
