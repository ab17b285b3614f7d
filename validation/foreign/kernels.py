"""The kernels that an operator launches on a device, by the operator's name and the shapes of its inputs.

The names are those of the kernels that PyTorch, cuBLAS, cuDNN and FlashAttention launch on an A100, shortened. An operator that is not
in these tables is an error that names it, so that no work of a script is left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from validation.foreign.nodes import LISTS, Node
from validation.foreign.prices import Kind, Work

#: Bytes of an element, by the profiler's names of types.
SIZES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4, "bool": 1, "unsigned char": 1}
#: How kernels of multiplications are named, by type.
GEMM_NAMES = {
    "float": "ampere_sgemm_{}_",
    "tf32": "cutlass_80_tensorop_s1688gemm_{}_32x3_",
    "c10::BFloat16": "ampere_bf16_s16816gemm_bf16_{}_ldg8_f2f_stages_64x3_",
    "c10::Half": "ampere_fp16_s16816gemm_fp16_{}_ldg8_f2f_stages_64x3_",
}
#: Elements that one launch of an operator on lists takes at most, and tensors by the number of its lists (ATen's MultiTensorApply).
CHUNK, BLOCKS, TENSORS = 65536, 320, (110, 64, 48, 36, 30)


def words(text: str) -> frozenset[str]:
    return frozenset(f"aten::{word}" for word in text.split())


NOTHING = words(
    "view t transpose unsqueeze squeeze expand slice select split split_with_sizes alias detach as_strided permute _unsafe_view lift_fresh"
    " empty empty_like empty_strided new_empty set_ unbind chunk narrow _reshape_alias unfold diagonal scalar_tensor resize_"
    " new_empty_strided is_pinned view_as_real view_as_complex item _local_scalar_dense unsafe_split native_dropout_host view_dtype"
)
POINTWISE = words(
    "add sub rsub mul div pow neg tanh sigmoid silu gelu relu relu_ exp log cos sin rsqrt sqrt reciprocal clamp clamp_min clamp_max where"
    " eq ne lt le gt ge bitwise_and bitwise_or bitwise_not logical_and logical_or logical_not tanh_backward gelu_backward silu_backward"
    " threshold_backward sigmoid_backward abs masked_fill masked_fill_ addcmul addcdiv add_ sub_ mul_ div_ clone _to_copy copy_ fill_"
    " zero_ bernoulli_ ones_like zeros_like full_like new_ones new_zeros new_full isinf isnan minimum maximum hardtanh leaky_relu"
    " log_sigmoid_forward log_sigmoid_backward binary_cross_entropy_with_logits mse_loss mse_loss_backward softplus sign erf tril triu"
    " native_dropout_backward floor floor_divide remainder square triu_ tril_ random_ normal_ uniform_ cumsum softplus_backward logit"
    " binary_cross_entropy binary_cross_entropy_backward __or__ __and__ bitwise_xor logical_and_"
)
MULTIPLIES = words("mm addmm bmm")
CREATED = words("zeros ones full arange rand randn randint")
REDUCED = words("sum mean amax amin linalg_vector_norm var argmax max min prod any all norm std topk sort histc bincount logsumexp")
BOOLEAN = words("eq ne lt le gt ge logical_and logical_or logical_not isinf isnan")


@dataclass(frozen=True)
class Launched:
    """The operators that do the work on a device, outermost first, and their kernels. The first may be the operator itself. zeros: of what
    shape a tensor of zeros is made before, by operators of its own inside the innermost; () for none."""

    names: tuple[str, ...]
    works: tuple[Work, ...]
    zeros: tuple[int, ...] = ()


def elements(dims: Any) -> int:
    """Elements of a tensor, or of all tensors of a list."""
    return sum(elements(each) for each in dims) if dims and isinstance(dims[0], list) else prod(dims)


def bytes_of(node: Node, *chosen: int) -> float:
    """Bytes of the chosen inputs, of all tensors without."""
    each = chosen or range(len(node.dims))
    return float(sum(elements(node.dims[i]) * SIZES.get(node.types[i], 0) for i in each if i < len(node.dims)))


def numbers(text: str) -> list[int]:
    """The whole numbers of an argument that the profiler writes as text."""
    return [int(found) for found in re.findall(r"-?\d+", text)]


def broadcast(node: Node) -> list[int]:
    """The shape that the tensors among the inputs have together."""
    shapes = [d for d, t in zip(node.dims, node.types, strict=True) if t in SIZES]
    width = max((len(s) for s in shapes), default=0)
    padded = [[1] * (width - len(s)) + s for s in shapes]
    return [max(sizes) for sizes in zip(*padded, strict=True)]


def move(name: str, amount: float, dtype: str = "float") -> Work:
    return Work(Kind.MOVE, name, dtype, amount)


def fill(elements: float, size: int) -> Work:
    return move("at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", elements * size)


def launched(node: Node, tf32: bool) -> Launched | None:
    """What the operator launches; None where it launches nothing itself. KeyError that names an operator which is not known."""
    name = node.name
    if name in NOTHING or not name.startswith(("aten::", "fsdp::")) or _holds(node, name):
        return None
    if name in MULTIPLIES and not node.reached:  # a repeated layer ended here: what autograd keeps of it was all there again
        return None
    if name.startswith(LISTS):
        return _on_lists(node)
    if name in SPECIAL:
        return SPECIAL[name](node, tf32)
    if name in CREATED:
        sizes = numbers(node.concrete[0]) or [1]
        return Launched((name, "aten::fill_"), (fill(prod(sizes) if name != "aten::arange" else max(sizes), 4),))
    if name in POINTWISE:
        return Launched((name,), (_pointwise(node),))
    if name in REDUCED:
        stem = name.removeprefix("aten::")
        works = (
            move(f"at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<{stem}>>>", bytes_of(node)),
        )
        return Launched((name,), works)
    if node.reached and name.startswith("aten::"):
        raise KeyError(f"{name} {node.dims} {node.types}: no kernels are known for it")
    return None


def _holds(node: Node, name: str) -> bool:
    """Whether an operator of that name is inside: then the outer one is that of a tensor which is distributed."""
    return any(child.name == name or _holds(child, name) for child in node.children)


def _copied_lists(node: Node, _: bool) -> Launched:
    """What FSDP2 does before and after its collectives: many parameters into one tensor, or the other way round."""
    size = next(SIZES[t] for t in node.types if t in SIZES)
    own = int(node.concrete[3]) if node.name == "fsdp::all_gather_copy_in" else max(elements(d) for d in node.dims if d)
    amount = 2.0 * own * size
    kernels = {
        "fsdp::all_gather_copy_in": "at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, Copy>",
        "fsdp::split_with_sizes_copy": "at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel",
        "fsdp::chunk_cat": "at::native::(anonymous namespace)::chunk_cat_cuda_kernel",
    }
    return Launched((node.name,), (move(kernels[node.name], amount),))


def _joined(node: Node, _: bool) -> Launched:
    """The tensors of a list, copied into one."""
    vectorized = "_aligned16_contig" if node.name == "aten::cat" else ""
    kernel = f"at::native::(anonymous namespace)::CatArrayBatchedCopy{vectorized}"
    return Launched((node.name,), (move(kernel, 2.0 * sum(each.elements * each.size for each in node.lists)),))


def _pointwise(node: Node) -> Work:
    stem = node.name.removeprefix("aten::")
    shape = broadcast(node)
    size = 1 if node.name in BOOLEAN else SIZES.get(node.types[0], 4)
    plain = all(d == shape for d, t in zip(node.dims, node.types, strict=True) if t in SIZES)
    moved = bytes_of(node) + prod(shape) * size
    if stem in ("fill_", "zero_", "ones_like", "zeros_like"):
        moved = prod(shape) * size
    kernel = "vectorized_elementwise_kernel<4," if plain else "elementwise_kernel<128, 2,"
    if stem == "bernoulli_":
        return move("at::native::distribution_elementwise_grid_stride_kernel<float, 4>", prod(shape) * size)
    return move(f"at::native::{kernel} at::native::{stem.rstrip('_')}_functor<{node.types[0]}>>", moved)


def _on_lists(node: Node) -> Launched | None:
    """An operator on lists of tensors: a launch holds as many chunks and tensors as it has room for."""
    lists = [each for each in node.lists if each.elements > len(each.shapes)]  # the counts of steps, single numbers, stay on the CPU
    if not lists:
        return None
    depth, stem = len(lists), node.name.removeprefix("aten::").strip("_")
    kernel = f"at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<{depth}>, {stem}_functor>"
    read = sum(each.size for each in lists)
    written = sum(each.size for each in lists[: 3 if "fused" in stem else 0 if stem == "foreach_norm" else 1])
    works, blocks, tensors, moved = [], 0, 0, 0.0
    for shape in lists[0].shapes:
        tensors += 1
        for begin in range(0, max(1, prod(shape)), CHUNK):
            blocks, moved = blocks + 1, moved + min(CHUNK, prod(shape) - begin) * float(read + written)
            if blocks == BLOCKS or tensors == TENSORS[min(depth, 5) - 1]:
                works.append(move(kernel, moved))
                blocks, tensors, moved = 0, 0, 0.0
    if blocks:
        works.append(move(kernel, moved))
    if stem == "foreach_norm":
        works.append(move("at::native::(anonymous namespace)::lpnorm_cleanup", 4.0 * len(lists[0].shapes)))
    return Launched((node.name,), tuple(works))


def gemm(dtype: str, layout: str, *shape: int, tf32: bool = False) -> Work:
    """A multiplication. shape: batch, m, n, k."""
    batch, m, n, k = shape
    kind = "tf32" if tf32 and dtype == "float" else dtype
    moved = float(batch * (m * k + k * n + m * n) * SIZES[dtype])
    return Work(Kind.MULTIPLY, GEMM_NAMES[kind] + layout, kind, moved, (batch, m, n, k))


def _layout(node: Node, a: int, b: int) -> str:
    """t for an input that is stored by columns, which for the library is the normal one transposed."""
    return "".join("n" if node.strides[i][-1:] == [1] else "t" for i in (b, a))


def _mm(node: Node, tf32: bool, a: int = 0) -> Launched:
    (*batch, m, k), n = node.dims[a], node.dims[a + 1][-1]
    return Launched((node.name,), (gemm(node.types[a], _layout(node, a, a + 1), prod(batch), m, n, k, tf32=tf32),))


def _addmm(node: Node, tf32: bool) -> Launched:
    return _mm(node, tf32, 1)


def _grouped_mm(node: Node, tf32: bool) -> Launched:
    """Multiplications of several sizes, one an expert; they are priced as if each expert had the same share."""
    a, b = node.dims[0], node.dims[1]
    groups = b[0] if len(b) == 3 else node.dims[2][0]
    m, n, k = (ceil(a[0] / groups), b[2], a[1]) if len(b) == 3 else (a[0], b[1], ceil(a[1] / groups))
    return Launched((node.name,), (gemm(node.types[0], "grouped", groups, m, n, k, tf32=tf32),))


def _attention(node: Node, tf32: bool) -> Launched:
    backward = node.name.endswith("backward")
    first = 1 if backward else 0
    batch, heads, queries, size = node.dims[first]
    keys, dtype = node.dims[first + 1][2], node.types[first]
    causal = "True" in node.concrete
    flash = dtype != "float"
    kernel = {
        (True, False): "pytorch_flash::flash_fwd_kernel",
        (True, True): "pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
        (False, False): "fmha_cutlassF_f32_aligned_64x64_rf_sm80",
        (False, True): "fmha_cutlassB_f32_aligned_64x64_k64_sm80",
    }[flash, backward]
    if flash:
        kernel += f"<pytorch_flash::Flash_kernel_traits<{size}, 128, 64, 4>, {str(causal).lower()}>"
    times = (2.5 if backward else 1.0) * 2 * (0.5 if causal else 1.0)
    work = Work(
        Kind.ATTENTION, kernel, "tf32" if tf32 and not flash else dtype, bytes_of(node), (batch * heads, queries, keys, size), times
    )
    stem = "flash" if flash else "efficient"
    end = "backward" if backward else "forward"
    outer = f"aten::_scaled_dot_product_{stem}_attention" + ("_backward" if backward else "")
    extra = (move("pytorch_flash::flash_bwd_dot_do_o_kernel", bytes_of(node, 0, first + 3)),) if flash and backward else ()
    return Launched((outer, f"aten::_{stem}_attention_{end}"), (*extra, work))


def _sizes_of_convolution(node: Node, data: int) -> tuple[int, int, int, int, int]:
    """Rows of the output (images times places), channels out and in times the window, groups, elements of the output."""
    (images, _, *places), (out, inside, *window) = node.dims[data], node.dims[data + 1]
    stride, pad, dilation = (numbers(node.concrete[data + i]) for i in (3, 4, 5))
    groups = numbers(node.concrete[data + 8])[0]
    sizes = [(p + 2 * a - d * (w - 1) - 1) // s + 1 for p, w, s, a, d in zip(places, window, stride, pad, dilation, strict=False)]
    rows = images * prod(sizes)
    return rows, out // groups, inside * prod(window), groups, rows * out


def _convolution(node: Node, tf32: bool) -> Launched:
    rows, out, inside, groups, _ = _sizes_of_convolution(node, 0)
    work = gemm(node.types[0], "nhwc_fprop", groups, rows, out, inside, tf32=tf32)
    moved = bytes_of(node, 0, 1) + rows * out * groups * SIZES[node.types[0]]
    works = (Work(work.kind, "cudnn_" + work.name, work.dtype, moved, work.shape),)
    return Launched((node.name, "aten::_convolution", "aten::cudnn_convolution"), works)


def _convolution_backward(node: Node, tf32: bool) -> Launched:
    rows, out, inside, groups, _ = _sizes_of_convolution(node, 1)
    asked = re.findall("True|False", node.concrete[-1])
    dtype, moved = node.types[0], bytes_of(node, 0, 1, 2)
    works = []
    for wanted, name, shape in (("dgrad", "nhwc_dgrad", (rows, inside, out)), ("wgrad", "nhwc_wgrad", (out, inside, rows))):
        if asked[0 if wanted == "dgrad" else 1] == "True":
            work = gemm(dtype, name, groups, *shape, tf32=tf32)
            works.append(Work(work.kind, "cudnn_" + work.name, work.dtype, moved, work.shape))
    return Launched((node.name,), tuple(works))


def _lstm(node: Node, tf32: bool) -> Launched | None:
    """cuDNN's forward pass: of each layer one multiplication of all inputs, then one of the state and a pointwise kernel for each step."""
    weights = node.dims[2] if node.dims[2] and isinstance(node.dims[2][0], list) else []
    if not weights:
        return None
    times, rows = (node.dims[0][1], node.dims[0][0]) if node.concrete[-1] == "True" else node.dims[0][:2]
    dtype, works = node.types[0], []
    for inside, state in zip(weights[0::4], weights[1::4], strict=True):
        works.append(gemm(dtype, "tn", 1, times * rows, inside[0], inside[1], tf32=tf32))
        for _ in range(times):
            works.append(gemm(dtype, "tn", 1, rows, state[0], state[1], tf32=tf32))
            works.append(move("LSTM_elementWise_fp", rows * state[0] * 2.5 * SIZES[dtype]))
    return Launched((node.name, "aten::_cudnn_rnn"), tuple(works))


def _lstm_backward(node: Node, tf32: bool) -> Launched:
    (times, rows, width), state = node.dims[0], node.dims[2]
    inside, dtype, works = node.dims[1], node.types[0], []
    for _ in range(times):
        works.append(move("LSTM_elementWise_bp1", rows * state[0] * 4 * SIZES[dtype]))
        works.append(gemm(dtype, "nn", 1, rows, state[1], state[0], tf32=tf32))
    works.append(gemm(dtype, "nn", 1, times * rows, width, inside[0], tf32=tf32))
    works += [gemm(dtype, "nt", 1, w[0], w[1], times * rows, tf32=tf32) for w in (inside, state)]
    return Launched(("aten::_cudnn_rnn_backward",), tuple(works))


def _layer_norm_backward(node: Node, _: bool) -> Launched:
    both = bytes_of(node, 0, 1)
    works = (
        move("at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized", 1.5 * both),
        move("at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate", both),
    )
    return Launched((node.name,), works)


def _embedding_backward(node: Node, _: bool) -> Launched:
    bag = node.name == "aten::_embedding_bag_backward"
    rows, grad = numbers(node.concrete[6 if bag else 2])[0], bytes_of(node, 0)
    works = (
        move("at_cuda_detail::cub::DeviceRadixSortOnesweepKernel", 4 * bytes_of(node, 1)),
        move("at::native::(anonymous namespace)::compute_grad_weight", 2 * grad),
        move("at::native::(anonymous namespace)::sum_and_scatter", 1.2 * grad),
    )
    return Launched((node.name, *(["aten::_embedding_bag_dense_backward"] if bag else [])), works, (rows, node.dims[0][-1]))


def _padded(node: Node, _: bool) -> Launched:
    """A tensor of zeros of which a part is filled."""
    whole = numbers(node.concrete[1]) if "backward" in node.name else [elements(node.dims[0])]
    size = SIZES[node.types[0]]
    return Launched(
        (node.name,), (fill(prod(whole), size), move("at::native::elementwise_kernel<128, 4, direct_copy>", 2 * bytes_of(node, 0)))
    )


def moved(name: str, factor: float, *chosen: int) -> Callable[[Node, bool], Launched]:
    """One kernel that moves `factor` times the bytes of the chosen inputs."""
    return lambda node, _: Launched((node.name,), (move(name.format(node.types[0]), factor * bytes_of(node, *chosen)),))


def _embedding(node: Node, _: bool) -> Launched:
    amount = 2.0 * elements(node.dims[1]) * node.dims[0][-1] * SIZES[node.types[0]]
    return Launched((node.name, "aten::index_select"), (move("at::native::(anonymous namespace)::indexSelectLargeIndex", amount),))


def _indexed(node: Node, _: bool) -> Launched:
    """Rows that are picked by one or more lists of indices; as much is written as the indices and the other dimensions say."""
    indices = node.dims[1] if node.dims[1] and isinstance(node.dims[1][0], list) else [node.dims[1]]
    rest = node.dims[0][len(indices) :]
    amount = 2.0 * max(prod(i) for i in indices) * prod(rest) * SIZES[node.types[0]]
    return Launched((node.name,), (move("at::native::index_elementwise_kernel<128, 4>", amount),))


def _repeated(node: Node, _: bool) -> Launched:
    """Copies of a tensor beside each other, as many as the argument says."""
    amount = 2.0 * elements(node.dims[0]) * prod(numbers(node.concrete[1])) * SIZES[node.types[0]]
    return Launched((node.name, "aten::copy_"), (move("at::native::elementwise_kernel<128, 4, direct_copy>", amount),))


SPECIAL: dict[str, Callable[[Node, bool], Launched | None]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": _addmm,
    "aten::baddbmm": _addmm,
    "aten::_grouped_mm": _grouped_mm,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::lstm": _lstm,
    "aten::mkldnn_rnn_layer_backward": _lstm_backward,
    "aten::native_layer_norm": moved("at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{}, float>", 2, 0),
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::native_batch_norm": moved("cudnn::bn_fw_tr_1C11_kernel_NCHW<{}, 512, true, 1>", 3, 0),
    "aten::native_batch_norm_backward": moved("cudnn::bn_bw_1C11_kernel_new<{}, 512, true, 1>", 2.5, 0, 1),
    "aten::native_group_norm": moved("at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<{}>", 3, 0),
    "aten::native_group_norm_backward": moved("at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<{}>", 2.5, 0, 1),
    "aten::upsample_nearest2d": moved("at::native::(anonymous namespace)::upsample_nearest2d_nhwc_out_frame<{}>", 5, 0),
    "aten::upsample_nearest2d_backward": moved("at::native::(anonymous namespace)::upsample_nearest2d_backward_out_frame<{}>", 1.25, 0),
    "aten::flip": moved("at::native::flip_kernel_impl<{}>", 2, 0),
    "aten::repeat": _repeated,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::_embedding_bag_backward": _embedding_backward,
    "aten::_log_softmax": moved("(anonymous namespace)::cunn_SoftMaxForward<4, {}, float>", 2, 0),
    "aten::_log_softmax_backward_data": moved("(anonymous namespace)::cunn_SoftMaxBackward<4, {}, float>", 1.5, 0, 1),
    "aten::_softmax": moved("softmax_warp_forward<{}, float, 10, false>", 2, 0),
    "aten::_safe_softmax": moved("softmax_warp_forward<{}, float, 10, false>", 2, 0),
    "aten::_softmax_backward_data": moved("softmax_warp_backward<{}, float, 10, false>", 1.5, 0, 1),
    "aten::nll_loss_forward": moved("at::native::nll_loss_forward_reduce_cuda_kernel_2d<{}>", 2, 1),
    "aten::nll_loss_backward": moved("at::native::nll_loss_backward_reduce_cuda_kernel_2d<{}>", 1, 1),
    "aten::max_pool2d_with_indices": moved("at::native::max_pool_forward_nchw<{}>", 1.75, 0),
    "aten::max_pool2d_with_indices_backward": moved("at::native::max_pool_backward_nchw<{}>", 1.5, 0, 1),
    "aten::cat": _joined,
    "aten::stack": _joined,
    "aten::constant_pad_nd": _padded,
    "aten::slice_backward": _padded,
    "aten::select_backward": _padded,
    "aten::index": _indexed,
    "aten::gather": moved("at::native::_scatter_gather_elementwise_kernel<128, 4, gather>", 2, 1),
    "aten::scatter": moved("at::native::_scatter_gather_elementwise_kernel<128, 4, scatter>", 2, 2),
    "aten::scatter_add": moved("at::native::_scatter_gather_elementwise_kernel<128, 4, scatter_add>", 2, 2),
    "aten::scatter_": moved("at::native::_scatter_gather_elementwise_kernel<128, 4, scatter>", 2, 2),
    "aten::index_add_": moved("at::native::indexFuncLargeIndex<{}>", 3, 3),
    "aten::index_put_": moved("at::native::index_elementwise_kernel<128, 4, put>", 2, 2),
    "aten::index_put": moved("at::native::index_elementwise_kernel<128, 4, put>", 2, 0),
    "aten::index_select": moved("at::native::(anonymous namespace)::indexSelectLargeIndex", 2, 2),
    "aten::_embedding_bag": _embedding,
    "fsdp::all_gather_copy_in": _copied_lists,
    "fsdp::split_with_sizes_copy": _copied_lists,
    "fsdp::chunk_cat": _copied_lists,
}
