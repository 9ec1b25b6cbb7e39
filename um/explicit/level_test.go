package explicit

import (
	"testing"
	"time"
)

// TestLevels: all levels are tried, the fastest stays, and is tried again when another may have become faster.
func TestLevels(t *testing.T) {
	for name, x := range map[string]struct {
		took [levelCount]time.Duration
		want Level
	}{
		"the bus is slow":        {[levelCount]time.Duration{0, 300, 200, 100}, LevelAll},
		"products take too long": {[levelCount]time.Duration{0, 300, 200, 250}, LevelPlain},
		"nothing is gained":      {[levelCount]time.Duration{0, 200, 201, 199}, LevelNothing},
		"the CPU is slow":        {[levelCount]time.Duration{0, 100, 150, 190}, LevelNothing},
	} {
		v := newLevels(LevelTried)
		const period = 1000
		var now time.Duration
		seen := map[Level]int{}
		run := func(iterations int) {
			for i := range iterations {
				for k := range int64(period) {
					v.look(int64(i)*period+k, period, now)
				}
				seen[v.at]++
				now += x.took[v.at]
			}
		}
		for i := range int64(100 * firstTrial) { // a layer is taken for an iteration
			v.look(i, 10, now)
			now += x.took[v.at] / 100
		}
		clear(seen)
		run(firstTrial + 2*levelTrial + 2)
		if v.at != x.want || v.trying {
			t.Errorf("%s: at level %d, trying %t, want %d; took %v", name, v.at, v.trying, x.want, v.took)
		}
		for l := LevelNothing; l < levelCount; l++ {
			if seen[l] < levelTrial {
				t.Errorf("%s: level %d was tried for %d iterations", name, l, seen[l])
			}
		}
	}
}
