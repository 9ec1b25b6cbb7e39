package replay

import (
	"strings"
	"testing"
)

func TestBusOf(t *testing.T) {
	if b := busOf("NVIDIA H200", 1, 2); b.options.H2DBytesPerSecond != 55e9 || b.options.DuplexBytesPerSecond != 92e9 || !strings.HasPrefix(b.name, "of h200: 55.0 GB/s in") {
		t.Errorf("%+v", b)
	}
	// A bus on which copies were seen to be faster is no slower than that.
	if b := busOf("NVIDIA H200", 58e9, 2); b.options.H2DBytesPerSecond != 58e9 || b.options.D2HBytesPerSecond != 55e9 {
		t.Errorf("%+v", b)
	}
	b := busOf("a card nobody knows", 20e9, 0)
	if b.options.H2DBytesPerSecond != 20e9 || b.options.D2HBytesPerSecond != 10e9 || !strings.Contains(b.name, "at its fastest: 20.0") {
		t.Errorf("%+v", b)
	}
}
