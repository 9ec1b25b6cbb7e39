package screen

import (
	"math"
	"testing"
	"unicode/utf8"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		part, whole float64
		cells       int
		want        string
	}{
		{1, 2, 6, "[###...]"}, {0, 2, 5, "[.....]"}, {9, 2, 5, "[#####]"}, {-1, 2, 5, "[.....]"},
		{1, 2, 4, ""}, {1, 0, 10, ""}, {1, -1, 10, ""}, {1, math.NaN(), 10, ""},
	} {
		if got := Bar(c.part, c.whole, c.cells); got != c.want {
			t.Errorf("Bar(%v, %v, %d) = %q, want %q", c.part, c.whole, c.cells, got, c.want)
		}
	}
}

func TestSpark(t *testing.T) {
	for _, c := range []struct {
		values []float64
		most   float64
		cells  int
		want   string
	}{
		{[]float64{0, 1, 2}, 2, 10, "▁▄█"}, {[]float64{9, 0, 2}, 2, 2, "▁█"}, {[]float64{5, -5}, 2, 5, "█▁"}, {[]float64{1}, 0, 5, "▁"}, {nil, 1, 5, ""}, {[]float64{1}, 1, -3, ""},
	} {
		if got := Spark(c.values, c.most, c.cells); got != c.want {
			t.Errorf("Spark(%v, %v, %d) = %q, want %q", c.values, c.most, c.cells, got, c.want)
		}
	}
}

func TestFit(t *testing.T) {
	if got := Fit([]string{"abcdé", "x", "gone"}, 4, 2, false); got != "abcd\nx" {
		t.Errorf("%q", got)
	}
	if got := Fit([]string{"a", "b"}, 4, 2, true); got != "\x1b[1ma\x1b[0m\nb" {
		t.Errorf("%q", got)
	}
	if got := Fit(nil, 4, 2, true); got != "" || !utf8.ValidString(got) {
		t.Errorf("%q", got)
	}
}
