package explicit

import (
	"fmt"
	"strings"

	"github.com/penstock-gpu/penstock/cuda"
)

// LeastHostBytes is the least pinned host memory that makes swapping worth a try.
const LeastHostBytes = 1 << 30

// Need is something that the engine cannot run without.
type Need string

// Needs.
const (
	NeedVirtualMemory Need = "virtual memory management"
	NeedStreamMemOps  Need = "stream memory operations"
	NeedParameterInfo Need = "kernel parameter information"
	NeedDeviceCode    Need = "device code"
	NeedHostMemory    Need = "pinned host memory"
	NeedHook          Need = "launch hook"
	NeedEveryRoute    Need = "every launch seen"
	NeedPolicy        Need = "a policy of its own"
)

// Obstacle is a need that is not met: what is missing, and what to do about it.
type Obstacle struct {
	Need     Need
	What, Do string
}

func (o *Obstacle) Error() string {
	return fmt.Sprintf("%s: the explicit engine cannot run; %s", o.What, o.Do)
}

// Place is what decides whether the engine can run somewhere.
type Place struct {
	Capabilities cuda.Capabilities
	HostBytes    int64 // that this process may pin
	Processes    int   // of the job on this host, this one included: they share its memory; 0 is 1
	Hooked       bool  // the launch hook is loaded
	// MissedRoutes are ways to the driver whose launches the hook does not see, in words.
	MissedRoutes []string
	Policy       string // of package um, by its name
}

const useManaged = "use --engine managed"

// MachineObstacles are the needs that a machine does not meet, for any job that has so
// many processes there and so much host memory that each may pin.
func MachineObstacles(c cuda.Capabilities, hostBytes int64, processes int) (all []*Obstacle) {
	add := func(met bool, need Need, what, do string) {
		if !met {
			all = append(all, &Obstacle{need, what, do})
		}
	}
	add(c.VirtualMemory, NeedVirtualMemory, "this card or driver has no virtual memory management (cuMemCreate)", useManaged)
	add(c.StreamMemOps, NeedStreamMemOps, "this driver has no stream memory operations", useManaged)
	add(c.FunctionParamInfo, NeedParameterInfo, "this driver does not tell the parameters of kernels (cuFuncGetParamInfo, CUDA 12.4)", "install driver 550 or newer, or "+useManaged)
	add(c.Kernels, NeedDeviceCode, "this driver takes no device code of Penstock's own (cuLaunchKernel)", useManaged)
	each := ""
	if processes > 1 {
		each = fmt.Sprintf(" by each of %d processes", processes)
	}
	add(hostBytes >= LeastHostBytes, NeedHostMemory, fmt.Sprintf("only %d MiB of host memory can be pinned%s", hostBytes>>20, each),
		fmt.Sprintf("free some (%d MiB is the least), or %s", LeastHostBytes>>20, useManaged))
	return all
}

// Obstacles are the needs that are not met, the machine's first. A budget that
// cannot be had is no obstacle but an error of whoever gave it.
func Obstacles(p Place) []*Obstacle {
	all := MachineObstacles(p.Capabilities, p.HostBytes, p.Processes)
	if !p.Hooked {
		all = append(all, &Obstacle{NeedHook, "the launch hook is not loaded", "start the job with `penstock run`"})
	}
	if len(p.MissedRoutes) > 0 {
		all = append(all, &Obstacle{NeedEveryRoute, "launches by way of " + strings.Join(p.MissedRoutes, " and ") + " pass the hook by, and would meet memory that is away",
			"see `penstock doctor`, or " + useManaged})
	}
	if p.Policy == "naive" || p.Policy == "deepum" {
		all = append(all, &Obstacle{NeedPolicy, "policy " + p.Policy + " is of the managed engine", "use --policy penstock or lru, or " + useManaged})
	}
	return all
}
