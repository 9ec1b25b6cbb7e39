package correlate

import (
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/schedule"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

// judged is how well one iteration of a schedule was foretold.
type judged struct {
	program        string
	ops, predicted int64
	until          int64   // operations before 32 in a row are predicted
	right, unknown float64 // of the bytes that are used again, whether what is next is known about right, or unknown
	never          float64 // or taken for never
	across         float64 // right of those that are used next in another iteration than this one
}

// judge runs a recording through a History, as an engine would, and compares what it foretells now and then with what comes.
func judge(t *testing.T, recording *trace.Trace, programs []string, h *History) []judged {
	t.Helper()
	const (
		page  = 2 << 20
		every = 500 // operations from one look to the next
		row   = 32
	)
	uses := map[uint64][]int64{} // positions, by allocation
	var op int64
	for _, e := range recording.Events {
		if e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy {
			for _, a := range e.Accesses {
				if u := uses[a.Alloc]; len(u) == 0 || u[len(u)-1] != op {
					uses[a.Alloc] = append(uses[a.Alloc], op)
				}
			}
			op++
		}
	}
	var ends []int64 // positions at which iterations end
	live, bytes := map[uint64]InstanceID{}, map[uint64]int64{}
	all := recording.Iterations()
	op = 0
	at := map[int]int64{}
	for i, e := range recording.Events {
		at[i] = op
		if e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy {
			op++
		}
	}
	for _, r := range all {
		ends = append(ends, at[r.End])
	}
	var out []judged
	var before HistoryStats
	var used, right, unknown, never, far, farRight float64
	var inRow, until int64
	close := func() {
		s := h.Stats()
		j := judged{program: programs[len(out)], ops: s.Ops - before.Ops, predicted: s.Predicted - before.Predicted, until: until}
		if until < 0 {
			j.until = j.ops
		}
		if used > 0 {
			j.right, j.unknown, j.never = right/used, unknown/used, never/used
		}
		if far > 0 {
			j.across = farRight / far
		}
		out = append(out, j)
	}
	for i, e := range recording.Events {
		if k := slices.IndexFunc(all, func(r trace.Range) bool { return r.First == i }); k >= 0 {
			if k > 0 {
				close()
			}
			before, inRow, until = h.stats, 0, -1
			used, right, unknown, never, far, farRight = 0, 0, 0, 0, 0, 0
		}
		switch e.Kind {
		case trace.KindAlloc:
			if e.Bytes >= page/2 {
				live[e.Alloc], bytes[e.Alloc] = h.Alloc((e.Bytes+page-1)/page*page), e.Bytes
			}
		case trace.KindFree:
			if id, ok := live[e.Alloc]; ok {
				h.Free(id)
				delete(live, e.Alloc)
			}
		case trace.KindLaunch, trace.KindCopy:
			var touched []InstanceID
			for _, a := range e.Accesses {
				if id, ok := live[a.Alloc]; ok && !slices.Contains(touched, id) {
					touched = append(touched, id)
				}
			}
			predicted := h.stats.Predicted
			h.Observe(uint64(e.Copy)<<40|uint64(e.Function), touched)
			if inRow++; h.stats.Predicted == predicted {
				inRow = 0
			}
			if inRow == row && until < 0 {
				until = h.Now() - before.Ops - row
			}
			if h.Now()%every != 0 || len(out) == len(all) {
				continue
			}
			for alloc, id := range live {
				k, _ := slices.BinarySearch(uses[alloc], h.Now())
				if k == len(uses[alloc]) || h.Now() > ends[len(out)] {
					continue
				}
				next, b := uses[alloc][k], float64(bytes[alloc])
				got := h.NextUse(id)
				off := max(got-next, next-got)
				ok := got < Unknown && off <= 32+(next-h.Now())/20
				used += b
				switch {
				case ok:
					right += b
				case got == Unknown:
					unknown += b
				case got == Never:
					never += b
				}
				if next >= ends[len(out)] {
					if far += b; ok {
						farRight += b
					}
				}
			}
		}
	}
	close()
	return out
}

// scheduled is a recording of a schedule, made of the one that ships.
func scheduled(t *testing.T, name string) (*trace.Trace, []string) {
	t.Helper()
	log, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	recording, programs, err := schedule.New(name, log)
	if err != nil {
		t.Fatal(err)
	}
	return recording, programs
}

// TestSchedules: where a job runs several programs by turns, each is found again within some operations, once the schedule has been
// seen, and what is needed next is known across the switch.
func TestSchedules(t *testing.T) {
	raced.Skip(t)
	for name, test := range map[string]struct {
		from  int     // the first iteration that is judged
		least float64 // predicted of each
		knows float64 // of the bytes that are needed again, when they are
	}{
		"accumulate":        {8, 0.99, 0.99},
		"gan":               {4, 0.99, 0.99},
		"train-eval":        {18, 0.99, 0.99},
		"train-eval-uneven": {18, 0.9, 0.3}, // for how long it goes on with either is not to be known
		"two-models":        {3, 0.99, 0.99},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recording, programs := scheduled(t, name)
			for i, j := range judge(t, recording, programs, NewHistory(HistoryConfig{})) {
				predicted := float64(j.predicted) / float64(j.ops)
				t.Logf("%2d %-20s %5d operations, %3.0f %% predicted, 32 in a row after %4d; of the bytes used next %3.0f %% known, %.0f %% unknown, %.0f %% taken for dead; across iterations %3.0f %% known",
					i, j.program, j.ops, 100*predicted, j.until, 100*j.right, 100*j.unknown, 100*j.never, 100*j.across)
				if i >= test.from && (predicted < test.least || j.right < test.knows || j.until > 100) {
					t.Errorf("iteration %d (%s)", i, j.program)
				}
			}
		})
	}
}
