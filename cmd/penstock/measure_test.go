package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/cudastub"
)

var smallSizes = measureSizes{
	checkBytes: 1 << 20, rangeBytes: []int64{64 << 10, 1 << 20}, poolBytes: 16 << 20, segmentBytes: []int64{4 << 20, 16 << 20},
	copyBytes: 4 << 20, copies: 2, inPlaceBytes: 2 << 20, leastDuration: time.Millisecond,
}

// On the test double every part runs and every result is right; the figures mean nothing.
func TestMeasureOnTheStubDriver(t *testing.T) {
	d := cudastub.Open(t)
	var out measurements
	if err := measureAll(context.Background(), d, smallSizes, io.Discard, func(m measured) { out.Figures = append(out.Figures, m) }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"checksum of 1 MiB", "search of 64 KiB", "pinning by 16 MiB", "launch beside pinning by 4 MiB, submitting, p99",
		"copies both ways at once, 4 MiB, in total", "checksum of host memory in place, 2 MiB"} {
		i := slices.IndexFunc(out.Figures, func(m measured) bool { return m.What == want })
		if i < 0 || !(out.Figures[i].Value > 0) {
			t.Errorf("no figure for %s in %+v", want, out.Figures)
		}
	}
	if free, total, err := d.MemInfo(); err != nil || free != total {
		t.Errorf("%d of %d bytes are free afterwards: %v", free, total, err)
	}
	for _, what := range []string{"registered_bytes", "host_physical_bytes"} {
		if n := d.Count(what); n != 0 {
			t.Errorf("%d %s afterwards", n, what)
		}
	}
	var text bytes.Buffer
	if err := writeMeasurements(&text, out, false); err != nil || strings.Count(text.String(), "\n") != len(out.Figures)+1 {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// What fails is an error that names the part, never a figure.
func TestMeasureFails(t *testing.T) {
	for spec, part := range map[string]string{"cuModuleLoad:1": "device code: ", "cuMemHostRegister:2": "pinning: ", "cuMemCreate": "host memory in place: "} {
		d := cudastub.Open(t)
		d.Fail(spec)
		err := measureAll(context.Background(), d, smallSizes, io.Discard, func(measured) {})
		var driver *cuda.Error
		if err == nil || !strings.HasPrefix(err.Error(), part) || !errors.As(err, &driver) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := measureAll(ctx, cudastub.Open(t), smallSizes, io.Discard, func(measured) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	refused(t, []string{"--host-budget", "not a size"}, "measure", "--host-budget", "lots")
}
