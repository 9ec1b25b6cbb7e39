package stitch

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/pool/internal/model"
)

func TestMeasureRefuses(t *testing.T) {
	m := model.New(64 * mib)
	for _, c := range [][2]int64{{0, 8 * mib}, {-2 * mib, 8 * mib}, {8 * mib, 2 * mib}, {2 * mib, 0}, {3, 8 * mib}} {
		if _, err := Measure(m, c[0], c[1], func() time.Duration { return 0 }); err == nil || !strings.Contains(err.Error(), "cannot be measured") {
			t.Errorf("%v: %v", c, err)
		}
	}
}
