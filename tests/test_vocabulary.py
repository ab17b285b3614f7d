"""The closed sets: every spelling gives one member, and a word that is no member is recognised as such."""

import pytest

from lumos.vocabulary import CollectiveKind, DType, Phase


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all-reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("_allgather_base", "all-gather"),
        ("nccl:all_to_all", "all-to-all"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send-receive"),
        ("c10d::send", "send"),
        ("c10d::recv_", "receive"),
        ("recv", "receive"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("gloo:broadcast", "broadcast"),
        ("void deep_ep::internode::dispatch<…>", "all-to-all"),
    ],
)
def test_kinds_in_names(name, kind):
    assert CollectiveKind.in_name(name) is CollectiveKind(kind)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("all-reduce", "all_reduce", "AllReduce", "allreduce", " all reduce "), CollectiveKind.ALL_REDUCE),
        (("all-gather", "_allgather_base", "all_gather"), CollectiveKind.ALL_GATHER),
        (("reduce-scatter", "reducescatter", "_reduce_scatter_base"), CollectiveKind.REDUCE_SCATTER),
        (("all-to-all", "alltoall", "all_to_allv"), CollectiveKind.ALL_TO_ALL),
        (("send-receive", "send-recv", "sendrecv", "p2p"), CollectiveKind.SEND_RECEIVE),
        (("send",), CollectiveKind.SEND),
        (("receive", "recv"), CollectiveKind.RECEIVE),
    ],
)
def test_words_of_tables_and_users(words, kind):
    assert {CollectiveKind.of_word(word) for word in words} == {kind}


def test_what_is_gathered_grows_with_the_group():
    assert CollectiveKind.ALL_GATHER.buffer_bytes(1000, 8) == 8000
    assert CollectiveKind.ALL_GATHER.input_bytes(8000, 8) == 1000
    assert CollectiveKind.REDUCE_SCATTER.buffer_bytes(8000, 8) == CollectiveKind.REDUCE_SCATTER.input_bytes(8000, 8) == 8000


def test_transfers_are_between_two_ranks():
    assert {k for k in CollectiveKind if k.is_transfer} == {CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.SEND_RECEIVE}


@pytest.mark.parametrize(
    ("names", "dtype", "nbytes"),
    [
        (("float", "Float", "torch.float32", "fp32"), DType.FP32, 4),
        (("c10::BFloat16", "BFloat16", "bfloat16", "bf16", "torch.bfloat16"), DType.BF16, 2),
        (("c10::Half", "Half", "float16", "fp16"), DType.FP16, 2),
        (("c10::Float8_e4m3fn", "Float8_e4m3fn", "fp8_e4m3", "fp8"), DType.FP8, 1),
        (("c10::Float8_e5m2",), DType.FP8_E5M2, 1),
        (("long int", "Long", "int64"), DType.INT64, 8),
        (("unsigned char", "Byte", "uint8"), DType.UINT8, 1),
        (("signed char", "Char", "int8"), DType.INT8, 1),
        (("c10::complex<float>", "ComplexFloat", "complex64"), DType.COMPLEX64, 8),
        (("tf32", "TensorFloat32"), DType.TF32, 4),
    ],
)
def test_types_of_elements(names, dtype, nbytes):
    assert {DType.parse(name) for name in names} == {dtype}
    assert dtype.bytes == nbytes


def test_forms_of_fp8_multiply_alike():
    assert {d for d in DType if d.arithmetic is not d} == {DType.FP8_E5M2, DType.FP8_E4M3FNUZ, DType.FP8_E5M2FNUZ}
    assert DType.FP8_E5M2.arithmetic is DType.FP8


def test_phases_keep_the_numbers_and_words_that_are_stored():
    words = ("forward", "backward", "recompute", "optimizer", "other", "sync")
    assert [(int(phase), phase.word) for phase in Phase] == list(enumerate(words))
