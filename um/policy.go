package um

import (
	"fmt"

	"github.com/penstock-gpu/penstock/evict"
)

// SmallBytes is the size below which an allocation lives in plain device memory.
const SmallBytes = 1 << 20

// Fetching says when blocks are brought to the device.
type Fetching int

// Ways of fetching.
const (
	FetchOnFault  Fetching = iota // never: kernels fault
	FetchOnLaunch                 // what a queued operation names
	FetchTables                   // what DeepUM's correlation tables foretell
	FetchAhead                    // what queued and predicted operations name
)

// Policy is a way of running an engine.
type Policy struct {
	Name      string
	Fetch     Fetching
	Victims   evict.Policy
	DeadKnown bool // freed memory is known to be dead
	Gate      bool // operations wait on their stream for their tensors
}

// Policies that the managed engine runs under; the explicit one has LRU and Penstock.
var (
	Naive    = Policy{Name: "naive", Fetch: FetchOnFault, Victims: evict.LRU}
	LRU      = Policy{Name: "lru", Fetch: FetchOnLaunch, Victims: evict.LRU, DeadKnown: true, Gate: true}
	DeepUM   = Policy{Name: "deepum", Fetch: FetchTables, Victims: evict.DeepUM, DeadKnown: true, Gate: true}
	Penstock = Policy{Name: "penstock", Fetch: FetchAhead, Victims: evict.NextUse, DeadKnown: true, Gate: true}
)

// PolicyByName finds a policy.
func PolicyByName(name string) (Policy, error) {
	for _, p := range []Policy{Naive, LRU, DeepUM, Penstock} {
		if p.Name == name {
			return p, nil
		}
	}
	return Policy{}, fmt.Errorf("unknown policy %q: choose one of naive, lru, deepum, penstock", name)
}

// Replay says what is made again, by an engine that can, instead of being moved.
type Replay int

// Ways of making again.
const (
	ReplayOff     Replay = iota // nothing
	ReplayInsured               // what has a copy on the host all the same
	ReplayOn                    // what has none, once its functions are trusted
)
