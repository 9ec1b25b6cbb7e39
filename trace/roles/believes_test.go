package roles

import "testing"

// TestBelieves: what takes indices from memory is never issued again, whatever else its name says.
func TestBelieves(t *testing.T) {
	for name, again := range map[string]bool{
		"_ZN2at6native24vectorized_gather_kernelILi16ElEEvPcS2_PT0_illllb":                                                             false,
		"_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsE":                                                                       false,
		"_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_43binary_cross_entropy_out_kernel_implEvE_St5arrayIPcLm3EEEEviT0_T1_": false,
		"_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsE":                                                              true,
		"_ZN2at6native33batch_norm_transform_input_kernelIN3c108BFloat16EffLb1EiEEvN5torch10headeronly6detail27GenericPackedTensorAccessorINS6_14TensorAccessorINS2_8ArrayRefIlEEKT_Lm2ENS5_17RestrictPtrTraitsET3_EENS_6detail16IndexBoundsCheckILm3ESE_EESC_Lm3ESD_SE_EENS7_INS8_ISA_SB_Lm2ESD_SE_EESI_SB_Lm3ESD_SE_EENS7_INS8_ISA_NSt11conditionalIXT2_ET1_T0_E4typeELm0ESD_SE_EENSH_ILm1ESE_EESQ_Lm1ESD_SE_EEST_NS7_INS8_ISA_KSO_Lm0ESD_SE_EESS_SU_Lm1ESD_SE_EESW_SN_": true,
		"nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": true,
		"_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_25bfloat16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EEEEviT0_T1_": true,
	} {
		_, named := OperandsOf(name)
		tried, _ := ByTrial(name)
		if (named || tried) != again {
			t.Errorf("%s: issued again: %t, want %t", name, named || tried, again)
		}
	}
}
