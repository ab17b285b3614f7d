"""Recurrent networks on an NVIDIA device: the one call of cuDNN that torch makes of a whole network, and its backward; and the lengths
of their sequences, which the host must know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Kinds of networks as cuDNN numbers them (cudnnRNNMode_t).
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def _network(kind: str) -> Callable[..., Any]:
    """The operator `kind` on a batch of sequences of one length, or on packed ones: batch_sizes says how many are left at each moment."""

    def run(
        input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
        batch_first: bool, batch_sizes: Sequence[int] = (),
    ) -> Any:  # fmt: skip
        states = list(hx) if kind == "lstm" else [hx, None]
        hidden, projected = params[1].shape[1], 0
        if kind == "lstm" and states[1].shape[-1] != states[0].shape[-1]:
            hidden, projected = states[1].shape[-1], states[0].shape[-1]
        masks = torch.empty(0, dtype=torch.uint8, device=input.device) if dropout and train else None
        out, final, cell, _, _ = torch.ops.aten._cudnn_rnn(
            input, params, 4 if has_biases else 2, params[0].new_empty(0), states[0], states[1], _MODES[kind], hidden, projected,
            num_layers, batch_first, dropout, train, bidirectional, list(batch_sizes), masks,
        )  # fmt: skip
        return (out, final, cell) if kind == "lstm" else (out, final)

    return run


def _packed(network: Callable[..., Any]) -> Callable[..., Any]:
    """The same operator with the arguments that it has for packed sequences."""

    def run(data: Any, batch_sizes: Any, hx: Any, params: Any, *rest: Any) -> Any:
        return network(data, hx, params, *rest, False, batch_sizes.tolist())

    return run


def backward(_: Any, __: Any, args: Any, ___: Any) -> Any:
    """Gradients of the shapes of what they are gradients of. The arguments are those of aten::_cudnn_rnn_backward."""
    given, weights, hidden, cell = args[0], args[1], args[4], args[5]
    gradients = [torch.empty_like(each) for each in weights]
    return torch.empty_like(given), torch.empty_like(hidden), None if cell is None else torch.empty_like(cell), gradients


def lengths(mode: Any, given: Any, longest: int) -> Any:
    """The lengths of a batch of sequences, as a tensor with data; where they come from the device, each is as long as the longest."""
    if not isinstance(given, FakeTensor) or mode.known.has(given):
        return mode.known.copied(given) if isinstance(given, FakeTensor) else given
    mode.journal.assume("stand-in-lengths", "sequences whose lengths come from the device are all as long as the longest")
    with mode.aside(hidden=True):
        return torch.full(tuple(given.shape), longest, dtype=given.dtype)


def _losses_by_lengths(mode: Any) -> None:
    """Let the loss of connectionist temporal classification get the lengths as numbers, which torch makes of tensors where they have data:
    of others it keeps tensors of the host, which do not go together with those of the device."""
    loss = torch.ctc_loss

    def ctc_loss(scores: Any, targets: Any, moments: Any, letters: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(moments, torch.Tensor) and isinstance(letters, torch.Tensor):
            most = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // max(letters.numel(), 1)
            asked = lengths(mode, moments, scores.shape[0]), lengths(mode, letters, most)
            with mode.aside(hidden=True):
                moments, letters = (each.reshape(-1).tolist() for each in asked)
        return loss(scores, targets, moments, letters, *rest, **named)

    torch.ctc_loss = ctc_loss


def call_cudnn(library: Any, mode: Any) -> None:
    """Let the operators call cuDNN where autograd would call their parts. mode: the mode that the script runs in."""
    _losses_by_lengths(mode)
    for kind in _MODES:
        network = _network(kind)
        library.impl(f"{kind}.input", network, "AutogradCUDA")
        library.impl(f"{kind}.data", _packed(network), "AutogradCUDA")
