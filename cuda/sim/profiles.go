package sim

import "time"

const us = time.Microsecond

// Profiles lists the built-in cards. Each call returns fresh values.
func Profiles() []Profile { return []Profile{h200(), a100(), v100()} }

// h200 is one NVIDIA H200 on PCIe 5 x16 with driver 580.159, measured on
// 2026-11-20. "Measured" below means there; what was
// fitted or chosen says so.
func h200() Profile {
	return Profile{
		Name:         "h200",
		DeviceName:   "NVIDIA H200",
		ComputeMajor: 9, ComputeMinor: 0,
		DriverVersion: "580.159.03",
		CUDAVersion:   13000,
		MemoryBytes:   139 * gib, // measured: free on an idle card

		CopyBytesPerSecond:        55e9,                   // measured, either direction
		DuplexBytesPerSecond:      92e9,                   // measured
		ManagedCopyBytesPerSecond: 52e9,                   // measured
		DeviceCopyBytesPerSecond:  1.95e12,                // measured: an HBM copy kernel moves 3.98 TB/s, read plus write
		CopySubmit:                1400 * time.Nanosecond, // measured
		CopySetup:                 2900 * time.Nanosecond, // fitted to 16 and 51 GB/s in pieces of 64 KiB and 2 MiB

		RemoteReadBytesPerSecond:  50e9, // measured
		RemoteWriteBytesPerSecond: 52e9, // measured

		PrefetchCall:            82 * us,   // fitted to 17 GB/s for 512 calls of 2 MiB
		PrefetchResidentCall:    6 * us,    // measured
		PrefetchBytesPerSecond:  48.5e9,    // measured: 48 for a call of 1 GiB, 50 for 4 threads of 16 MiB calls
		DuplicateBytesPerSecond: 36e9,      // measured: 26 to 46; the middle
		PopulatePerGiB:          4900 * us, // measured: discard and prefetch of a resident GiB in one call takes 8.7 ms, the discard alone 3.8

		ToHostCall:          10 * us,  // chosen: the rate was the same for every size of call
		ToHostCopyPerBlock:  46 * us,  // measured: 1.5 ms for 32 blocks
		ToHostMapPerBlock:   170 * us, // measured: 7.1 ms for 32 blocks, less the copies
		ToHostAllocPerBlock: 322 * us, // fitted to 3.9 GB/s the first time
		ToHostDeadPerBlock:  131 * us, // measured: 16 GB/s after a discard

		DiscardPerGiB: 3800 * us, // measured
		DiscardCall:   3 * us,    // chosen: half of a resident prefetch

		AdviseCall:                   5 * us,    // chosen, as a resident prefetch
		UnduplicatePerGiB:            1500 * us, // measured
		DuplicateWriteBytesPerSecond: 0.07e9,    // measured

		// Measured: 64 MiB raised 3,458 entries in 15 batches, and faults bring in
		// 8.7 GB/s. A GiB is then 123.4 ms, of which the copy at full rate is 19.5;
		// the rest is split between the batch (Allen and Ge, SC '21,
		// doi 10.1145/3458817.3480855: tens of microseconds each) and the entries.
		// Charging entries rather than blocks favours the demand-paging baseline
		// where accesses are sparse.
		FaultEntriesPerLeaf:      3458.0 / 1024,
		FaultEntriesPerBatch:     231,
		FaultBatch:               50 * us,
		FaultEntry:               1660 * time.Nanosecond,
		FaultCopyBytesPerSecond:  55e9,
		EvictBytesPerSecond:      55e9, // not public: the bare copy, see the field
		PrefetchThresholdPercent: 51,   // uvm_perf_prefetch_threshold

		MemAllocCall:               10 * us, // chosen, as creating a VMM handle
		MemFreeCall:                10 * us, // chosen, as releasing one
		HostAllocCall:              10 * us, // chosen
		HostAllocBytesPerSecond:    1.6e9,   // measured, one thread
		HostRegisterBytesPerSecond: 38e9,    // measured
		ManagedAllocCall:           10 * us, // chosen

		Device: VMM{ // measured at 2, 32 and 256 MiB
			Create:    Costs{{2 * mib, 11 * us}, {32 * mib, 11 * us}, {256 * mib, 18 * us}},
			Map:       Costs{{2 * mib, 1300}, {32 * mib, 900}, {256 * mib, 900}},
			SetAccess: Costs{{2 * mib, 27 * us}, {32 * mib, 25 * us}, {256 * mib, 40 * us}},
			Unmap:     Costs{{2 * mib, 20 * us}, {32 * mib, 15 * us}, {256 * mib, 19 * us}},
			Release:   Costs{{2 * mib, 12 * us}, {32 * mib, 22 * us}, {256 * mib, 104 * us}},
		},
		// Measured in jobs under the explicit engine: what an iteration added to worker_seconds
		// over the calls that it made (bench/results/explicit-larger-*.json; the fetches, which are
		// not in there, as simulated), medians of nine runs of four models in chunks of mostly 4 to
		// 32 MiB. Create took 22 to 35 us, map 3 to 12, release 26 to 44. Waiting for other threads' calls and for copies out is in what was
		// measured, 66 to 114 us to set access and 43 to 67 to unmap, and not here: these two are
		// fitted so that it comes out with what the simulator adds.
		DeviceInJob: VMM{
			Create:    Costs{{4 * mib, 22 * us}, {32 * mib, 32 * us}},
			Map:       Costs{{4 * mib, 6 * us}},
			SetAccess: Costs{{4 * mib, 46 * us}},
			Unmap:     Costs{{4 * mib, 36 * us}, {32 * mib, 50 * us}},
			Release:   Costs{{4 * mib, 26 * us}, {32 * mib, 42 * us}, {256 * mib, 124 * us}},
		},
		HostNUMA: VMM{ // measured at 2, 16 and 64 MiB, GPU access only
			Create:    Costs{{2 * mib, 478 * us}, {64 * mib, 13000 * us}},
			Map:       Costs{{2 * mib, 1500}, {16 * mib, 2 * us}, {64 * mib, 4 * us}},
			SetAccess: Costs{{2 * mib, 76 * us}, {16 * mib, 305 * us}, {64 * mib, 850 * us}},
			Unmap:     Costs{{2 * mib, 42 * us}, {16 * mib, 72 * us}, {64 * mib, 179 * us}},
			Release:   Costs{{2 * mib, 50 * us}},
		},
		SetAccessManyExtra: 9500,      // fitted: 18 ms for 512 handles of 2 MiB, 1.9 ms for 51 of 20 MiB
		MapTimeSlice:       1020 * us, // measured: 1.02 to 1.04 ms with copies to the host queued
		// Measured, what releasing 2 to 128 MiB takes from copies in (bench/results/vmm-create.json): copies out lose nothing.
		ClearSetup: 5 * us, ClearBytesPerSecond: 415e9,
		// Measured on GPT-2 medium in memory, copies at 45 to 54 GB/s beside it (bench/results/job-beside.json, mean of two
		// rounds: 13 and 5 %, both ways 19 %), of a machine whose processor others use as well.
		CopiesInSlowCPU: 0.13, CopiesOutSlowCPU: 0.06,
		ReserveCall: 5 * us, // chosen

		StreamCall:       us,      // chosen: a cheap driver call
		StreamCreateCall: 10 * us, // chosen
	}
}

// scaleBus takes the software costs of p as they are (they are the CPU's, and
// no public figures exist for these cards) and sets everything that crosses the
// bus from two public figures: one direction alone, and both together.
func (p Profile) scaleBus(oneWay, duplex float64) Profile {
	f := oneWay / p.CopyBytesPerSecond
	p.CopyBytesPerSecond = oneWay
	p.DuplexBytesPerSecond = duplex
	p.RemoteReadBytesPerSecond *= f
	p.RemoteWriteBytesPerSecond *= f
	p.PrefetchBytesPerSecond *= f
	p.ManagedCopyBytesPerSecond *= f
	p.DuplicateBytesPerSecond = min(p.DuplicateBytesPerSecond, p.PrefetchBytesPerSecond)
	p.FaultCopyBytesPerSecond = oneWay
	p.EvictBytesPerSecond = oneWay
	p.ToHostCopyPerBlock = time.Duration(float64(p.ToHostCopyPerBlock) / f)
	return p
}

// a100 is an NVIDIA A100 40 GB on PCIe 4 x16. Memory: NVIDIA A100 datasheet, 40
// GB HBM2 at 1,555 GB/s. Bus: nvbandwidth on A100s reports 24.8 GB/s each way
// alone, and 24 + 11 GB/s with both busy
// (forums.developer.nvidia.com/t/352186). Software costs are the H200's.
func a100() Profile {
	p := h200().scaleBus(24.8e9, 35e9)
	p.Name, p.DeviceName = "a100-40g-pcie4", "NVIDIA A100-PCIE-40GB"
	p.ComputeMajor, p.ComputeMinor = 8, 0
	p.MemoryBytes = 39 * gib // of 40, less what the driver and a context hold
	p.DeviceCopyBytesPerSecond = 1555e9 / 2
	return p
}

// v100 is an NVIDIA V100 32 GB on PCIe 3 x16, the card of the DeepUM paper
// (ASPLOS '23). Memory: NVIDIA V100 datasheet, 32 GB HBM2 at 900 GB/s. Bus:
// PCIe 3 x16 carries 15.75 GB/s each way (PCI-SIG) and about 12 GB/s of it with
// pinned memory (NVIDIA, "How to Optimize Data Transfers in CUDA C/C++" and the
// bandwidthTest sample); both ways together are taken as 1.67 times one, the
// ratio measured on the H200. Its driver is of the 575 branch, before CUDA 13:
// no batched prefetch and no discard, so it exercises what Penstock does without.
func v100() Profile {
	p := h200().scaleBus(12e9, 20e9)
	p.Name, p.DeviceName = "v100-32g-pcie3", "Tesla V100-PCIE-32GB"
	p.ComputeMajor, p.ComputeMinor = 7, 0
	p.DriverVersion, p.CUDAVersion = "575.57.08", 12090
	p.MemoryBytes = 31 * gib // of 32, less what the driver and a context hold
	p.DeviceCopyBytesPerSecond = 900e9 / 2
	return p
}
