package view

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/faults/analyse"
)

// Unit says how a column's values are shown to people.
type Unit uint8

// Units. Programs get bare numbers: bytes, seconds, shares of one.
const (
	Text Unit = iota
	Count
	Bytes
	Seconds
	Share
	Address
	Number
	Kernel // a kernel's name: people see it demangled
)

// Column is one column: ID never changes, Title is for people.
type Column struct {
	ID, Title string
	Unit      Unit
}

// Table is one view of a report. A cell is a string, int64, uint64, float64, or
// nil for what is not known, which is never shown as zero.
type Table struct {
	Name    string // stable
	Title   string
	Note    string // below the table, may be empty
	Columns []Column
	Rows    [][]any
}

// Views are all views of a report, by name, in order.
var Views = []struct {
	Name  string
	About string
	Make  func(r *analyse.Report) Table
}{
	{"summary", "totals of the run", summary},
	{"causes", "why pages were not there", causes},
	{"kernels", "faults by kernel", kernels},
	{"allocations", "faults and bytes by allocation", allocations},
	{"phases", "faults by phase of the iteration", phaseTable},
	{"iterations", "faults and bytes by iteration", iterations},
	{"migrations", "bytes moved by the driver's reason", migrations},
	{"timeline", "what happened over time", timeline},
	{"heatmap", "faults by address and time", heatmap},
	{"batches", "how the driver gathered faults", batchTable},
	{"predictor", "how well memory was fetched ahead", predictor},
	{"attribution", "on what grounds faults were given to kernels", attribution},
	{"processes", "faults by process", processes},
	{"um_total_sum", "totals, in the columns of nsys's report of that name", umTotal},
}

// ViewNames are the names of Views.
func ViewNames() []string {
	names := make([]string, len(Views))
	for i, v := range Views {
		names[i] = v.Name
	}
	return names
}

// Make makes the view of a name; false when there is none.
func Make(name string, r *analyse.Report) (Table, bool) {
	for _, v := range Views {
		if v.Name == name {
			t := v.Make(r)
			t.Name = name
			if t.Title == "" {
				t.Title = strings.ToUpper(v.About[:1]) + v.About[1:]
			}
			return t, true
		}
	}
	return Table{}, false
}

func summary(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"quantity", "", Text}, {"value", "", Text}, {"raw", "", Number}}}
	s := r.Summary
	add := func(name string, u Unit, v any) {
		t.Rows = append(t.Rows, []any{name, Cell(v, u), v})
	}
	unknown := func(is bool, v any) any {
		if is {
			return nil
		}
		return v
	}
	add("duration", Seconds, r.Seconds)
	add("events", Count, r.Events)
	add("lost events", Count, s.LostEvents)
	add("GPU faults", Count, s.Faults)
	add("serviced, merged by page", Count, s.ServicedFaults)
	add("of them by copy engines", Count, s.CopyEngineFaults)
	add("CPU faults", Count, s.CPUFaults)
	add("launches", Count, unknown(s.Launches == 0, s.Launches))
	add("moved to the device (HtoD)", Bytes, s.H2DBytes)
	add("moved to the host (DtoH)", Bytes, s.D2HBytes)
	add("brought in by faults", Bytes, s.FaultedBytes)
	add("evicted by the driver", Bytes, s.EvictedBytes)
	add("came back after leaving", Bytes, s.RefetchedBytes)
	add("distinct memory on the device", Bytes, s.DistinctBytes)
	add("resident at most", Bytes, s.ResidentPeakBytes)
	add("migration amplification", Number, unknown(s.DistinctBytes == 0, s.Amplification))
	add("bytes per fault", Bytes, unknown(s.Faults == 0, int64(s.BytesPerFault)))
	add("refetch distance, mean launches", Number, unknown(s.RefetchLaunches == 0, s.RefetchLaunches))
	add("stalled by faults", Seconds, s.StallSeconds)
	add("wasted prefetch", Bytes, unknown(r.Predictor.WastedBytes < 0, r.Predictor.WastedBytes))
	add("thrashing ranges", Count, s.ThrashEvents)
	add("remote mappings", Count, s.RemoteMappings)
	if d := s.Driver; d != nil {
		add("the driver's own count, serviced", Count, d.GPUFaults)
		add("the driver's own sum, HtoD", Bytes, d.H2DBytes)
		add("the driver's own sum, DtoH", Bytes, d.D2HBytes)
	}
	t.Note = strings.Join(r.Limits, "; ")
	if r.Damage != "" {
		t.Note = strings.TrimPrefix(t.Note+"; only the intact part was read: "+r.Damage, "; ")
	}
	return t
}

func causes(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"cause", "Cause", Text}, {"gpu_page_faults", "GPU faults", Count}, {"share", "Share", Share}}}
	for _, c := range r.Causes {
		t.Rows = append(t.Rows, []any{c.Cause, c.Faults, c.Share})
	}
	return t
}

// MainCause is the commonest cause, "" when there is none.
func MainCause(m map[string]int64) string {
	best, most := "", int64(0)
	for _, c := range slices.Sorted(keys(m)) {
		if m[c] > most {
			best, most = c, m[c]
		}
	}
	return best
}

func keys(m map[string]int64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func kernels(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"kernel", "Kernel", Kernel}, {"launches", "Launches", Count}, {"gpu_page_faults", "GPU faults", Count},
		{"share", "Share", Share}, {"main_cause", "Mostly", Text}, {"faulted_bytes", "Brought in", Bytes}, {"stall_seconds", "Stalled", Seconds}, {"evicted_bytes", "Evicted meanwhile", Bytes}}}
	for _, k := range r.Kernels {
		t.Rows = append(t.Rows, []any{k.Kernel, k.Launches, k.Faults, share(k.Faults, r.Summary.Faults), MainCause(k.Causes), k.FaultedBytes, k.StallSeconds, k.EvictedBytes})
	}
	return t
}

func share(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func allocations(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"site", "Allocation", Text}, {"virtual_address", "Address", Address}, {"size_bytes", "Size", Bytes}, {"count", "Allocated", Count}, {"gpu_page_faults", "GPU faults", Count},
		{"main_cause", "Mostly", Text}, {"htod_migration_size", "HtoD", Bytes}, {"dtoh_migration_size", "DtoH", Bytes}, {"amplification", "Amplification", Number},
		{"refetch_launches", "Refetch distance", Number}, {"wasted_bytes", "Wasted prefetch", Bytes}},
		Note: "Where nothing came in (HtoD 0 B), the driver made the pages on the GPU at their first touch."}
	for _, a := range r.Allocations {
		var amplification, distance any
		if a.Bytes > 0 && a.H2DBytes > 0 {
			amplification = float64(a.H2DBytes) / float64(a.Bytes)
		}
		if a.Refetches > 0 {
			distance = a.RefetchLaunches
		}
		t.Rows = append(t.Rows, []any{a.Site, a.Address, a.Bytes, a.Count, a.Faults, MainCause(a.Causes), a.H2DBytes, a.D2HBytes, amplification, distance, a.WastedBytes})
	}
	return t
}

func phaseTable(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"phase", "Phase", Text}, {"launches", "Launches", Count}, {"gpu_page_faults", "GPU faults", Count}, {"share", "Share", Share},
		{"main_cause", "Mostly", Text}, {"faulted_bytes", "Brought in", Bytes}, {"stall_seconds", "Stalled", Seconds}},
		Note: "Phases are inferred from the names of kernels."}
	for _, p := range r.Phases {
		t.Rows = append(t.Rows, []any{p.Phase, p.Launches, p.Faults, share(p.Faults, r.Summary.Faults), MainCause(p.Causes), p.FaultedBytes, p.StallSeconds})
	}
	return t
}

func iterations(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"iteration", "Iteration", Count}, {"begin_seconds", "Begins at", Seconds}, {"seconds", "Takes", Seconds}, {"launches", "Launches", Count},
		{"gpu_page_faults", "GPU faults", Count}, {"htod_migration_size", "HtoD", Bytes}, {"dtoh_migration_size", "DtoH", Bytes}}}
	for _, i := range r.Iterations {
		t.Rows = append(t.Rows, []any{int64(i.Number), i.Begin, i.Seconds, i.Launches, i.Faults, i.H2DBytes, i.D2HBytes})
	}
	return t
}

func migrations(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"migration_cause", "Cause", Text}, {"htod_migration_size", "HtoD", Bytes}, {"dtoh_migration_size", "DtoH", Bytes}}}
	for _, m := range r.Migrations {
		t.Rows = append(t.Rows, []any{m.Cause, m.H2DBytes, m.D2HBytes})
	}
	return t
}

func timeline(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"seconds", "From", Seconds}, {"gpu_page_faults", "GPU faults", Count}, {"cpu_page_faults", "CPU faults", Count}, {"htod_migration_size", "HtoD", Bytes},
		{"dtoh_migration_size", "DtoH", Bytes}, {"prefetched_bytes", "Prefetched", Bytes}, {"evicted_bytes", "Evicted", Bytes}, {"resident_bytes", "Resident", Bytes}}}
	for _, b := range r.Timeline.Buckets {
		t.Rows = append(t.Rows, []any{b.Seconds, b.Faults, b.CPUFaults, b.H2DBytes, b.D2HBytes, b.PrefetchedBytes, b.EvictedBytes, b.ResidentBytes})
	}
	return t
}

func heatmap(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"virtual_address", "Address", Address}, {"seconds", "From", Seconds}, {"gpu_page_faults", "GPU faults", Count}},
		Note: fmt.Sprintf("One row for every %s and %s with faults.", Cell(int64(r.Heat.RowBytes), Bytes), Cell(r.Heat.ColumnSeconds, Seconds))}
	for _, row := range r.Heat.Rows {
		for i, n := range row.Faults {
			if n > 0 {
				t.Rows = append(t.Rows, []any{row.Address, float64(i) * r.Heat.ColumnSeconds, int64(n)})
			}
		}
	}
	return t
}

func batchTable(r *analyse.Report) Table {
	b := r.Batches
	t := Table{Columns: []Column{{"faults", "Faults in a batch", Text}, {"batches", "Batches", Count}, {"batches_by_blocks", "Batches with so many changes of 2 MiB block", Count}},
		Note: fmt.Sprintf("%s batches of %.1f faults on average and %d at most; %s faults were on the page of the one before.", Cell(b.Count, Count), b.MeanFaults, b.MostFaults, Cell(b.Duplicates, Count))}
	at := func(n []int64, i int) int64 {
		if i < len(n) {
			return n[i]
		}
		return 0
	}
	for i := range max(len(b.BySize), len(b.ByBlocks)) {
		label := fmt.Sprintf("%d to %d", 1<<i, 2<<i-1)
		if i == 0 {
			label = "1"
		}
		t.Rows = append(t.Rows, []any{label, at(b.BySize, i), at(b.ByBlocks, i)})
	}
	return t
}

func predictor(r *analyse.Report) Table {
	p := r.Predictor
	var wasted, accuracy any
	if p.WastedBytes >= 0 {
		wasted = p.WastedBytes
		if p.PrefetchedBytes > 0 {
			accuracy = 1 - share(p.WastedBytes, p.PrefetchedBytes)
		}
	}
	return Table{Columns: []Column{{"prefetched_bytes", "Prefetched", Bytes}, {"coverage", "Of all that came in", Share}, {"wasted_bytes", "Wasted", Bytes}, {"accuracy", "Not wasted", Share},
		{"late_faults", "Faults: too late", Count}, {"missed_faults", "Faults: never predicted", Count}},
		Rows: [][]any{{p.PrefetchedBytes, p.Coverage, wasted, accuracy, p.LateFaults, p.MissedFaults}}}
}

func attribution(r *analyse.Report) Table {
	a := r.Attribution
	t := Table{Columns: []Column{{"grounds", "Grounds", Text}, {"gpu_page_faults", "GPU faults", Count}, {"share", "Share", Share}}}
	for _, x := range []struct {
		what string
		n    int64
	}{{"the only operation that ran", a.ByProgress}, {"of several that ran, it names the allocation", a.ByAccess}, {"the first of several that ran", a.ByOrder},
		{"the last launch before the fault", a.ByLaunch}, {"raised by a copy engine", a.CopyEngine}, {"no launch was seen", a.None}} {
		t.Rows = append(t.Rows, []any{x.what, x.n, share(x.n, r.Summary.Faults)})
	}
	return t
}

func processes(r *analyse.Report) Table {
	t := Table{Columns: []Column{{"process", "Process", Text}, {"gpu_page_faults", "GPU faults", Count}, {"htod_migration_size", "HtoD", Bytes}, {"dtoh_migration_size", "DtoH", Bytes}}}
	for _, p := range r.Processes {
		name := strconv.FormatUint(uint64(p.Process), 10)
		switch p.Process {
		case 0:
			name = "(recorded)"
			if r.Header.Process != 0 {
				name = strconv.Itoa(r.Header.Process)
			}
		case math.MaxUint32:
			name = "(others)"
		}
		t.Rows = append(t.Rows, []any{name, p.Faults, p.H2DBytes, p.D2HBytes})
	}
	return t
}

func umTotal(r *analyse.Report) Table {
	s := r.Summary
	var low, high any
	for _, a := range r.Allocations {
		if a.Address == 0 {
			continue
		}
		if low == nil || a.Address < low.(uint64) {
			low = a.Address
		}
		if high == nil || a.Address+uint64(a.Bytes) > high.(uint64) {
			high = a.Address + uint64(a.Bytes)
		}
	}
	return Table{Columns: []Column{{"total_htod_migration_size", "Total HtoD Migration Size", Bytes}, {"total_dtoh_migration_size", "Total DtoH Migration Size", Bytes},
		{"total_cpu_page_faults", "Total CPU Page Faults", Count}, {"total_gpu_page_faults", "Total GPU Page Faults", Count},
		{"minimum_virtual_address", "Minimum Virtual Address", Address}, {"maximum_virtual_address", "Maximum Virtual Address", Address}},
		Rows: [][]any{{s.H2DBytes, s.D2HBytes, s.CPUFaults, s.Faults, low, high}}}
}
