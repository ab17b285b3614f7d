"""Other people's scripts before and after a change (`validation.foreign`): prices, kernels, ranks and files that can be checked by hand."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from validation.foreign import prices
from validation.foreign.drawn import LATER, ODD, SEED, drawn, drawn_odd
from validation.foreign.job import Job
from validation.foreign.kernels import launched
from validation.foreign.kineto import write
from validation.foreign.loop import Group, Place, Recorded, Ways, rank_of
from validation.foreign.nodes import Node
from validation.foreign.pairs import BASES, PAIRS, drawn_pairs, folder_of
from validation.foreign.prices import Kind, Work, price
from validation.foreign.score import Score, drawn_section, score, section
from validation.machine import run
from validation.program import Program

import lumos
from lumos.changes.settings import parse_settings

EXAMPLES = Path(__file__).parents[1] / "examples" / "foreign"


def operator(
    name: str, *shapes: list[int], dtype: str = "c10::BFloat16", concrete: tuple[str, ...] = (), children: tuple[Node, ...] = ()
) -> Node:
    """An operator on contiguous tensors, that reached the device unless it holds others."""
    strides = [[1] if not shape else [*shape[1:], 1] for shape in shapes]
    facts = {"Input Dims": list(shapes), "Input type": [dtype] * len(shapes), "Input Strides": strides, "Concrete Inputs": list(concrete)}
    return Node(name, facts, reached=not children, children=list(children))


@pytest.fixture
def plain_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices without the factors that no formula knows."""
    monkeypatch.setattr(prices, "BY_NAME", 0.0)
    monkeypatch.setattr(prices, "BY_SHAPE", 0.0)


def multiplication(m: int) -> Work:
    return launched(operator("aten::mm", [m, 4096], [4096, 1152]), tf32=False).works[0]  # type: ignore[union-attr]


@pytest.mark.usefixtures("plain_prices")
def test_a_row_of_tiles_more_is_another_wave() -> None:
    """3072 × 1152 are 12 × 9 = 108 tiles of 256 × 128, one for each processor: 2 · 256 · 128 · 4096 FLOPs at 0.9 of 312 / 108 TFLOP/s take
    103.2 µs, and 2.2 µs come on top. With 8 rows more there are 9 tiles too many. The cheapest is then 128 × 64 at 0.72: 25 × 18 = 450
    tiles in 5 waves of 32.3 µs."""
    assert price(multiplication(3072)).us == pytest.approx(105.4, abs=0.1)
    assert price(multiplication(3080)).us == pytest.approx(5 * 32.26 + 2.2, abs=0.2)
    assert "256x128" in price(multiplication(3072)).name
    assert "128x64" in price(multiplication(3080)).name


def test_an_operator_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError, match="aten::new_fashion"):
        launched(operator("aten::new_fashion", [2, 2]), tf32=False)


def test_a_distributed_operator_launches_what_the_one_inside_launches() -> None:
    inner = operator("aten::mm", [8, 16], [16, 4])
    assert launched(operator("aten::mm", [8, 16], [16, 8], children=(inner,)), tf32=False) is None


def test_a_multiplication_at_which_a_repeated_layer_ends_launches_nothing() -> None:
    stopped = operator("aten::mm", [8, 16], [16, 4], children=(operator("aten::detach", [8, 16]),))
    stopped.reached = False
    assert launched(stopped, tf32=False) is None


def script() -> list[Node]:
    """A forward multiplication, a backward one whose gradient is exchanged, and an optimizer's kernel."""
    exchange = operator("c10d::allreduce_", [1_000_000], dtype="float", concrete=("", "True"))
    backward = Node("autograd::engine::evaluate_function: MmBackward0", {}, children=[operator("aten::mm", [1024, 1024], [1024, 4096])])
    return [
        operator("aten::linear", [4096, 1024], [1024, 1024], children=(operator("aten::mm", [4096, 1024], [1024, 1024]),)),
        Node("backward", {}, annotation=True, children=[backward, exchange]),
        operator("aten::add_", [1024, 1024], [1024, 1024]),
    ]


def test_a_recording_replays_as_the_machine_ran(tmp_path: Path) -> None:
    group = Group("0", "default_pg", (0, 1))
    ranks = [rank_of(script(), Ways(reads_loss=True), Place(number, {"": group})) for number in range(2)]
    ran = run(Program(tuple(each.rank for each in ranks)), 6)
    _, backward, exchange, update, _ = ran.ranks[0].work[:5]
    assert backward.end is not None
    assert exchange.end is not None
    assert exchange.start is not None
    assert update.start is not None
    assert backward.end <= exchange.start < exchange.end <= update.start
    paths = write(ran, ranks, tmp_path, 3, [{"": group}] * 2)
    replay = lumos.replay(lumos.build(lumos.read(*paths)))
    assert len(replay.steps) == 6
    assert all(abs(step.error) < 0.005 for step in replay.steps)  # no kernel queues behind another, so the gap between kernels is not seen
    assert {round(step.measured_ns) for step in replay.steps[1:3]} == {round(ran.period_ns(2))}
    text = gzip.decompress(Path(paths[0]).read_bytes()).decode()
    assert text.count('"ncclDevKernel_AllReduce_Sum_f32_RING_LL"') == 3
    assert text.count("MmBackward0") == 3


def test_half_of_the_pairs_are_held_out_and_all_of_them_can_be_asked() -> None:
    assert 0.4 < sum(pair.held_out for pair in PAIRS) / len(PAIRS) < 0.6
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    for pair in PAIRS:
        assert parse_settings(pair.change.split(","))
        assert pair.target != BASES[pair.base]


def test_the_shipped_recordings_are_answered_and_shuffled_truths_are_not_met() -> None:
    names = {folder_of(base) for base in BASES}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} <= names
    scores = score(EXAMPLES)
    shuffled = score(EXAMPLES, shuffle=True)
    assert scores
    answered = [abs(s.error) for s in scores if s.error is not None]
    wrong = [abs(s.error) for s in shuffled if s.error is not None]
    assert sorted(wrong)[len(wrong) // 2] > 5 * sorted(answered)[len(answered) // 2]
    assert section(scores).startswith("Written by `python -m validation.foreign DIR --held-out --write`")
    assert not any(s.pair.held_out for s in scores)


@pytest.mark.parametrize("seed", [SEED, 2, 3])
def test_drawn_pairs_are_new_and_are_shown_in_sums_alone(seed: int) -> None:
    """The draw is the same every time; none of its jobs is one that was chosen, and a table of them names no pair."""
    pairs = drawn_pairs(seed)
    assert len(pairs) >= 30
    assert drawn.__wrapped__(seed) == drawn(seed)
    assert not {pair.base for pair in pairs} & set(BASES)
    assert all(pair.hidden and pair.target != pair.job for pair in pairs)
    assert all(parse_settings(pair.change.split(",")) for pair in pairs)
    text = drawn_section([Score(pair, 1.0, 2.0, 2.0, 2.1, 1.9, 2.2) for pair in pairs], seed)
    assert f"{len(pairs)} of {len(pairs)}" in text
    assert "5.00%" in text
    assert not any(pair.change in text or pair.base in text for pair in pairs)


def test_an_odd_draw_holds_every_odd_family_and_counts_what_was_asked() -> None:
    pairs = drawn_pairs(7, odd=True)
    assert {pair.job.family for pair in pairs} == set(ODD)
    assert drawn_odd.__wrapped__(7) == drawn_odd(7) and all(pair.hidden and pair.target != pair.job for pair in pairs)
    scores = [Score(pair, 1.0, 2.0, 2.0, 2.1, 1.9, 2.2, asked=i % 4 == 0) for i, pair in enumerate(pairs)]
    text = drawn_section(scores, 7, odd=True)
    assert "--odd --seed 7 --write" in text and "| asked, of all" in text and f"25% of {len(pairs)}" in text
    assert not any(pair.change in text or pair.base in text for pair in pairs)


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("gpt_neox", {}),
        ("falcon", {"recompute": True}),
        ("qwen3_moe", {"dp": 2, "ep": 2, "precision": "bf16"}),
        ("mamba2", {}),
        ("whisper", {}),
        ("decoder", {"tp": 2}),
        ("decoder", {"dp": 2, "zero": 3}),
        ("pictures", {}),
        ("dlrm", {}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_scripts_of_later_draws_run_and_all_their_operators_have_kernels(family: str, how: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    from validation.foreign.record import ranks_of

    sizes = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 64, "experts": 4, "seq": 128, "tables": 3, "width": 16}
    sizes |= {"width_of_towers": 32, "micro_batch": 2}
    ranks = ranks_of(Job(family, {key: sizes[key] for key in LATER[family].split()}, clip=False).changed(how))
    collectives = sum("ncclDevKernel" in each.priced.name for each in ranks[0].launches)
    assert len(ranks[0].launches) > 30
    assert (collectives > 0) == (len(ranks) > 1)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_shared_by_hand_sums_once_after_each_part_and_once_before_it_in_the_backward_pass() -> None:
    """Two layers of two parts: four all-reduces forward and four backward, and multiplications of half the width."""
    pytest.importorskip("transformers")
    from validation.foreign.record import ranks_of

    whole, half = (
        ranks_of(Job("decoder", {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "micro_batch": 2, "seq": 32}, clip=False, tp=tp))[0]
        for tp in (1, 2)
    )
    assert sum("AllReduce" in each.priced.name for each in half.launches) == 8
    assert {n for n in _widths(whole) if n in (192, 256)} == {192, 256}
    assert {n for n in _widths(half) if n in (96, 128, 192, 256)} == {96, 128}


def _widths(recorded: Recorded) -> set[int]:
    """The columns of all multiplications' results."""
    return {each.work.shape[2] for each in recorded.launches if each.work is not None and each.work.kind is Kind.MULTIPLY}
