package process

import "github.com/penstock-gpu/penstock/internal/hostmem"

// hostTenths is how much of the available host memory is the default budget of the
// job's processes on this host together.
const hostTenths = 8

// DefaultHostBudget is that of one of some processes, of what is available to them all.
func DefaultHostBudget(availableBytes int64, processes int) int64 {
	return availableBytes / 10 * hostTenths / int64(max(1, processes))
}

// AvailableHostBytes is what this process may still take without swapping or
// passing its control group's limit; 0 when the system does not say.
func AvailableHostBytes() int64 {
	m, err := hostmem.Available()
	if err != nil {
		return 0
	}
	return m.AvailableBytes
}
