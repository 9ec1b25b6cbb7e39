package roles

import (
	"reflect"
	"testing"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// parse makes a trace of a launch log's text.
func parse(t *testing.T, log string) *trace.Trace {
	t.Helper()
	tr, err := trace.Parse("log", []byte(log))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

const functions = "N\t1\t2\t_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addEEvv\n" +
	"N\t2\t2\t_ZN2at6native18multi_tensor_applyEvv\n" +
	"N\t3\t3\tnvjet_sm90_tst_128x64_TNT\n" +
	"N\t4\t2\tsomething_else\n"

// text is an operand's role as a launch log writes it.
func text(x Operand) string {
	switch {
	case x.Reads && x.Writes:
		return "b"
	case x.Writes:
		return "w"
	case x.Reads:
		return "r"
	}
	return "?"
}

func TestSigns(t *testing.T) {
	const k = "K\t-1\t(nil)\t"
	const dims = "\t1\t1\t1\t1\t1\t1\t"
	for _, test := range []struct{ name, log, want string }{
		{"a first touch is the output", k + "4" + dims + "0+0\t2+0\n", "rw"},
		{"two of them", k + "4" + dims + "1+0\t2+0\n", "ww"},
		{"elementwise: the first is the output", k + "1" + dims + "1+0\t0+0\n" + k + "1" + dims + "1+0\t0+0\n", "wr"},
		{"elementwise in place", k + "1" + dims + "1+0\t0+0\n" + k + "1" + dims + "1+0\t1+0\t0+0\n", "br"},
		{"a list of tensors", k + "1" + dims + "1+0\t0+0\n" + k + "2" + dims + "1+0\t0+0\n", "bb"},
		{"nothing is known", k + "4" + dims + "1+0\t2+0\n" + k + "3" + dims + "0+0\t1+0\t2+0\n", "bbb"},
		{"a copy says it", "C\t-1\t(nil)\td\t8\tw1+0\tr0+0\n", "wr"},
		{"recorded", k + "4" + dims + "w0+0\tr2+0\tb1+0\n", "wrb"},
		{"recorded in part", k + "4" + dims + "r0+0\t2+0\n", "rw"},
		{"recorded and twice", k + "4" + dims + "r2+0\tw2+8\tr0+0\n", "br"},
	} {
		// 0 is from before the first iteration, and so no output by being new.
		r := Of(parse(t, functions+"A\t0\t64\nM\titer0\nA\t1\t64\nA\t2\t64\n"+test.log+"M\tend\n"))
		got := ""
		for _, x := range r.Operations[len(r.Operations)-1].Operands {
			got += text(x)
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if said := test.name == "a copy says it" || test.name == "recorded" || test.name == "recorded and twice"; r.Inferred == said {
			t.Errorf("%s: inferred %v", test.name, r.Inferred)
		}
	}
}

func TestTensors(t *testing.T) {
	const k = "K\t-1\t(nil)\t4\t1\t1\t1\t1\t1\t1\t"
	r := Of(parse(t, functions+"A\t0\t64\n"+k+"0+0\nM\titer0\nA\t7\t32\n"+k+"7+0\t0+0\nF\t7\n"+k+"0+0\nM\tend\n"))
	want := []Tensor{{Alloc: 0, Bytes: 64, Early: true, Death: 3}, {Alloc: 7, Bytes: 32, Birth: 1, Death: 2}}
	if len(r.Tensors) != 2 || r.Tensors[0] != want[0] || r.Tensors[1] != want[1] {
		t.Errorf("%+v, want %+v", r.Tensors, want)
	}
}

func TestWorkspace(t *testing.T) {
	log := functions + "A\t0\t33554432\nA\t1\t33554432\nM\titer0\n"
	for range workspaceFills + 1 {
		log += "C\t-1\t(nil)\ts\t1024\tw0+0\nC\t-1\t(nil)\ts\t33554432\tw1+0\n"
	}
	r := Of(parse(t, log+"M\tend\n"))
	if !r.Tensors[0].Workspace || r.Tensors[1].Workspace {
		t.Errorf("filled in part: %v, filled wholly: %v", r.Tensors[0].Workspace, r.Tensors[1].Workspace)
	}
}

func TestFunctions(t *testing.T) {
	for name, want := range map[string]Function{
		"nvjet_sm90_tst_128x64_TNT":                     {Repeats: true, Matrix: true},
		"cudnn_generated_fort_native_sdpa_fprop_x":      {Repeats: true, Matrix: true},
		"cudnn_generated_fort_native_sdpa_bprop_x":      {Matrix: true},
		"_ZN2at6native24vectorized_layer_norm_kernelEv": {Repeats: true},
		"_ZN2at6native16indexing_backwardEv_scatter_":   {},
		"": {Repeats: true},
	} {
		got := OfFunction(name)
		if got.output = outputUnknown; got != want {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
}

// TestLlama: how often which sign told, in a log that has been looked at closely.
func TestLlama(t *testing.T) {
	raced.Skip(t)
	short.Skip(t)
	r := Of(testlogs.Load(t, "llama1b"))
	if !r.Inferred {
		t.Error("a log without roles is not called inferred")
	}
	t.Logf("operands by %+v", r.Told)
	for _, least := range []struct {
		sign Evidence
		n    int
	}{{FirstTouch, 10000}, {Name, 18000}, {AnotherIsOut, 6000}} {
		if r.Told[least.sign] < least.n {
			t.Errorf("sign %d told %d operands, at least %d were", least.sign, r.Told[least.sign], least.n)
		}
	}
	workspaces := 0
	for _, x := range r.Tensors {
		if x.Workspace {
			workspaces++
		}
	}
	if workspaces == 0 || workspaces > 4 {
		t.Errorf("%d workspaces", workspaces)
	}
}

func TestOperandsOf(t *testing.T) {
	none := Operands{}
	for name, want := range map[string]Operands{
		"_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_15CUDAFunctor_addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_":                                                 {2, []ParameterAddresses{{2, 3}}},
		"_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseENKUlvE1_clEvENKUlvE5_clEvEUlfE_St5arrayIPcLm2EE":               {2, []ParameterAddresses{{2, 2}}},
		"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_":                                                          {2, []ParameterAddresses{{2, 1}}},
		"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEviT0_T1_":                                                                                    none,
		"_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_15CUDAFunctor_addIN3c108BFloat16EEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_":     none,
		"_ZN2at6native33batch_norm_transform_input_kernelIN3c108BFloat16EffLb1EiEEvN5torch10headeronly6detail27GenericPackedTensorAccessorINS6_14TensorAccessor":             {1, firstWords(6)},
		"_ZN2at6native48batch_norm_transform_input_channels_last_kernelIN3c108BFloat16EffLi4EEEvPKT_S5_PKT0_S8_PKT1_SB_PS3_iib":                                              {6, firstWords(7)},
		"_ZN2at6native49_GLOBAL__N__0edc5583_16_Normalization_cu_5c38458745unrolled_elementwise_kernel_for_multi_outputsILi3EZZZNS1_34batch_norm_update_stats_and_invertERK": none,
		"_ZN2at6native26batch_norm_backward_kernelIN3c108BFloat16EffiEEvN5torch10headeronly6detail27GenericPackedTensorAccessorINS6_14TensorAccessorINS2_8Array":             none,
		"nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": none,
		"": none,
	} {
		got, ok := OperandsOf(name)
		if ok != (len(want.Parameters) > 0) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %t, want %+v", name, got, ok, want)
		}
	}
}
