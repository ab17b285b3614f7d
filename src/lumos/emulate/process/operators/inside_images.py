"""What operators on images call besides computing on the host, as `inside` says it for others.

oneDNN has its own layouts: its result becomes an ordinary tensor, which the gradient of an image under a stride, and so a transposed
convolution, reaches with its channels last and copies. Convolutions that oneDNN does not take are products of matrices (slow_conv2d).
The calls follow ConvolutionMM2d.cpp, mkldnn/Conv.cpp and mkldnn/MKLDNNConversions.cpp of ATen/native in torch 2.13, on a processor with
AVX-512.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Hidden = Callable[[Callable[[], Any]], Any]

#: Height and width, added up, to which an image is resized with its channels last (_use_vectorized_kernel_cond_2d).
_SMALL_IMAGE = 128


def transposed(hidden: Hidden, result: Any, stride: Any) -> None:
    """What a transposed convolution calls once it is in oneDNN, to which it passes without an operator of its own."""
    _from_onednn(hidden, result.shape, result, max(stride) > 1)


def _from_onednn(hidden: Hidden, shape: Any, like: Any, last: bool = False) -> None:
    """mkldnn_to_dense: a tensor of oneDNN's layout, made as an ordinary one. last: its channels come last."""
    torch.empty(0, dtype=like.dtype)
    made = hidden(lambda: like.new_empty(shape))
    turned = hidden(lambda: torch.empty_like(made, memory_format=torch.channels_last)) if last and made.dim() == 4 else made
    torch.ops.aten.as_strided_(made, made.shape, turned.stride())
    if not turned.is_contiguous():
        turned.contiguous()
    torch.ops.aten.resize_(made, made.shape)


def _convolution(hidden: Hidden, given: Any, weight: Any, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int) -> None:
    none = [0] * len(stride)
    result = hidden(lambda: torch.ops.aten.convolution(given, weight, bias, stride, padding, dilation, False, none, groups))
    torch.empty(0, dtype=given.dtype)
    _from_onednn(hidden, result.shape, given)


def _convolution_backward(hidden: Hidden, grad: Any, given: Any, weight: Any, biases: Any, *rest: Any) -> None:
    stride, padding, dilation, is_transposed, more, groups, wanted = rest
    sizes = list(biases) if biases else None
    backend = hidden(
        lambda: torch._C._select_conv_backend(given, weight, None, stride, padding, dilation, is_transposed, more, groups, sizes)
    )
    if backend == torch._C._ConvBackend.Slow2d:
        torch.ops.aten._nnpack_available()
        torch.ops.aten._slow_conv2d_backward.output_mask(grad, given, weight, list(weight.shape[2:]), stride, padding, wanted)
        return
    if not grad.is_contiguous():
        grad.contiguous()
    if wanted[0]:
        torch.empty(0, dtype=given.dtype)
        _from_onednn(hidden, given.shape, given, max(stride) > 1 and not is_transposed)
    if wanted[2]:
        _from_onednn(hidden, biases, given)
    if wanted[1]:
        _from_onednn(hidden, weight.shape, given)


def _slow(hidden: Hidden, given: Any, weight: Any, size: Any, bias: Any, stride: Any, padding: Any) -> None:
    out = torch.empty(0, dtype=given.dtype)
    result = hidden(lambda: torch.ops.aten._slow_conv2d_forward(given, weight, size, bias, stride, padding))
    _as_matrices(given, weight, size, stride, padding)
    torch.ops.aten.resize_(out, result.shape)
    if bias is not None:
        result.copy_(bias.reshape(-1, 1, 1))


def _slow_backward(_: Hidden, grad: Any, given: Any, weight: Any, size: Any, stride: Any, padding: Any, wanted: Any) -> None:
    of_image, of_weight, of_bias = (torch.empty(0, dtype=given.dtype) for _place in range(3))
    if wanted[0]:
        weight.view(weight.shape[0], -1)
        torch.ops.aten.resize_as_(of_image, given)
        of_image.zero_()
    if wanted[2]:
        torch.ops.aten.sum.IntList_out(grad, [0, 2, 3], out=of_bias)
    if wanted[1]:
        torch.ops.aten.resize_(of_weight, weight.shape)
        of_weight.zero_()
        _as_matrices(given, weight, size, stride, padding)


def _as_matrices(given: Any, weight: Any, size: Any, stride: Any, padding: Any) -> None:
    """The weight as a matrix, and the image where its columns need not be made."""
    weight.view(weight.shape[0], -1)
    if all(each == 1 for each in (*size, *stride)) and not any(padding):
        torch.ops.aten.detach(given.view(given.shape[0], given.shape[1], -1))


def _resize_as(_: Hidden, tensor: Any, like: Any, **__: Any) -> None:
    torch.ops.aten.resize_(tensor, like.shape)


def _batch_norm(_: Hidden, given: Any, *__: Any) -> None:
    _alike(given)
    for _place in range(6):
        torch.empty(0, dtype=given.dtype)


def _batch_norm_backward(_: Hidden, __: Any, given: Any, *___: Any) -> None:
    _alike(given)
    for _place in range(2):
        torch.empty(0, dtype=given.dtype)
    _alike(given)


def _alike(tensor: Any) -> Any:
    """A tensor of the same shape in the memory format that suits it, which is named and so not read off the strides."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return torch.empty_like(tensor, memory_format=torch.channels_last if last else torch.contiguous_format)


def _cleared(hidden: Hidden, _: Any, tensor: Any, *__: Any) -> None:
    """A gradient that is added up."""
    hidden(lambda: torch.empty_like(tensor)).zero_()


def _group_norm(_: Hidden, tensor: Any, *__: Any) -> None:
    for _place in range(3):
        torch.empty(0, dtype=tensor.dtype)


def _group_norm_backward(_: Hidden, __: Any, tensor: Any, *___: Any) -> None:
    for _place in range(5):
        torch.empty(0, dtype=tensor.dtype)


def _nearest(hidden: Hidden, tensor: Any, sizes: Any, *_: Any) -> None:
    """upsample_nearest2d_kernel_impl: small images, and those whose channels come last, are resized with their channels last."""
    last = torch.channels_last
    made = hidden(lambda: tensor.new_empty([*tensor.shape[:2], *sizes]))
    if sum(sizes) > _SMALL_IMAGE and not (tensor.is_contiguous(memory_format=last) and tensor.shape[1] > 3):
        return
    for each in (tensor, made):
        if not each.is_contiguous(memory_format=last):
            each.contiguous(memory_format=last)
    if not made.is_contiguous(memory_format=last):
        made.copy_(hidden(lambda: made.contiguous(memory_format=last)))


def _nearest_backward(hidden: Hidden, _: Any, __: Any, shape: Any, *___: Any) -> None:
    hidden(lambda: torch.empty(shape)).zero_()


ON_HOST: dict[str, Callable[..., Any]] = {
    "aten.mkldnn_convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten._slow_conv2d_forward.default": _slow,
    "aten._slow_conv2d_backward.output_mask": _slow_backward,
    "aten.resize_as_.default": _resize_as,
    "aten.max_pool2d_with_indices_backward.default": _cleared,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
    "aten.upsample_nearest2d.default": _nearest,
    "aten.upsample_nearest2d_backward.default": _nearest_backward,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
}
