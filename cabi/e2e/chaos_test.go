package e2e

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

var (
	chaosSeeds = flag.Int("chaos", 1, "seeds that TestChaos tries with each engine")
	chaosFirst = flag.Int("chaos-first", 1, "the first of them")
	chaosLong  = flag.Int("chaos-long", 1, "how many of them have kernels of 30 s, for which each then takes 30 to 90 s, without a processor; 1: one, of some engines")
)

// alwaysLong are the engines whose first seed has such kernels without being asked: one of each way to wait.
var alwaysLong = []string{"managed penstock", "managed naive", "explicit penstock", "explicit replaying"}

// TestChaos runs jobs drawn from seeds in a third of the memory that they have, under
// each engine and policy: no word may be another than the program says. Some have kernels
// so long that whatever waits for them waits longer than any patience lasts. For long:
//
//	go test ./cabi/e2e -run TestChaos -chaos 100 -chaos-long 10 -timeout 0
func TestChaos(t *testing.T) {
	t.Parallel()
	job := program(t, "chaos")
	for i, c := range []struct {
		name string
		env  []string
	}{
		{"managed penstock", nil},
		{"managed lru", []string{"PENSTOCK_POLICY=lru"}},
		{"managed deepum", []string{"PENSTOCK_POLICY=deepum"}},
		{"managed naive", []string{"PENSTOCK_POLICY=naive"}},
		{"explicit penstock", explicitly()},
		{"explicit lru", explicitly("PENSTOCK_POLICY=lru", "PENSTOCK_PACKS=0")},
		{"explicit slow bus", explicitly("STUB_COPY_MBPS=1500")},
		{"explicit verified", explicitly("PENSTOCK_VERIFY=1")},
		{"in memory", []string{"PENSTOCK_BUDGET=2GiB"}},
		{"explicit replaying", explicitly("PENSTOCK_REPLAY=on")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if slices.Contains([]string{"managed lru", "managed deepum", "managed naive", "explicit slow bus", "explicit verified", "explicit replaying"}, c.name) {
				short.Skip(t)
			}
			t.Parallel()
			for n := range *chaosSeeds {
				seed, long := fmt.Sprint((*chaosFirst+n)*100+i), "0"
				if n < short.Of(*chaosLong, 0) && (*chaosLong > 1 || slices.Contains(alwaysLong, c.name)) {
					long = "30"
				}
				r := run(t, c.env, job, seed, "6", "0xffff", long)
				if r.code != 0 { // also when a launch waited in vain
					t.Errorf("chaos %s with %v: exit status %d\n%s%s", seed, c.env, r.code, r.stdout, r.stderr)
				}
			}
		})
	}
}
