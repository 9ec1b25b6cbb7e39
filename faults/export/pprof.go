package export

import (
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/symbol"
	"github.com/penstock-gpu/penstock/internal/size"
)

// Pprof writes a profile of faults, bytes and stalls. A sample's stack is the
// kernel (the leaf), the allocation's frames, and the phase (the root).
func Pprof(w io.Writer, r *analyse.Report) error {
	p := &profile.Profile{
		SampleType:        []*profile.ValueType{{Type: "faults", Unit: "count"}, {Type: "bytes", Unit: "bytes"}, {Type: "stall", Unit: "nanoseconds"}},
		DefaultSampleType: "faults", TimeNanos: r.Header.Started.UnixNano(), DurationNanos: int64(r.Seconds * 1e9),
		Comments: []string{"penstock faults of " + r.Trace},
	}
	if r.Header.Started.IsZero() {
		p.TimeNanos = 0
	}
	functions := map[string]*profile.Function{}
	locations := map[string]*profile.Location{}
	location := func(frame string, kernel bool) *profile.Location {
		if l := locations[frame]; l != nil {
			return l
		}
		name, file, line := splitFrame(frame)
		system := name
		if kernel { // pprof itself would shorten template kernels until they are all the same
			name = symbol.Readable(name)
		}
		key := system + "\x00" + file
		f := functions[key]
		if f == nil {
			f = &profile.Function{ID: uint64(len(functions) + 1), Name: name, SystemName: system, Filename: file}
			functions[key] = f
			p.Function = append(p.Function, f)
		}
		l := &profile.Location{ID: uint64(len(locations) + 1), Line: []profile.Line{{Function: f, Line: line}}}
		locations[frame] = l
		p.Location = append(p.Location, l)
		return l
	}
	for _, x := range r.Pairs {
		if x.Faults <= 0 && x.FaultedBytes <= 0 {
			continue
		}
		stack := []*profile.Location{location(x.Kernel, true)}
		for frame := range strings.SplitSeq(x.Allocation, " < ") {
			if !strings.ContainsAny(frame, " (") { // an address: its size says more
				frame += " (" + size.Text(x.AllocationBytes) + ")"
			}
			stack = append(stack, location(frame, false))
		}
		stack = append(stack, location("phase: "+x.Phase, false))
		p.Sample = append(p.Sample, &profile.Sample{Location: stack,
			Value: []int64{max(x.Faults, 0), x.FaultedBytes, int64(x.StallSeconds * float64(time.Second))},
			Label: map[string][]string{"cause": {x.Cause}, "phase": {x.Phase}}})
	}
	if err := p.CheckValid(); err != nil {
		return err
	}
	return p.Write(w)
}

// splitFrame takes "file.py:12 function" apart; anything else is a function's name.
func splitFrame(frame string) (name, file string, line int64) {
	place, function, ok := strings.Cut(frame, " ")
	if at := strings.LastIndexByte(place, ':'); ok && at > 0 {
		if n, err := strconv.ParseInt(place[at+1:], 10, 32); err == nil && n > 0 {
			return function, place[:at], n
		}
	}
	if frame == "" {
		frame = "(unnamed)"
	}
	return frame, "", 0
}
