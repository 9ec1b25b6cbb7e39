package faults

import (
	"os"
	"strconv"
	"strings"
)

// Layout is how a range of driver versions wants INIT_EVENT_TRACKER filled in
// and answers it. The entries of the queue themselves (version 1, 64 bytes) and
// the control block are the same from 535 to 595. Offsets are those of
// kernel-open/nvidia-uvm/uvm_ioctl.h, in bytes.
type Layout struct {
	From      string // first driver version, inclusive
	Bytes     int    // of the parameter block
	StatusAt  int
	VersionAt int // of the requested version, which must be 1; 0 where there is none
}

// Layouts is every known layout, oldest first; a version belongs to the last
// row that does not begin after it.
var Layouts = []Layout{
	{From: "535", Bytes: 56, StatusAt: 48},
	{From: "550.40.53", Bytes: 64, StatusAt: 48, VersionAt: 52},
	{From: "560", Bytes: 56, StatusAt: 52, VersionAt: 48},
	{From: "565", Bytes: 56, StatusAt: 48},
}

// newestDriver is the newest branch whose interface was compared.
const newestDriver = "595"

// LayoutOf finds a driver version's layout. known is false for drivers outside
// the range that was compared; a newer one gets the newest layout.
func LayoutOf(version string) (l Layout, known bool) {
	for _, row := range Layouts {
		if compareVersions(version, row.From) >= 0 {
			l, known = row, true
		}
	}
	return l, known && compareVersions(version, newestDriver+".999") <= 0
}

// compareVersions orders dotted numbers; what is not a number counts as 0.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return m - n
		}
	}
	return 0
}

// DriverVersion is the loaded kernel driver's, "" when it cannot be read.
func DriverVersion() string {
	b, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
