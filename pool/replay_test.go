package pool

import (
	"strings"
	"sync"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// vmm is a driver that maps nothing: addresses and handles are numbers.
type vmm struct {
	mu   sync.Mutex
	next cuda.Ptr
	used int64
	cap  int64
}

func (v *vmm) BindThread() error  { return nil }
func (v *vmm) Granularity() int64 { return 2 * mib }
func (v *vmm) MemCreate(int64, cuda.Location) (cuda.Handle, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next++
	return cuda.Handle(v.next), nil
}
func (v *vmm) MemRelease(cuda.Handle) error { return nil }
func (v *vmm) AddressReserve(bytes, _ int64, _ cuda.Ptr) (cuda.Ptr, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := (v.next + 4*mib) / (2 * mib) * (2 * mib)
	v.next = p + cuda.Ptr(bytes)
	return p, nil
}
func (v *vmm) AddressFree(cuda.Ptr, int64) error      { return nil }
func (v *vmm) Map(cuda.Ptr, int64, cuda.Handle) error { return nil }
func (v *vmm) Unmap(cuda.Ptr, int64) error            { return nil }
func (v *vmm) SetAccess(cuda.Ptr, int64) error        { return nil }
func (v *vmm) Take(bytes int64) error {
	if v.cap > 0 && v.used+bytes > v.cap {
		return errFull
	}
	v.used += bytes
	return nil
}
func (v *vmm) Give(bytes int64)          { v.used -= bytes }
func (v *vmm) Fence(uint64) (any, error) { return 1, nil }
func (v *vmm) Passed(any) bool           { return true }
func (v *vmm) Wait(any) error            { return nil }

// job replays a recorded job for as many iterations as wanted.
type job struct {
	start, iteration []trace.Event
}

func newJob(t testing.TB, name string) job {
	tr := testlogs.Load(t, name)
	var marks []int
	for i, e := range tr.Events {
		if e.Kind == trace.KindMark && (strings.HasPrefix(e.Name, "iter") || e.Name == "end") {
			marks = append(marks, i)
		}
	}
	return job{tr.Events[:marks[len(marks)-2]], tr.Events[marks[len(marks)-2]:marks[len(marks)-1]]}
}

func TestReplayPlanned(t *testing.T) {
	for _, name := range []string{"gpt2m", "gpt2l", "llama1b", "llama1b-lr", "moe", "resnet152"} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, name)
			v := &vmm{next: 1 << 40}
			p, err := New(Config{}, v, v, v)
			if err != nil {
				t.Fatal(err)
			}
			at := map[uint64]cuda.Ptr{}
			run := func(events []trace.Event) {
				for _, e := range events {
					switch e.Kind {
					case trace.KindAlloc:
						if q, ok := at[e.Alloc]; ok {
							if err := p.Free(q); err != nil {
								t.Fatal(err)
							}
						}
						q, err := p.Malloc(max(e.Bytes, 1), 0)
						if err != nil {
							t.Fatal(err)
						}
						at[e.Alloc] = q
					case trace.KindFree:
						q, ok := at[e.Alloc]
						if !ok {
							continue
						}
						if err := p.Free(q); err != nil {
							t.Fatal(err)
						}
						delete(at, e.Alloc)
					}
				}
				p.work.Wait()
				s := p.Stats()
				t.Logf("%s: live %.3f GiB, reserved %.3f now %.3f, %+.2f %%, %d stitches of %d handles, %d reused; plan %.3f GiB, served %d, not %d; %+v", s.PlanState,
					float64(s.LivePeakBytes)/(1<<30), float64(s.ReservedPeakBytes)/(1<<30), float64(s.ReservedBytes)/(1<<30), 100*(float64(s.ReservedPeakBytes)/float64(s.LivePeakBytes)-1),
					s.Stitches, s.StitchedHandles, s.StitchReuses, float64(s.PlanBytes)/(1<<30), s.Planned, s.Unplanned, p.service.follower)
				if err := p.Check(); err != nil {
					t.Fatal(err)
				}
				p.ResetPeaks()
			}
			run(j.start)
			for range 6 {
				run(j.iteration)
			}
		})
	}
}
