package view

import (
	"bytes"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/faults/analyse"
)

// People read names, programs are given what was recorded.
func TestKernelsAreDemangledForPeople(t *testing.T) {
	const mangled = "_Z11touch_pagesPc"
	r := &analyse.Report{Summary: analyse.Summary{Faults: 1}, Kernels: []analyse.KernelRow{{Kernel: mangled, Faults: 1}}}
	table, _ := Make("kernels", r)
	var text, md, csv, js, page, diff bytes.Buffer
	d := Compare(&analyse.Report{}, r)
	if err := d.Tables[2].WriteText(&diff, 80); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{table.WriteText(&text, 80), table.WriteMarkdown(&md), table.WriteCSV(&csv), table.WriteJSON(&js), WriteHTML(&page, r)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, b := range map[string]*bytes.Buffer{"text": &text, "html": &page, "diff": &diff} {
		if s := b.String(); strings.Contains(s, mangled) || !strings.Contains(s, "touch_pages") {
			t.Errorf("%s:\n%s", what, s)
		}
	}
	for what, b := range map[string]*bytes.Buffer{"csv": &csv, "json": &js} {
		if !strings.Contains(b.String(), mangled) {
			t.Errorf("%s:\n%s", what, b.String())
		}
	}
	if strings.Contains(md.String(), "Z11") {
		t.Errorf("markdown:\n%s", md.String())
	}
}

func TestEqualIterationsAreNotFaster(t *testing.T) {
	of := func(seconds float64) *analyse.Report {
		return &analyse.Report{Iterations: []analyse.Iteration{{Seconds: seconds}}}
	}
	for want, other := range map[string]float64{"2 s in both": 2.001, "instead of 2 s: 1.25 times slower": 2.5, "instead of 2 s: 2.00 times faster": 1} {
		d := Compare(of(2), of(other))
		if len(d.Findings) == 0 || !strings.Contains(strings.ReplaceAll(d.Findings[0].What, ".00 s", " s"), want) {
			t.Errorf("%v: %+v, want %q", other, d.Findings, want)
		}
	}
}
