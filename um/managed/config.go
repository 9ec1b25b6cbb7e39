package managed

import "github.com/penstock-gpu/penstock/um"

// BlockBytes is the unit of residency: the driver's va_block.
const BlockBytes = 2 << 20

// Config says how a Runtime behaves.
type Config struct {
	Policy          um.Policy
	BudgetBytes     int64 // device memory for tensors and plain memory together
	HostBudgetBytes int64 // host memory for what does not fit; 0 = as much as the arena has
	ArenaBytes      int64 // address space for tensors
	// DriverEvicts says that the card is really full, so that a prefetch makes
	// the driver evict the blocks that were made recent longest ago.
	DriverEvicts bool
	// AllWorkSeen says that no work reaches a stream without Runtime.Op being told,
	// as in a simulation. Never set it for a real process.
	AllWorkSeen bool
	// EvictionsSeen says that Runtime.Migrated is told of the driver's evictions.
	EvictionsSeen bool
	MoveBytes     int64 // most bytes in one move (default 32 MiB in, 8 MiB out)
	// LookaheadBytes is the most that is fetched ahead of need at a time; 0 = as much as fits.
	LookaheadBytes int64
	DegreeKernels  int // kernels that the deepum policy looks ahead (default 8)
}

const (
	defaultFetchBytes = 32 << 20
	defaultEvictBytes = 8 << 20
	defaultDegree     = 8
	// driverSliceBlocks is what arrives in one piece, so that the order in which
	// blocks become recent is the order in which moves end.
	driverSliceBlocks = 8
)

func (c Config) withDefaults() Config {
	if c.DegreeKernels == 0 {
		c.DegreeKernels = defaultDegree
	}
	return c
}

func (c Config) fetchBlocks() int32 {
	if c.MoveBytes > 0 {
		return int32(max(1, c.MoveBytes/BlockBytes))
	}
	if c.DriverEvicts {
		return driverSliceBlocks
	}
	return defaultFetchBytes / BlockBytes
}

func (c Config) evictBlocks() int32 {
	if c.MoveBytes > 0 {
		return int32(max(1, c.MoveBytes/BlockBytes))
	}
	return defaultEvictBytes / BlockBytes
}
