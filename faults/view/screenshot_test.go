package view

import (
	"image/png"
	"os"
	"testing"
)

// checkScreenshot says whether the plots and the heat map were drawn, by the colours that only they have.
func checkScreenshot(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	b := picture.Bounds()
	if b.Dx() != 1200 || b.Dy() < 2000 {
		t.Fatalf("the picture is %v", b)
	}
	seen := map[string]int{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, bl, _ := picture.At(x, y).RGBA()
			switch [3]uint32{r >> 8, g >> 8, bl >> 8} {
			case [3]uint32{0xc2, 0x34, 0x2b}:
				seen["faults"]++
			case [3]uint32{0x0b, 0x7f, 0xab}:
				seen["in"]++
			case [3]uint32{0xb8, 0x74, 0x0a}:
				seen["out"]++
			case [3]uint32{0x35, 0x80, 0x4a}:
				seen["resident"]++
			}
		}
	}
	for _, what := range []string{"faults", "in", "out", "resident"} {
		if seen[what] < 500 {
			t.Errorf("the plot of %s has %d points of its colour", what, seen[what])
		}
	}
}
