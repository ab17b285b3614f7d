"""What kernels do, by their names: every row of the table, on an example and on all kernels of the public traces."""

import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lumos.errors import LumosError
from lumos.graph.kernel_names import TABLE, KernelClass, called, deciding_row, kernel_class
from lumos.trace import read
from lumos.trace.table import Category

ROOT = os.environ.get("LUMOS_TRACES")
LISTED = Path(__file__).parent.parent / "data" / "kernel-functions.txt"


@pytest.mark.parametrize("row", range(len(TABLE)))
def test_every_row_decides_its_example(row):
    assert deciding_row(TABLE[row].example) == row and kernel_class(TABLE[row].example) is TABLE[row].label


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "gemm"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<cutlass::gemm::Shape>>>()", "attention"),
        ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<>>>()", "gemm"),
        ("_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolution", "convolution"),
        ("_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvPv", "collective"),
        ("igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x32", "convolution"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "normalisation"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)", "optimizer"),
        ("triton_poi_fused_native_layer_norm_0", "elementwise"),
        ("my_kernel", "other"),
        # Arguments and parameters do not decide: a lambda is no Lamb optimizer, and a kernel that takes a tensor of fbgemm_gpu or cuBLAS
        # multiplies nothing.
        ("void at::native::reduce_kernel<512, 1, at::native::sum_functor<float>::operator()()::{lambda(float, float)#1}>()", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda()::{lambda()#2}>(int)", "elementwise"),
        ("void split_embedding_codegen_forward_unweighted_kernel<float>(fbgemm_gpu::Accessor<float, 1ul>)", "embedding"),
        ("void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&)>(int)", "elementwise"),
        ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>()", "reduction"),
        ("void primus::pytorch::deep_ep::intranode::combine(void*)", "collective"),
        ("void (anonymous namespace)::internode::cached_notify<true>(void*)", "collective"),
        ("void internode_ll::dispatch<true, 7168>(void*)", "collective"),
        ("void my_kernel(deep_ep::internode::SourceMeta*)", "other"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", "other"),  # counts tokens
    ],
)
def test_names_of_the_usual_libraries(name, expected):
    assert kernel_class(name) == expected


def function(name: str) -> str:
    """What the list of functions has for a kernel: every number as 0, long names cut; what a wrapper runs stands behind it."""
    path, arguments = (re.sub(r"\d+", "0", part.strip()) for part in called(name))
    return (f"{path} {arguments[:60]}" if "::Kernel" in path or "kentry" in path else path)[:90].strip()


@cache
def listed() -> dict[str, str]:
    """The class of every function in the list."""
    out, label = {}, ""
    for line in LISTED.read_text().splitlines():
        if line.startswith("["):
            label = line.strip("[]")
        elif line and not line.startswith("#"):
            out[line] = label
    return out


@cache
def public_names() -> frozenset[str]:
    """The names of all kernels in the public traces."""
    out: set[str] = set()
    for path in sorted(Path(ROOT).rglob("*.json*")):
        try:
            traces = read(str(path)).traces
        except LumosError:  # not a timeline: an execution trace, or what was published about a job
            continue
        for trace in traces:
            out |= {trace.strings[i] for i in np.unique(trace.name[trace.category == Category.KERNEL]).tolist()}
    return frozenset(out)


@pytest.mark.skipif(ROOT is None, reason="LUMOS_TRACES is not set: the public traces are not here")
@pytest.mark.parametrize("row", [*range(len(TABLE)), None])
def test_every_row_on_the_public_traces(row):
    """What each row decides there, and what no row decides, is listed as of that class; the list was read by eye."""
    label = KernelClass.OTHER if row is None else TABLE[row].label
    decided = {function(name) for name in public_names() if deciding_row(name) == row}
    assert {name: listed().get(name) for name in decided} == dict.fromkeys(decided, label.value)


@pytest.mark.skipif(ROOT is None, reason="LUMOS_TRACES is not set: the public traces are not here")
def test_the_list_has_nothing_else():
    assert {function(name) for name in public_names()} == listed().keys()
