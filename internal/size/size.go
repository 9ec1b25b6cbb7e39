// Package size says sizes in bytes for people. Every message, verdict and table has
// them from here, so that one size reads the same wherever it is said. Machines are
// told plain numbers of bytes. What people write is read by package options, which
// understands what this package says.
package size

import (
	"math"
	"strconv"
	"strings"
)

var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// Text is a size in the largest unit of which it has one, to a tenth: 5.9 GiB, 512 MiB.
func Text(bytes int64) string {
	for _, u := range units {
		if bytes >= u.bytes || bytes <= -u.bytes {
			const most = float64(math.MaxInt64>>40) + 0.9 // TiB; the next tenth is more than an int64 holds
			text := strconv.FormatFloat(min(float64(bytes)/float64(u.bytes), most), 'f', 1, 64)
			return strings.TrimSuffix(text, ".0") + " " + u.name
		}
	}
	return strconv.FormatInt(bytes, 10) + " B"
}
