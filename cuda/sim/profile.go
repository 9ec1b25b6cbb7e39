package sim

import (
	"fmt"
	"strings"
	"time"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// Profile holds every constant of one simulated card, its bus and its driver.
// Rates are in bytes per second (decimal), costs in time. A Profile is a plain
// value: copy one and change a field to ask "what if".
type Profile struct {
	// Name is what users type, such as "h200".
	Name string
	// DeviceName is what the driver would report, such as "NVIDIA H200".
	DeviceName string
	// ComputeMajor and ComputeMinor are the compute capability.
	ComputeMajor, ComputeMinor int
	// DriverVersion and CUDAVersion are what the simulated driver says it is.
	DriverVersion string
	CUDAVersion   int
	// MemoryBytes is the device memory that a process finds free on an idle card.
	MemoryBytes int64

	// CopyBytesPerSecond is one copy engine alone, pinned memory, either direction.
	CopyBytesPerSecond float64
	// DuplexBytesPerSecond is both directions together when both are busy.
	DuplexBytesPerSecond float64
	// ManagedCopyBytesPerSecond is one copy engine between managed and pinned memory.
	ManagedCopyBytesPerSecond float64
	// DeviceCopyBytesPerSecond is a copy that stays on the device.
	DeviceCopyBytesPerSecond float64
	// CopySubmit is what CopyAsync costs its caller.
	CopySubmit time.Duration
	// CopySetup is the time a copy engine spends on each copy besides moving its bytes.
	CopySetup time.Duration
	// RemoteReadBytesPerSecond and RemoteWriteBytesPerSecond are kernels that
	// reach into host memory in place.
	RemoteReadBytesPerSecond, RemoteWriteBytesPerSecond float64

	// PrefetchCall is the software cost of each range of a prefetch that has
	// something to do; threads overlap it. PrefetchResidentCall is the cost when
	// there is nothing to do.
	PrefetchCall, PrefetchResidentCall time.Duration
	// PrefetchBytesPerSecond is the transfer of a prefetch to the device once its
	// software part is done. It is shared by all managed moves.
	PrefetchBytesPerSecond float64
	// DuplicateBytesPerSecond is the same for a read-duplicating prefetch.
	DuplicateBytesPerSecond float64
	// PopulatePerGiB is the cost of giving device memory to pages that have no
	// contents (never touched, or discarded): no transfer.
	PopulatePerGiB time.Duration

	// ToHostCall is the software cost of each range of a prefetch to the host.
	ToHostCall time.Duration
	// ToHostCopyPerBlock, ToHostMapPerBlock and ToHostAllocPerBlock are the three
	// parts of prefetching a resident 2 MiB block to the host: the copy, mapping
	// its pages for the CPU and, when the host pages do not exist yet, making them.
	ToHostCopyPerBlock, ToHostMapPerBlock, ToHostAllocPerBlock time.Duration
	// ToHostDeadPerBlock is the same for a block without contents (discarded).
	ToHostDeadPerBlock time.Duration

	// DiscardPerGiB is the cost of discarding resident memory; DiscardCall of the call.
	DiscardPerGiB, DiscardCall time.Duration
	// DiscardKeepsMapping says that a discarded block stays mapped and goes to the
	// driver's "discarded" list (UVM_DISCARD without the unmap flag) instead of
	// being unmapped and going to the "unused" list.
	DiscardKeepsMapping bool

	// AdviseCall is one cuMemAdvise; UnduplicatePerGiB is added for device copies
	// that unsetting read-mostly drops.
	AdviseCall, UnduplicatePerGiB time.Duration
	// DuplicateWriteBytesPerSecond is a kernel that writes to read-duplicated memory.
	DuplicateWriteBytesPerSecond float64

	// FaultEntriesPerLeaf is how many fault entries the GPU raises for each 64 KiB
	// that it touches and misses, FaultEntriesPerBatch how many of them the driver
	// finds in one batch on average (256 is the most).
	FaultEntriesPerLeaf, FaultEntriesPerBatch float64
	// FaultBatch is the fixed cost of a batch, FaultEntry the cost of each entry in it.
	FaultBatch, FaultEntry time.Duration
	// FaultCopyBytesPerSecond is the transfer of faulted-in pages.
	FaultCopyBytesPerSecond float64
	// EvictBytesPerSecond is the driver's own eviction, which happens in the thread
	// that needs the chunk and serially with the move that needs it. No public
	// figure exists. It is set to what favours the demand-paging baseline: the bare
	// copy at the full rate of one direction, no CPU mapping, no host page
	// allocation, no software cost.
	EvictBytesPerSecond float64
	// PrefetchThresholdPercent is the share above which the tree prefetcher takes a subtree.
	PrefetchThresholdPercent int

	// Plain and pinned allocation.
	MemAllocCall, MemFreeCall, HostAllocCall time.Duration
	HostAllocBytesPerSecond                  float64
	// HostRegisterBytesPerSecond is pinning the caller's own memory, of huge pages that exist.
	HostRegisterBytesPerSecond float64
	ManagedAllocCall           time.Duration

	// Device and HostNUMA are the costs of virtual memory management calls on the two kinds of
	// handle when nothing else uses the card, DeviceInJob those on device handles once a job
	// has launched kernels: its threads call the same driver, on the same processor.
	Device, DeviceInJob, HostNUMA VMM
	// SetAccessManyExtra is added for each handle when one call sets access over several.
	SetAccessManyExtra time.Duration
	// MapTimeSlice is the longest that setting access waits for copies to the host,
	// because another one is always queued; 0 = it does not wait for them.
	MapTimeSlice time.Duration
	// ClearSetup and ClearBytesPerSecond are what it takes of the engine that copies to the device to clear
	// the memory of a handle that was released; 0 = it is not cleared.
	ClearSetup          time.Duration
	ClearBytesPerSecond float64
	// CopiesInSlowCPU and CopiesOutSlowCPU are by how much longer a job's own work on the CPU takes
	// while something crosses the bus to the device, and to the host: 0.1 is a tenth.
	CopiesInSlowCPU, CopiesOutSlowCPU float64
	// ReserveCall is cuMemAddressReserve and cuMemAddressFree.
	ReserveCall time.Duration

	// StreamCall is a cheap stream or event call (query, record, wait), and
	// StreamCreateCall is making or destroying one.
	StreamCall, StreamCreateCall time.Duration
}

// A CostPoint is what a call costs on a handle of Bytes.
type CostPoint struct {
	Bytes int64
	Cost  time.Duration
}

// Costs is a cost by handle size: measured points in rising order, a straight
// line between them, flat below the first and the last slope above the last.
type Costs []CostPoint

// At is the cost on a handle of bytes.
func (c Costs) At(bytes int64) time.Duration {
	switch {
	case len(c) == 0:
		return 0
	case len(c) == 1 || bytes <= c[0].Bytes:
		return c[0].Cost
	}
	i := 1
	for i < len(c)-1 && bytes > c[i].Bytes {
		i++
	}
	a, b := c[i-1], c[i]
	slope := float64(b.Cost-a.Cost) / float64(b.Bytes-a.Bytes)
	return max(0, a.Cost+time.Duration(slope*float64(bytes-a.Bytes)))
}

// VMM are the costs of the virtual memory management calls, per handle.
type VMM struct {
	Create, Map, SetAccess, Unmap, Release Costs
}

// ProfileByName finds a profile.
func ProfileByName(name string) (Profile, error) {
	var known []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p, nil
		}
		known = append(known, p.Name)
	}
	return Profile{}, fmt.Errorf("unknown GPU profile %q: use one of %s", name, strings.Join(known, ", "))
}
