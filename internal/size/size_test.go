package size

import (
	"math"
	"testing"
)

func TestText(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1 << 10: "1 KiB", 1536: "1.5 KiB", 64 << 20: "64 MiB", 1<<30 - 1: "1024 MiB", 1 << 30: "1 GiB",
		6365903244: "5.9 GiB", 3 << 40: "3 TiB", -(3 << 29): "-1.5 GiB", math.MaxInt64: "8388607.9 TiB",
	} {
		if got := Text(bytes); got != want {
			t.Errorf("%d bytes are %q, want %q", bytes, got, want)
		}
	}
}
