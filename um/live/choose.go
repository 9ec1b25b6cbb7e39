package live

import (
	"errors"
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/paged"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/swapped"
)

// Engine is a way of moving memory.
type Engine int

// Engines.
const (
	Managed  Engine = iota // unified memory, by prefetches
	Explicit               // physical chunks, by copy engines
	Auto                   // explicit where it can run, else managed
)

var engineNames = [...]string{Managed: paged.Name, Explicit: swapped.Name, Auto: "auto"}

func (e Engine) String() string { return engineNames[e] }

// EngineFor is the engine of a name in the options.
func EngineFor(name string) Engine {
	switch name {
	case Explicit.String():
		return Explicit
	case Auto.String():
		return Auto
	}
	return Managed
}

// engines are those that there are, as they are made for a process.
var engines = [...]func(*Live) process.Engine{
	Managed: func(l *Live) process.Engine {
		return paged.New(l.Process, paged.Config{LimitBytes: l.config.ManagedLimitBytes, PlainOnly: l.config.PlainOnly})
	},
	Explicit: func(l *Live) process.Engine {
		c := l.config
		return swapped.New(l.Process, swapped.Config{Verify: c.Verify, Replay: c.Replay, Packs: c.Packs, Front: c.TensorFront, PlainFront: c.Pool.Front}, blocksOf{l})
	},
}

// choose decides between the engines where the configuration leaves it open, and
// says why. The explicit engine is taken wherever it can run: it moves several
// times the bytes in the same time. The host has so much memory available.
func (c Config) choose(caps cuda.Capabilities, hook process.Hook, hostBytes int64) (e Engine, why string, err error) {
	switch {
	case c.PlainOnly:
		return Managed, "", nil // which is never opened
	case c.Engine == Managed:
		return Managed, "", managedError(caps)
	}
	place := explicit.Place{Capabilities: caps, HostBytes: process.DefaultHostBudget(hostBytes, c.LocalProcesses), Processes: c.LocalProcesses, MissedRoutes: c.MissedRoutes, Policy: c.Policy.Name}
	_, place.Hooked = hook.(swapped.Hook)
	obstacles := explicit.Obstacles(place)
	switch {
	case len(obstacles) == 0 && c.Engine == Auto:
		return Explicit, "this machine has all that it needs", nil
	case len(obstacles) == 0:
		return Explicit, "", nil
	case c.Engine == Explicit:
		return 0, "", obstacles[0]
	}
	if managed := managedError(caps); managed != nil {
		return 0, "", fmt.Errorf("neither engine can run here: %s; %w", obstacles[0].What, managed)
	}
	return Managed, obstacles[0].What, nil
}

// managedError says why the managed engine cannot run.
func managedError(caps cuda.Capabilities) error {
	switch {
	case !caps.ManagedMemory:
		return errors.New("this device has no managed memory: the managed engine cannot run")
	case !caps.ConcurrentManagedAccess:
		return errors.New("this driver cannot page GPU memory on demand (concurrentManagedAccess is 0, as under WSL): the managed engine cannot run here")
	}
	return nil
}

// Choice is the engine that was chosen and why, for people; "" when there was no choice.
func (l *Live) Choice() string {
	if l.why == "" {
		return ""
	}
	text := fmt.Sprintf("%s engine chosen: %s", l.Engine, l.why)
	if l.config.Replay != um.ReplayOff && l.Engine.String() != Explicit.String() {
		text += "; nothing is made again, which the explicit engine alone can"
	}
	return text
}
