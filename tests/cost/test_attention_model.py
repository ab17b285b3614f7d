"""Attention: physical properties, head shapes and context-parallel forms."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.cost.attention_model import AttentionCoefficients, QueryBlocks, attention, attention_seconds, shape_of
from lumos.cost.cluster import Accelerator, load_cluster
from lumos.errors import UsageError
from lumos.vocabulary import Direction, DType

NAMES = st.sampled_from(["h100", "a100-80gb", "b200", "gb300", "mi300x"])
DIRECTION = st.sampled_from(["fwd", "bwd", "fwd+bwd"])


def device(name: str = "h100") -> Accelerator:
    return load_cluster(name).accelerator


@given(st.integers(1, 16), st.integers(1, 20_000), st.integers(1, 64), st.integers(1, 256), NAMES, st.booleans(), DIRECTION)
def test_never_faster_than_the_roofline(batch: int, seq: int, heads: int, dim: int, name: str, causal: bool, direction: str) -> None:
    a = device(name)
    e = attention(batch, seq, heads, dim, a, causal=causal, direction=direction)
    pairs = batch * heads * (seq * (seq + 1) / 2 if causal else seq * seq)
    work = {"fwd": 1, "bwd": 2.5, "fwd+bwd": 3.5}[direction]
    assert e.low + 1 >= 4 * pairs * dim * work / a.peak("bf16") * 1e9
    assert e.low <= e.time <= e.high


@given(st.integers(1, 8), st.integers(1, 9000), st.integers(1, 32), st.integers(1, 128), st.integers(0, 3), st.booleans())
def test_monotone_in_every_size(batch: int, seq: int, heads: int, dim: int, grown: int, causal: bool) -> None:
    sizes = [batch, seq, heads, dim]
    larger = [x + (7 if i == grown else 0) for i, x in enumerate(sizes)]
    assert attention(*sizes, device(), causal=causal).time <= attention(*larger, device(), causal=causal).time


def test_lengths_that_do_not_fill_their_blocks_cost_code_that_masks() -> None:
    """5 blocks of queries of each head see 1 to 5 blocks of keys, 15 in all, and cost as much as 20 where the length is no 640."""
    c = AttentionCoefficients(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)  # a block takes 128 * 128 clocks, and nearly nothing else counts
    shape = shape_of(16, [559, 640], 16, 64)
    even, uneven = (
        attention_seconds(shape, True, Direction.FORWARD, device(), DType.BF16, c, how=QueryBlocks(0, n)).seconds for n in (0, 1)
    )
    assert uneven / even == pytest.approx([20 / 15, 1.0], rel=2e-3)
    assert attention(16, 559, 16, 64, device(), kernel="fa2").time > attention(16, 640, 16, 64, device(), kernel="fa2").time


def test_backward_costs_about_two_and_a_half_forwards() -> None:
    forward, backward, both = (attention(4, 8192, 16, 128, device(), direction=d).time for d in ("fwd", "bwd", "fwd+bwd"))
    assert 2.2 * forward < backward < 4 * forward
    assert both == pytest.approx(forward + backward, abs=2)


def test_shared_memory_holds_the_backward_pass_of_blackwell_back() -> None:
    """For heads of 128 in 16 bit and blocks of 128. Forward, two multiplications of 4.2 MFLOP at 8,192 FLOP a clock are 1,024 clocks, and
    three operands of 32 KB at 128 bytes a clock are 768: no difference. Backward, five are 2,560 clocks; seven operands of 32 KB, the
    scores' gradient written and read, and twice 64 KB in fp32 are 3,328."""
    b200 = device("b200")
    free = msgspec.structs.replace(b200, shared_bytes_per_clock=None)
    forward, backward = (
        attention(1, 131072, 16, 128, b200, direction=d, kernel="cudnn").time
        / attention(1, 131072, 16, 128, free, direction=d, kernel="cudnn").time
        for d in ("fwd", "bwd")
    )
    assert forward == 1
    assert backward == pytest.approx(1.25, abs=0.06)  # the softmax, which takes as long in both, is the rest
    assert load_cluster("gb300").accelerator.shared_bytes_per_clock == 128 and device().shared_bytes_per_clock is None


def test_a_kernel_of_another_generation_is_not_the_best_known() -> None:
    """FlashAttention 3 was measured on H100, whose coefficients stand for Blackwell too, and is not written for Blackwell."""
    for name in ("b200", "gb300"):
        best = attention(4, 8192, 16, 128, device(name)).time
        assert best == attention(4, 8192, 16, 128, device(name), kernel="cudnn").time
        assert best != attention(4, 8192, 16, 128, device(name), kernel="fa3").time


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"direction": "back"}, "direction 'back' is not known; valid: fwd, bwd"),
        ({"kernel": "fa9"}, "kernel 'fa9' is not known; valid: flash, fa3"),
        ({"head_dim": 257}, "head_dim at most 256"),
        ({"kv_heads": 9}, "kv_heads must be at most heads"),
        ({"seq_len": -1}, "sizes must be zero or more"),
        ({"clock": 2.0}, "clock is a fraction"),
        ({"dtype": "int4"}, "dtype 'int4' is not known"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], complaint: str) -> None:
    good: dict[str, object] = {"batch": 1, "seq_len": 128, "heads": 8, "head_dim": 64, "accelerator": device()}
    with pytest.raises(UsageError, match=complaint):
        attention(**{**good, **change})  # type: ignore[arg-type]
