package options

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

// units by their lower-case names. A bare letter is binary, as in every tool
// that takes 24G for memory; KB, MB, GB and TB are decimal.
var units = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// maxSizeText is more than any size needs; it keeps errors short.
const maxSizeText = 40

// ParseBytes reads a size: a number of bytes, or a number with a unit, such as
// 24GiB, 1.5 GB or 512M. A fraction of a byte is dropped.
func ParseBytes(text string) (int64, error) {
	s := strings.TrimSpace(text)
	if len(s) > maxSizeText {
		return 0, fmt.Errorf("%.20q... is not a size: write bytes, or a size such as 24GiB or 512MiB", s)
	}
	bad := fmt.Errorf("%q is not a size: write bytes, or a size such as 24GiB or 512MiB", text)
	if strings.HasPrefix(s, "-") {
		return 0, fmt.Errorf("%q is negative: write bytes, or a size such as 24GiB or 512MiB", text)
	}
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(s)
	}
	number := s[:end]
	unit, ok := units[strings.ToLower(strings.TrimSpace(s[end:]))]
	if !ok || strings.Trim(number, ".") == "" || strings.Count(number, ".") > 1 {
		return 0, bad
	}
	// Exact arithmetic: a float64 loses bytes from 2^53 on.
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, bad
	}
	value.Mul(value, new(big.Rat).SetInt64(unit))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	if !whole.IsInt64() {
		return 0, fmt.Errorf("%q is more than any machine has: the most is %d bytes", text, int64(math.MaxInt64))
	}
	return whole.Int64(), nil
}
