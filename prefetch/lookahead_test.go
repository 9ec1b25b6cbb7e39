package prefetch

import (
	"reflect"
	"testing"
)

// stock hands out victims with their next uses, the farthest first.
func stock(items ...[2]int64) (Victims, *int) {
	taken := 0
	return func(position int64) (Victim, bool) {
		if taken == len(items) || items[taken][0] <= position {
			return Victim{}, false
		}
		taken++
		return Victim{Bytes: items[taken-1][1]}, true
	}, &taken
}

// TestLater: room that comes between now and a use is counted on, and nothing else leaves for that use.
func TestLater(t *testing.T) {
	var asked []int64
	victims := func(position int64) (Victim, bool) {
		asked = append(asked, position)
		return Victim{Bytes: 4, Later: position >= 20}, true
	}
	needs := []Need{{Position: 12, Bytes: 4}, {Position: 20, Bytes: 4}, {Position: 25, Bytes: 4}}
	got := Look(10, 0, needs, nil, Limits{}, victims)
	// Only the first can come now: the room of the others is not there yet.
	if want := (Plan{Fetch: 1, Evict: 1, BlockedAt: -1, EndsAt: 25}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !reflect.DeepEqual(asked, []int64{12, 20, 25}) {
		t.Errorf("victims were asked for at %v", asked)
	}
}

// TestSpare: what is free at a position and was needed by nothing before it, and
// since when.
func TestSpare(t *testing.T) {
	for _, test := range []struct {
		name           string
		free           int64
		needs          []Need
		steps          []Step
		victims        [][2]int64
		spare, shortAt int64
	}{
		{name: "nothing happens", free: 3, spare: 3},
		{name: "needs take of it, frees add to it", free: 3, needs: []Need{{Position: 12, Bytes: 2}}, steps: []Step{{Position: 15, FreedBytes: 4}}, spare: 5},
		{name: "what comes later does not count", free: 3, needs: []Need{{Position: 21, Bytes: 2}}, steps: []Step{{Position: 25, FreedBytes: 4}}, spare: 3},
		{name: "at a peak something leaves, and the count begins again", free: 3, needs: []Need{{Position: 12, Bytes: 5}}, steps: []Step{{Position: 15, FreedBytes: 4}},
			victims: [][2]int64{{90, 2}}, spare: 4, shortAt: 12},
		{name: "where nothing can leave it begins again, too", free: 3, needs: []Need{{Position: 12, Bytes: 5}}, steps: []Step{{Position: 15, FreedBytes: 4}, {Position: 16, FreshBytes: 1}}, spare: 3, shortAt: 12},
	} {
		t.Run(test.name, func(t *testing.T) {
			victims, _ := stock(test.victims...)
			got := Look(10, test.free, test.needs, test.steps, Limits{Spare: 20}, victims)
			if got.SpareBytes != test.spare || got.ShortAt != test.shortAt {
				t.Errorf("%d bytes spare after a need at %d, want %d after %d", got.SpareBytes, got.ShortAt, test.spare, test.shortAt)
			}
		})
	}
}

func TestLook(t *testing.T) {
	need := func(position, bytes int64) Need { return Need{Position: position, Bytes: bytes} }
	for _, test := range []struct {
		name    string
		free    int64
		needs   []Need
		steps   []Step
		limits  Limits
		victims [][2]int64 // next use, bytes
		want    Plan
	}{
		{name: "nothing to do", want: Plan{BlockedAt: -1, EndsAt: 10}},
		{
			name: "what fits is fetched in order", free: 10, needs: []Need{need(11, 4), need(12, 4), need(13, 4)},
			want: Plan{Fetch: 2, BlockedAt: 13, EndsAt: 13},
		},
		{
			name: "a victim that is needed later makes room", free: 4, needs: []Need{need(11, 4), need(12, 4)}, victims: [][2]int64{{90, 4}},
			want: Plan{Fetch: 2, Evict: 1, BlockedAt: -1, EndsAt: 12},
		},
		{
			name: "one that is needed sooner does not", free: 4, needs: []Need{need(11, 4), need(20, 4)}, victims: [][2]int64{{15, 4}},
			want: Plan{Fetch: 1, BlockedAt: 20, EndsAt: 20},
		},
		{
			name: "a fetch waits for a coming free rather than displace", free: 0, needs: []Need{need(20, 4)}, steps: []Step{{Position: 15, FreedBytes: 4}}, victims: [][2]int64{{90, 4}},
			want: Plan{Fetch: 0, BlockedAt: -1, EndsAt: 20},
		},
		{
			name: "a coming peak takes room from an early fetch", free: 4, needs: []Need{need(20, 4)},
			steps: []Step{{Position: 12, FreshBytes: 4}, {Position: 15, FreedBytes: 4}},
			want:  Plan{Fetch: 0, BlockedAt: -1, EndsAt: 20, FreshBytes: 4},
		},
		{
			name: "a coming peak makes victims leave at once", free: 1, steps: []Step{{Position: 30, FreshBytes: 3}}, victims: [][2]int64{{90, 1}, {80, 1}, {70, 1}},
			want: Plan{Evict: 2, BlockedAt: -1, EndsAt: 30, FreshBytes: 3},
		},
		{
			name: "what a victim leaves over is not spent before it has gone", free: 0, needs: []Need{need(20, 1)},
			steps: []Step{{Position: 12, FreshBytes: 1}}, victims: [][2]int64{{90, 4}},
			want: Plan{Fetch: 0, Evict: 1, BlockedAt: -1, EndsAt: 20, FreshBytes: 1},
		},
		{
			name: "but where it leaves under what comes, it is", free: 0, needs: []Need{need(20, 1)}, limits: Limits{Exact: true, Spare: 12},
			steps: []Step{{Position: 12, FreshBytes: 1}}, victims: [][2]int64{{90, 4}},
			want: Plan{Fetch: 1, Evict: 1, BlockedAt: -1, EndsAt: 20, FreshBytes: 1},
		},
		{
			name: "though not of one that leaves for what is further ahead", free: 0, needs: []Need{need(20, 1)}, limits: Limits{Exact: true, Spare: 11},
			steps: []Step{{Position: 12, FreshBytes: 1}}, victims: [][2]int64{{90, 4}},
			want: Plan{Fetch: 0, Evict: 1, BlockedAt: -1, EndsAt: 20, FreshBytes: 1},
		},
		{
			name: "the degree ends the walk", free: 10, needs: []Need{need(12, 1), need(14, 1), need(99, 1)}, limits: Limits{Degree: 5},
			want: Plan{Fetch: 2, BlockedAt: -1, EndsAt: 14},
		},
		{
			name: "the byte bound ends fetching, not the account", free: 10, needs: []Need{need(12, 4), need(14, 4)}, limits: Limits{Bytes: 5},
			want: Plan{Fetch: 1, BlockedAt: -1, EndsAt: 14},
		},
		{
			name: "the first need is fetched whatever the byte bound", free: 10, needs: []Need{need(12, 8)}, limits: Limits{Bytes: 5},
			want: Plan{Fetch: 1, BlockedAt: -1, EndsAt: 12},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			victims, taken := stock(test.victims...)
			got := Look(10, test.free, test.needs, test.steps, test.limits, victims)
			got.SpareBytes, got.ShortAt = 0, 0 // see TestSpare
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if got.Evict != *taken {
				t.Errorf("%d victims taken, %d in the plan", *taken, got.Evict)
			}
		})
	}
}

func BenchmarkLook(b *testing.B) {
	var needs []Need
	var steps []Step
	for i := range int64(2000) {
		needs = append(needs, Need{Position: 2 * i, Bytes: 4})
		steps = append(steps, Step{Position: 2 * i, FreshBytes: 8, FreedBytes: 8})
	}
	for b.Loop() {
		Look(0, 1000, needs, steps, Limits{}, func(int64) (Victim, bool) { return Victim{Bytes: 4}, true })
	}
}
