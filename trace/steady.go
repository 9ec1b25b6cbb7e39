package trace

import (
	"cmp"
	"slices"
)

// Steady is the part of a sequence that repeats: what stands at i and at i+Period is
// the same for all i from Begin on, as long as both lie before End.
type Steady struct{ Begin, End, Period int }

// Length is how many elements repeat.
func (s Steady) Length() int { return s.End - s.Begin }

// Bounds of the search for the period.
const (
	gramLength  = 16 // how many elements in a row mark a place
	mostRepeats = 64 // a place that comes more often than this is in a loop inside the iteration
	candidates  = 12 // how many periods are looked at closely
	leastPeriod = 4
)

// FindSteady finds the longest stretch of symbols that consists of at least two periods
// of one kind. Rows of symbols that come seldom vote for the distance between two of
// them: what is unique within an iteration comes again one iteration later. hint is a
// period that is tried in any case, or 0.
func FindSteady(symbols []int32, hint int) (Steady, bool) {
	votes := map[int]int{}
	if hint > 0 {
		votes[hint] += len(symbols)
	}
	for _, at := range grams(symbols) {
		for i := 1; i < len(at) && len(at) <= mostRepeats; i++ {
			votes[at[i]-at[i-1]]++
		}
	}
	periods := make([]int, 0, len(votes))
	for p := range votes {
		if p >= leastPeriod {
			periods = append(periods, p)
		}
	}
	slices.SortFunc(periods, func(a, b int) int {
		return cmp.Or(cmp.Compare(votes[b], votes[a]), cmp.Compare(a, b))
	})
	periods = periods[:min(len(periods), candidates)]
	slices.Sort(periods)
	var best Steady
	for _, p := range periods {
		// The shortest period wins a tie: twice a period repeats, too.
		if s := longest(symbols, p); s.Length() >= 2*p && s.Length() > best.Length() {
			best = s
		}
	}
	return best, best.Period > 0
}

// grams lists, for each row of gramLength symbols, where it begins.
func grams(symbols []int32) map[uint64][]int {
	const base = 0x9e3779b97f4a7c15
	power := uint64(1)
	for range gramLength {
		power *= base
	}
	var hash uint64
	at := map[uint64][]int{}
	for i, s := range symbols {
		hash = hash*base + uint64(s) + 1
		if i >= gramLength {
			hash -= power * (uint64(symbols[i-gramLength]) + 1)
		}
		if i >= gramLength-1 {
			at[hash] = append(at[hash], i-gramLength+1)
		}
	}
	return at
}

// longest is the longest stretch with a given period.
func longest(symbols []int32, period int) Steady {
	var best Steady
	begin := 0
	for i := 0; i+period <= len(symbols); i++ {
		if i+period < len(symbols) && symbols[i] == symbols[i+period] {
			continue
		}
		if s := (Steady{begin, i + period, period}); s.Length() > best.Length() {
			best = s
		}
		begin = i + 1
	}
	return best
}
