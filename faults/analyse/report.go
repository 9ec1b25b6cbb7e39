package analyse

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/trace/phase"
)

// Report is everything that an analysis found out. Its JSON is what
// `penstock faults report --format json` prints. Counts are of events, sizes in
// bytes, times in seconds since the recording's first event.
type Report struct {
	Trace   string       `json:"trace,omitempty"`
	Header  trace.Header `json:"header"`
	Events  int64        `json:"events"`
	Seconds float64      `json:"seconds"`
	Damage  string       `json:"damage,omitempty"` // why the recording was not read to its end

	Summary     Summary      `json:"summary"`
	Attribution Attribution  `json:"attribution"`
	Causes      []CauseRow   `json:"causes"`
	Kernels     []KernelRow  `json:"kernels"`
	Allocations []AllocRow   `json:"allocations"`
	Phases      []PhaseRow   `json:"phases"`
	Iterations  []Iteration  `json:"iterations"`
	Processes   []ProcessRow `json:"processes"`
	Migrations  []MoveRow    `json:"migrations"`
	Timeline    Timeline     `json:"timeline"`
	Heat        Heat         `json:"heat"`
	Batches     Batches      `json:"batches"`
	Predictor   Predictor    `json:"predictor"`
	Pairs       []PairRow    `json:"-"`
	Limits      []string     `json:"limits,omitempty"` // tables that were full, what could not be seen
}

// Summary are the totals.
type Summary struct {
	Faults            int64   `json:"faults"`          // as reported: each of several threads' on one page
	ServicedFaults    int64   `json:"serviced_faults"` // as the driver services and counts them: those of a batch on one page once
	CopyEngineFaults  int64   `json:"copy_engine_faults"`
	CPUFaults         int64   `json:"cpu_faults"`
	H2DBytes          int64   `json:"h2d_bytes"`
	D2HBytes          int64   `json:"d2h_bytes"`
	H2DMigrations     int64   `json:"h2d_migrations"`
	D2HMigrations     int64   `json:"d2h_migrations"`
	FaultedBytes      int64   `json:"faulted_bytes"`    // came by faults: those asked for and what the driver added
	EvictedBytes      int64   `json:"evicted_bytes"`    // by the driver, to make room
	DistinctBytes     int64   `json:"distinct_bytes"`   // of pages that were ever on a GPU
	RefetchedBytes    int64   `json:"refetched_bytes"`  // came back after they had left
	Amplification     float64 `json:"amplification"`    // bytes brought in over distinct bytes
	BytesPerFault     float64 `json:"bytes_per_fault"`  // brought in by faults
	RefetchLaunches   float64 `json:"refetch_launches"` // mean launches between leaving and the fault
	ResidentPeakBytes int64   `json:"resident_peak_bytes"`
	ResidentBytes     int64   `json:"resident_bytes"` // at the end
	StallSeconds      float64 `json:"stall_seconds"`  // from a fault until its bytes were there, overlaps once
	Launches          int64   `json:"launches"`
	LostEvents        int64   `json:"lost_events"`
	ThrashEvents      int64   `json:"thrash_events"`
	RemoteMappings    int64   `json:"remote_mappings"`
	// Driver are the driver's own sums, if they were recorded.
	Driver *Counters `json:"driver,omitempty"`
}

// Attribution says on what grounds faults were given to kernels.
type Attribution struct {
	ByProgress int64 `json:"by_progress"` // the only operation that ran
	ByAccess   int64 `json:"by_access"`   // of several, the one that names the allocation
	ByOrder    int64 `json:"by_order"`    // the first of several
	ByLaunch   int64 `json:"by_launch"`   // no progress recorded: the last launch before the fault
	CopyEngine int64 `json:"copy_engine"`
	None       int64 `json:"none"` // no launch was seen
}

// CauseRow is one cause of faults.
type CauseRow struct {
	Cause  string  `json:"cause"`
	Faults int64   `json:"faults"`
	Share  float64 `json:"share"`
}

// KernelRow is one kernel.
type KernelRow struct {
	Kernel       string           `json:"kernel"`
	Launches     int64            `json:"launches"`
	Faults       int64            `json:"faults"`
	Causes       map[string]int64 `json:"causes,omitempty"`
	FaultedBytes int64            `json:"faulted_bytes"`
	StallSeconds float64          `json:"stall_seconds"`
	EvictedBytes int64            `json:"evicted_bytes"` // by the driver while it ran
}

// AllocRow is allocations of one place in the program, or of one size at one address.
type AllocRow struct {
	Site            string           `json:"site,omitempty"` // innermost frame first
	Address         uint64           `json:"address,omitempty"`
	Bytes           int64            `json:"bytes"`
	Count           int64            `json:"count"`
	Faults          int64            `json:"faults"`
	Causes          map[string]int64 `json:"causes,omitempty"`
	H2DBytes        int64            `json:"h2d_bytes"`
	D2HBytes        int64            `json:"d2h_bytes"`
	Refetches       int64            `json:"refetches"`
	RefetchLaunches float64          `json:"refetch_launches"`
	WastedBytes     int64            `json:"wasted_bytes"`
}

// Name is what the row is called.
func (r *AllocRow) Name() string {
	if r.Site != "" {
		return r.Site
	}
	return fmt.Sprintf("%#x", r.Address)
}

// PairRow is one combination of kernel, allocation, phase and cause.
type PairRow struct {
	Kernel, Allocation   string
	AllocationBytes      int64
	Phase, Cause         string
	Faults, FaultedBytes int64
	StallSeconds         float64
}

// PhaseRow is one phase of the iteration.
type PhaseRow struct {
	Phase        string           `json:"phase"`
	Launches     int64            `json:"launches"`
	Faults       int64            `json:"faults"`
	Causes       map[string]int64 `json:"causes,omitempty"`
	FaultedBytes int64            `json:"faulted_bytes"`
	StallSeconds float64          `json:"stall_seconds"`
}

// Iteration is one iteration.
type Iteration struct {
	Number   int     `json:"number"`
	Begin    float64 `json:"begin_seconds"`
	Seconds  float64 `json:"seconds"`
	Launches int64   `json:"launches"`
	Faults   int64   `json:"faults"`
	H2DBytes int64   `json:"h2d_bytes"`
	D2HBytes int64   `json:"d2h_bytes"`
}

// ProcessRow is one process; id 0 is the recorded one.
type ProcessRow struct {
	Process  uint32 `json:"process"`
	Faults   int64  `json:"faults"`
	H2DBytes int64  `json:"h2d_bytes"`
	D2HBytes int64  `json:"d2h_bytes"`
}

// MoveRow is the bytes moved for one of the driver's reasons.
type MoveRow struct {
	Cause    string `json:"cause"`
	H2DBytes int64  `json:"h2d_bytes"`
	D2HBytes int64  `json:"d2h_bytes"`
}

// Timeline is what happened over time, in buckets of equal width.
type Timeline struct {
	BucketSeconds float64         `json:"bucket_seconds"`
	Buckets       []TimelineEntry `json:"buckets"`
}

// TimelineEntry is one bucket.
type TimelineEntry struct {
	Seconds         float64 `json:"seconds"` // since the recording's first event
	Faults          int64   `json:"faults"`
	CPUFaults       int64   `json:"cpu_faults"`
	H2DBytes        int64   `json:"h2d_bytes"`
	D2HBytes        int64   `json:"d2h_bytes"`
	PrefetchedBytes int64   `json:"prefetched_bytes"`
	EvictedBytes    int64   `json:"evicted_bytes"`
	ResidentBytes   int64   `json:"resident_bytes"` // at most; carried on where nothing moved
}

// Heat is faults by address and time. Stretches without a fault are left out.
type Heat struct {
	RowBytes      uint64    `json:"row_bytes"`
	ColumnSeconds float64   `json:"column_seconds"`
	Rows          []HeatRow `json:"rows"`
}

// HeatRow is one stretch of addresses: faults by column of time, without the zeros at the end.
type HeatRow struct {
	Address uint64   `json:"address"`
	Faults  []uint32 `json:"faults"`
}

// Batches is how the driver gathered faults.
type Batches struct {
	Count      int64   `json:"count"`
	MeanFaults float64 `json:"mean_faults"`
	MostFaults int64   `json:"most_faults"`
	Duplicates int64   `json:"duplicates"` // faults on the page of the one before in the batch
	BySize     []int64 `json:"by_size"`    // entry i: batches of 2^i to 2^(i+1)-1 faults
	ByBlocks   []int64 `json:"by_blocks"`  // the same by changes of the 2 MiB block
}

// Predictor is how well memory was fetched ahead of need.
type Predictor struct {
	PrefetchedBytes int64   `json:"prefetched_bytes"`
	WastedBytes     int64   `json:"wasted_bytes"` // left again without a launch that names them; -1 when no launches were seen
	Coverage        float64 `json:"coverage"`     // prefetched bytes over all that came in
	LateFaults      int64   `json:"late_faults"`
	MissedFaults    int64   `json:"missed_faults"` // never predicted
}

var moveNames = [...]string{"unknown", "user prefetch", "coherence fault", "speculative prefetch", "eviction", "access counter"}

// Report gives what is known so far; final says that no event will follow.
// Without it the last moments, which may not be complete, are left out.
func (a *Analyser) Report(final bool) *Report {
	if final {
		a.finish()
	} else {
		a.catchUp()
	}
	s := &a.sum
	r := &Report{Header: a.header, Events: a.events, Seconds: (a.now - a.first).Seconds()}
	r.Summary = Summary{
		Faults: s.faults, ServicedFaults: s.serviced, CopyEngineFaults: s.copyFaults, CPUFaults: s.cpuFaults,
		H2DBytes: s.inBytes(), D2HBytes: s.outBytes(), H2DMigrations: s.moves[1], D2HMigrations: s.moves[0],
		FaultedBytes: s.in[trace.CauseCoherence] + s.in[trace.CausePrefetch], EvictedBytes: s.out[trace.CauseEviction],
		DistinctBytes: s.distinct, RefetchedBytes: s.refetchedBytes,
		ResidentPeakBytes: s.residentPeak, ResidentBytes: s.resident, StallSeconds: s.stalled.Seconds(),
		Launches: a.ops.launches, LostEvents: s.lost, ThrashEvents: s.thrashes, RemoteMappings: s.remote, Driver: s.counters,
	}
	r.Summary.Amplification = ratio(float64(r.Summary.H2DBytes), float64(s.distinct))
	r.Summary.BytesPerFault = ratio(float64(r.Summary.FaultedBytes), float64(s.faults))
	r.Summary.RefetchLaunches = ratio(float64(s.distance), float64(s.refetches))
	r.Attribution = Attribution{ByProgress: a.how[byProgress], ByAccess: a.how[byAccess], ByOrder: a.how[byOrder],
		ByLaunch: a.how[byLaunch], CopyEngine: a.how[byEngine], None: a.how[byNothing]}
	for c := range Causes {
		r.Causes = append(r.Causes, CauseRow{Cause: c.String(), Faults: s.causes[c], Share: ratio(float64(s.causes[c]), float64(s.faults))})
	}
	a.reportKernels(r)
	a.reportAllocs(r)
	for p := range a.phaseRows {
		x := &a.phaseRows[p]
		if x.launches > 0 || x.faults.Total() > 0 {
			r.Phases = append(r.Phases, PhaseRow{Phase: Phase(p).String(), Launches: x.launches, Faults: x.faults.Total(),
				Causes: named(&x.faults), FaultedBytes: x.in, StallSeconds: x.stalled.Seconds()})
		}
	}
	for i, x := range a.rows {
		r.Iterations = append(r.Iterations, Iteration{Number: i, Begin: a.since(x.begin).Seconds(), Seconds: (x.end - x.begin).Seconds(),
			Launches: x.launches, Faults: x.faults, H2DBytes: x.in, D2HBytes: x.out})
	}
	for pid, x := range a.processes {
		r.Processes = append(r.Processes, ProcessRow{Process: pid, Faults: x.faults, H2DBytes: x.in, D2HBytes: x.out})
	}
	slices.SortFunc(r.Processes, func(a, b ProcessRow) int {
		return cmp.Or(cmp.Compare(b.Faults, a.Faults), cmp.Compare(a.Process, b.Process))
	})
	for c := range moveNames {
		if s.in[c] > 0 || s.out[c] > 0 {
			r.Migrations = append(r.Migrations, MoveRow{Cause: moveNames[c], H2DBytes: s.in[c], D2HBytes: s.out[c]})
		}
	}
	a.reportPairs(r)
	a.reportPlots(r)
	b := &a.batches
	r.Batches = Batches{Count: b.count, MeanFaults: ratio(float64(s.faults), float64(b.count)), MostFaults: b.most, Duplicates: b.duplicates,
		BySize: trimmed(b.sizes[:]), ByBlocks: trimmed(b.spread[:])}
	r.Predictor = Predictor{PrefetchedBytes: s.prefetched, WastedBytes: s.wasted, Coverage: ratio(float64(s.prefetched), float64(r.Summary.H2DBytes)),
		LateFaults: s.causes[PrefetchedLate], MissedFaults: s.causes[NeverPredicted]}
	if a.ops.launches == 0 {
		r.Predictor.WastedBytes = -1
	}
	a.reportLimits(r)
	return r
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func trimmed(n []int64) []int64 {
	for len(n) > 0 && n[len(n)-1] == 0 {
		n = n[:len(n)-1]
	}
	return slices.Clone(n)
}

func named(c *CauseCounts) map[string]int64 {
	m := map[string]int64{}
	for i, n := range c {
		if n != 0 {
			m[causeNames[i]] = n
		}
	}
	return m
}

func (a *Analyser) reportKernels(r *Report) {
	all := []*kernel{a.ops.unknown, a.ops.copies}
	if a.ops.others != nil {
		all = append(all, a.ops.others)
	}
	for _, k := range a.ops.kernels {
		all = append(all, k)
	}
	for _, k := range all {
		if k.launches == 0 && k.faults.Total() == 0 {
			continue
		}
		r.Kernels = append(r.Kernels, KernelRow{Kernel: k.name, Launches: k.launches, Faults: k.faults.Total(), Causes: named(&k.faults),
			FaultedBytes: k.bytes, StallSeconds: k.stalled.Seconds(), EvictedBytes: k.evicted})
	}
	slices.SortFunc(r.Kernels, func(a, b KernelRow) int {
		return cmp.Or(cmp.Compare(b.Faults, a.Faults), cmp.Compare(b.EvictedBytes, a.EvictedBytes), cmp.Compare(b.Launches, a.Launches), cmp.Compare(a.Kernel, b.Kernel))
	})
}

func (a *Analyser) reportAllocs(r *Report) {
	all := []*allocRow{a.allocs.unknown}
	if a.allocs.others != nil {
		all = append(all, a.allocs.others)
	}
	for _, x := range a.allocs.rows {
		all = append(all, x)
	}
	for _, x := range all {
		if x.count == 0 && x.faults.Total() == 0 && x.in == 0 && x.out == 0 {
			continue
		}
		r.Allocations = append(r.Allocations, AllocRow{Site: x.site, Address: x.address, Bytes: x.bytes, Count: x.count, Faults: x.faults.Total(),
			Causes: named(&x.faults), H2DBytes: x.in, D2HBytes: x.out, Refetches: x.refetches,
			RefetchLaunches: ratio(float64(x.distance), float64(x.refetches)), WastedBytes: x.wasted})
	}
	slices.SortFunc(r.Allocations, func(a, b AllocRow) int {
		return cmp.Or(cmp.Compare(b.Faults, a.Faults), cmp.Compare(b.H2DBytes+b.D2HBytes, a.H2DBytes+a.D2HBytes), cmp.Compare(b.Bytes, a.Bytes),
			cmp.Compare(a.Address, b.Address), cmp.Compare(a.Site, b.Site))
	})
}

func (a *Analyser) reportPairs(r *Report) {
	for k, p := range a.pairs {
		if p.faults != 0 || p.bytes != 0 {
			r.Pairs = append(r.Pairs, PairRow{Kernel: k.kernel.name, Allocation: k.alloc.name(), AllocationBytes: k.alloc.bytes, Phase: k.phase.String(),
				Cause: k.cause.String(), Faults: p.faults, FaultedBytes: p.bytes, StallSeconds: p.stalled.Seconds()})
		}
	}
	if p := a.otherPairs; p.faults != 0 || p.bytes != 0 {
		r.Pairs = append(r.Pairs, PairRow{Kernel: "(others)", Allocation: "(others)", Phase: phase.Unknown.String(), Faults: p.faults, FaultedBytes: p.bytes, StallSeconds: p.stalled.Seconds()})
	}
	slices.SortFunc(r.Pairs, func(a, b PairRow) int {
		return cmp.Or(cmp.Compare(b.Faults, a.Faults), cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Allocation, b.Allocation), cmp.Compare(a.AllocationBytes, b.AllocationBytes),
			cmp.Compare(a.Phase, b.Phase), cmp.Compare(a.Cause, b.Cause))
	})
}

func (a *Analyser) reportPlots(r *Report) {
	t := &a.timeline
	r.Timeline.BucketSeconds = t.width.Seconds()
	var resident int64
	for i, b := range t.all {
		if b.resident > 0 || b.in > 0 || b.out > 0 {
			resident = b.resident
		}
		r.Timeline.Buckets = append(r.Timeline.Buckets, TimelineEntry{Seconds: (time.Duration(i) * t.width).Seconds(), Faults: b.faults, CPUFaults: b.cpuFaults,
			H2DBytes: b.in, D2HBytes: b.out, PrefetchedBytes: b.prefetched, EvictedBytes: b.evicted, ResidentBytes: resident})
	}
	h := &a.heat
	r.Heat.RowBytes, r.Heat.ColumnSeconds = 1<<h.shift, h.width.Seconds()
	for _, k := range h.keys() {
		row := h.rows[k]
		n := heatColumns
		for n > 0 && row[n-1] == 0 {
			n--
		}
		r.Heat.Rows = append(r.Heat.Rows, HeatRow{Address: k << h.shift, Faults: slices.Clone(row[:n])})
	}
}

func (a *Analyser) reportLimits(r *Report) {
	say := func(yes bool, format string, args ...any) {
		if yes {
			r.Limits = append(r.Limits, fmt.Sprintf(format, args...))
		}
	}
	if a.header.Lacks != "" {
		r.Limits = append(r.Limits, "the recorder could not see: "+a.header.Lacks)
	}
	for _, what := range a.lacks {
		r.Limits = append(r.Limits, "the recorder could not see: "+what)
	}
	say(a.ops.launches == 0 && a.sum.faults > 0, "no launches were recorded: faults have no kernels")
	say(a.ops.launches > 0 && !a.ops.progress && a.sum.faults > 0, "no progress of streams was recorded: kernels are those launched last before the fault")
	say(a.order.late > 0, "%d events came so late after others (by %v, or %d events) that they may be attributed wrongly", a.order.late, horizon, heldEvents)
	say(a.ops.overflowed, "more than %d kernels, or %d bytes of names: the rest is counted as (others)", maxKernels, mangledBytes)
	say(a.allocs.overflowed, "more than %d kinds of allocation: the rest is counted as (others)", maxRows)
	say(a.allocs.refused > 0, "%d allocations without a size or beyond %d live ones were left out", a.allocs.refused, maxLive)
	say(a.blocks.overflow > 0, "%d events beyond %d blocks of 2 MiB have no cause", a.blocks.overflow, maxBlocks)
	say(a.effort.spent, "some migrations were longer than any real one and are not followed page by page")
	say(a.sum.nonsense > 0, "%d migrations of impossible ranges were left out", a.sum.nonsense)
	say(len(a.rows) == maxIterations, "only the first %d iterations are listed", maxIterations)
	if c := a.sum.counters; c != nil {
		say(c.H2DBytes != r.Summary.H2DBytes || c.D2HBytes != r.Summary.D2HBytes,
			"the driver itself counts %d bytes to the device and %d to the host, the events %d and %d", c.H2DBytes, c.D2HBytes, r.Summary.H2DBytes, r.Summary.D2HBytes)
		say(c.GPUFaults != a.sum.serviced, "the driver itself counts %d serviced faults, the events tell of %d", c.GPUFaults, a.sum.serviced)
	}
}
