package symbol

import (
	"strings"
	"testing"
)

func TestReadable(t *testing.T) {
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
		if got := Readable(name); got != want {
			t.Errorf("%.60s\nis  %.200s\nnot %.200s", name, got, want)
		}
	}
}

// FuzzReadable: names come from files.
func FuzzReadable(f *testing.F) {
	f.Add("_ZN2at6native16sqrt_kernel_cudaERNS_18TensorIteratorBaseE")
	f.Add("_Z1fIJiEEvDpT_")
	f.Fuzz(func(t *testing.T, name string) {
		if got := Readable(name); got == "" && name != "" {
			t.Errorf("%q has no name", name)
		}
	})
}
