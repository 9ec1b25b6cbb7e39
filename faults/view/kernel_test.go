package view

import (
	"bytes"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/faults/analyse"
)

func TestKernelName(t *testing.T) {
	for name, want := range map[string]string{
		"nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN": "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
		"triton_poi_fused_0":                             "triton_poi_fused_0",
		"_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorIN3c108BFloat16EEESt5arrayIPcLm1EEEEviT0_T1_":                                                               "vectorized_elementwise_kernel<8, FillFunctor<BFloat16>, array<char*, 1ul>>",
		"_ZN2at6native29vectorized_elementwise_kernelILi8EZZZNS0_16sqrt_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE0_clEvENKUlvE2_clEvEUlN3c108BFloat16EE_St5arrayIPcLm2EEEEviT0_T1_": "vectorized_elementwise_kernel<8, sqrt_kernel_cuda, array<char*, 2ul>>",
		"_Z11touch_pagesPc":                      "touch_pages",
		"_Znonsense":                             "_Znonsense",
		"":                                       "",
		"_Z" + strings.Repeat("N", mostMangled):  "_Z" + strings.Repeat("N", mostMangled),
		"_ZN2at6native29vectorized_elementwi...": "_ZN2at6native29vectorized_elementwi...",
	} {
		if got := KernelName(name); got != want {
			t.Errorf("%.60s\nis  %.200s\nnot %.200s", name, got, want)
		}
	}
}

// FuzzKernelName: names come from files.
func FuzzKernelName(f *testing.F) {
	f.Add("_ZN2at6native16sqrt_kernel_cudaERNS_18TensorIteratorBaseE")
	f.Add("_Z1fIJiEEvDpT_")
	f.Fuzz(func(t *testing.T, name string) {
		if got := KernelName(name); got == "" && name != "" {
			t.Errorf("%q has no name", name)
		}
	})
}

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
