"""What a kernel does, by its name: one table for all vendors and libraries.

Only the name of the function that runs is read, without its template arguments and the types of its parameters: these name what
the function is handed, such as a lambda, a tensor or a library's types, and not what it does. There is one exception: functions that
only run another one (`cutlass::Kernel<…>`, `ck_tile::kentry<…>`) do what their template arguments say.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


class KernelClass(StrEnum):
    """What a piece of device work does. The value is the spelling in tables, on the command line and in JSON."""

    COLLECTIVE = "collective"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    GEMM = "gemm"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    OPTIMIZER = "optimizer"
    EMBEDDING = "embedding"
    SORTING = "sorting"
    REDUCTION = "reduction"
    POOLING = "pooling"
    ELEMENTWISE = "elementwise"
    OTHER = "other"


class _Row(NamedTuple):
    """One row of the table: functions whose name has the pattern are of the class. example: the name of a kernel that it decides."""

    label: KernelClass
    pattern: str
    example: str


#: The first row whose pattern is found decides; upper and lower case are one.
TABLE = (
    # ---- communication between ranks ----
    _Row(KernelClass.COLLECTIVE, r"nccl(dev)?kernel|^nccl", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    _Row(KernelClass.COLLECTIVE, r"mscclkernel|one_?ccl", "mscclKernel_Sum_half_Simple(mscclWork)"),
    # DeepEP, in its own namespace or compiled into another; its `layout` only counts tokens.
    _Row(
        KernelClass.COLLECTIVE,
        r"\b(intra|inter)node(_ll)?::|deep_ep::(?!(\w+::)*layout\b)",
        "void primus::ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*)",
    ),
    _Row(KernelClass.COLLECTIVE, r"nvshmem", "nvshmemi_barrier_threadgroup_kernel(int)"),
    _Row(
        KernelClass.COLLECTIVE,
        r"cross_device_reduce|symm_mem|(one|two)_shot_all_?reduce|multimem_\w*(reduce|gather)|userbuffers_",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int)",
    ),
    # ---- copies that a profiler lists as kernels ----
    _Row(KernelClass.MEMCPY, r"^memcpy\b", "Memcpy DtoD (Device -> Device)"),
    _Row(KernelClass.MEMSET, r"^memset\b", "Memset (Device)"),
    # ---- kernels that Inductor generates: the kind of the kernel decides, since the rest lists the operators that were fused ----
    _Row(KernelClass.ELEMENTWISE, r"^triton_(poi|for)_", "triton_poi_fused_convolution_relu_3"),
    _Row(KernelClass.NORMALISATION, r"^triton_(red|per|mix)_\w*norm", "triton_red_fused_add_native_layer_norm_5"),
    _Row(KernelClass.SOFTMAX, r"^triton_(red|per|mix)_\w*softmax", "triton_per_fused__softmax_2"),
    _Row(KernelClass.REDUCTION, r"^triton_(red|per|mix)_", "triton_red_fused_mm_sum_1"),
    # ---- bookkeeping around attention and multiplications ----
    _Row(
        KernelClass.ELEMENTWISE,
        r"(reshape|concat)_and_cache|rotary|\brope\b|_rope_",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>(__hip_bfloat16 const*)",
    ),
    _Row(KernelClass.EMBEDDING, r"finalize_matmul_scatter", "_finalize_matmul_scatter_bf16"),
    # ---- arithmetic ----
    _Row(
        KernelClass.ATTENTION,
        r"flash|fmha|attention|\battn|_attn|attn_",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>()",
    ),
    _Row(KernelClass.NORMALISATION, r"batch_?norm|bn_(fw|bw)", "MIOpenBatchNormFwdTrainSpatial"),
    _Row(
        KernelClass.CONVOLUTION,
        r"conv(?!er)|[dw]grad|fprop|winograd|scudnn|im2(col|d)|col2im|igemm_(fwd|bwd|wrw)|implicit_|bwd_(weight|data)|\bfft2d_",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16",
    ),
    _Row(
        KernelClass.CONVOLUTION,
        r"cask_(plugin_)?cudnn",
        "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)",
    ),
    _Row(
        KernelClass.GEMM,
        r"(?<!fb)gemm|gemv|Cijk_|matmul|nvjet|splitK|xmma|wgmma|cublas",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    ),
    # ---- memory ----
    _Row(
        KernelClass.NORMALISATION,
        r"norm(?!al)|welford|GammaBeta|RowwiseMoments",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
    ),
    _Row(
        KernelClass.SOFTMAX,
        r"softmax",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*, int, int, int)",
    ),
    # Tables of embeddings are read, and updated by their own optimizer, in the same kernels.
    _Row(
        KernelClass.EMBEDDING,
        r"embedding|embs?_|fbgemm_gpu::\w*(permute|offsets)|recat_",
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_warp_per_row_1<float, float, float, 2ul>()",
    ),
    # torch's `_foreach` kernels: optimizers, and the clipping and scaling of gradients.
    _Row(
        KernelClass.OPTIMIZER,
        r"multi_tensor",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2> >()",
    ),
    _Row(
        KernelClass.OPTIMIZER,
        r"adam|adagrad|(?<![a-z])sgd|(?<![a-z])lamb(?!da)|FusedOptimizer",
        "void apex::lamb_stage_1<float>(float*, float const*)",
    ),
    _Row(
        KernelClass.SORTING,
        r"sort(?!ed)|topk|DeviceScan|DeviceSelect|DeviceCompact|DeviceMerge|ByKey",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false>(int*)",
    ),
    _Row(KernelClass.ELEMENTWISE, r"elementwise_kernel_with_index", "void (anonymous namespace)::elementwise_kernel_with_index<int>(int)"),
    _Row(
        KernelClass.EMBEDDING,
        r"ind(ex|ice)|gather|scatter",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<>(at::TensorIteratorBase&)::{lambda(int)#1}>()",
    ),
    _Row(
        KernelClass.REDUCTION,
        r"reduce|\bdot_kernel|NLLCriterion|nll_loss|cross_entropy",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, unsigned int>>()",
    ),
    _Row(
        KernelClass.POOLING,
        r"pool|adaptive_average",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)",
    ),
    _Row(
        KernelClass.ELEMENTWISE,
        r"elementwise|copy|fill|vectorized|dropout|CatArray|\bscal_kernel|scalePacked|SubTensorOp|triu_tril|FP8|act_and_mul|epilogue::",
        "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}>(int)",
    ),
    _Row(
        KernelClass.ELEMENTWISE,
        r"transpose|(nchw|cnhw|nhwc)(To|2)(nchw|cnhw|nhwc)",
        "void nchwToNhwcKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(int, int)",
    ),
)

_COMPILED = tuple((row.label, re.compile(row.pattern, re.IGNORECASE)) for row in TABLE)

#: Functions that only run another one, which their template arguments name. A multiplication unless these say otherwise.
_WRAPPER = re.compile(r"(cutlass|ck_tile|\bck)\w*::(kernel\d*|device_kernel|kentry)$", re.IGNORECASE)

#: Unnamed namespaces, in which brackets and blanks are part of a name. Some profilers write capital letters.
_UNNAMED = re.compile(r"\(anonymous namespace\)", re.IGNORECASE)

#: A name as compilers write it into a library: the parts of its path, each after its length.
_MANGLED = re.compile(r"_ZN[KVr]*(?=\d)")
_LENGTH = re.compile(r"\d{1,4}")


class Called(NamedTuple):
    """What a kernel's name says. function: the path of its name, without arguments and parameters. arguments: of its templates."""

    function: str
    arguments: str


@lru_cache(maxsize=1 << 14)
def kernel_class(name: str) -> KernelClass:
    """What the kernel of this name does; OTHER where no row of the table decides."""
    row = deciding_row(name)
    return KernelClass.OTHER if row is None else TABLE[row].label


def deciding_row(name: str) -> int | None:
    """The index in TABLE of the row that decides the class of a kernel's name; None without one."""
    function, arguments = called(name)
    text = f"{arguments} {function}" if _WRAPPER.search(function) else function
    return next((i for i, (_, pattern) in enumerate(_COMPILED) if pattern.search(text)), None)


def called(name: str) -> Called:
    """The function that a kernel's name calls, and the arguments of its templates."""
    mangled = _MANGLED.match(name)
    return _demangled(name, mangled.end()) if mangled else _split(_UNNAMED.sub("unnamed", name))


def _split(name: str) -> Called:
    """The parts of a name as it stands in the source: what lies outside of all < >, up to the parameters, and what lies inside."""
    outside: list[str] = []
    inside: list[str] = []
    depth = at = 0
    for bracket in re.finditer(r"[<(]|(?<!-)>", name):
        (inside if depth else outside).append(name[at : bracket.start()])
        at = bracket.end()
        if bracket[0] != "(":
            depth += 1 if bracket[0] == "<" else -1
        elif not depth:
            break
    else:
        outside.append(name[at:])
    return Called("".join(outside).strip(), " ".join(inside))


def _demangled(name: str, at: int) -> Called:
    """The path that starts at a place of a mangled name, and the rest of the name."""
    parts = []
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return Called("::".join(parts), name[at:])
