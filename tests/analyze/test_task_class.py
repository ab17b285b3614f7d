from __future__ import annotations

import pytest

from lumos.analyze.task_class import kernel_class


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm"),
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "gemm"),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 32>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolution", "convolution"),
        ("igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x32", "convolution"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "normalisation"),
        ("void (anonymous namespace)::softmax_warp_forward<float>", "softmax"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<>", "optimizer"),
        ("void at::native::reduce_kernel<512, 1>", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
        ("my_kernel", "other"),
    ],
)
def test_names_of_the_usual_libraries(name, expected):
    assert kernel_class(name) == expected
