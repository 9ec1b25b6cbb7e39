package evict

import (
	"fmt"
	"strings"
)

// Candidate is something that could leave the device.
type Candidate struct {
	NextUse   int64 // position of its predicted next use; correlate.Never or correlate.Unknown when there is none
	LastUse   int64 // position of its last use
	Migrated  int64 // when it last came to the device, in migrations
	Bytes     int64
	Predicted bool // one of the next predicted kernels needs it
	Clean     bool // the host copy is still good: it leaves without a copy
}

// Policy is an order in which candidates leave.
type Policy interface {
	Name() string
	// Before says whether a leaves before b.
	Before(a, b *Candidate) bool
}

type lru struct{}

func (lru) Name() string                { return "lru" }
func (lru) Before(a, b *Candidate) bool { return a.LastUse < b.LastUse }

type deepum struct{}

func (deepum) Name() string { return "deepum" }

func (deepum) Before(a, b *Candidate) bool {
	if a.Predicted != b.Predicted {
		return b.Predicted
	}
	return a.Migrated < b.Migrated
}

type nextUse struct{}

func (nextUse) Name() string { return "next-use" }

func (nextUse) Before(a, b *Candidate) bool {
	if a.NextUse != b.NextUse {
		return a.NextUse > b.NextUse
	}
	if a.Clean != b.Clean {
		return a.Clean
	}
	if a.LastUse != b.LastUse {
		return a.LastUse < b.LastUse
	}
	return a.Migrated < b.Migrated
}

// The policies.
var (
	LRU     Policy = lru{}
	DeepUM  Policy = deepum{}
	NextUse Policy = nextUse{}
)

// ByName finds a policy.
func ByName(name string) (Policy, error) {
	var known []string
	for _, p := range []Policy{LRU, DeepUM, NextUse} {
		if p.Name() == name {
			return p, nil
		}
		known = append(known, p.Name())
	}
	return nil, fmt.Errorf("unknown eviction policy %q: choose one of %s", name, strings.Join(known, ", "))
}

// Watermarks say when eviction runs ahead of need: it starts when less than
// LowBytes of the budget is free and goes on until HighBytes are.
type Watermarks struct {
	LowBytes, HighBytes int64
}

// DefaultWatermarks keeps between 1/32 and 1/16 of the budget free.
func DefaultWatermarks(budgetBytes int64) Watermarks {
	return Watermarks{LowBytes: budgetBytes / 32, HighBytes: budgetBytes / 16}
}

// Shortfall is how many bytes should leave now, given the bytes that are free
// and whether an eviction round is already under way.
func (w Watermarks) Shortfall(freeBytes int64, underWay bool) int64 {
	if freeBytes < w.LowBytes || underWay && freeBytes < w.HighBytes {
		return w.HighBytes - freeBytes
	}
	return 0
}
