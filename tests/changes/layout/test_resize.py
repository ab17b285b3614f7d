"""Another batch of a model that is no transformer, from a drawn recording; and what no shape shows."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_rank import DrawnRank

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout, rewriting
from lumos.changes.layout.prices import growing
from lumos.changes.layout.reprice import reprice
from lumos.changes.layout.rescale import Devices
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.gemm_model import gemm
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.segment.rank import recordings_of
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import Grade

CONVOLUTION = ("aten::conv2d", [[16, 3, 32, 32], [48, 3, 3, 3], [48]], 10_000)
#: A kernel of another library, whose shapes say nothing.
FOREIGN = ("other::mix", [], 2_000)


def recording(tmp_path, *kernels, shapes=True):
    """Operators of 10 us, each with a launch of 3 us and a kernel (name, shapes, us, its own name), one after the other on a stream."""
    rank, at, free = DrawnRank(), 1000, 1000
    for name, dims, us, *kernel in kernels:
        kind = "TensorList" if "_foreach_" in name else "float"
        known = {"Input Dims": dims, "Input type": [kind] * len(dims)} if shapes and dims else {}
        free = max(free, at + 9)
        rank.launching(name, at, 10, (kernel[0] if kernel else f"kernel of {name}", free, us), **known)
        at, free = at + 11, free + us
    job = read(str(rank.write(tmp_path / "rank0.json", deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])))
    return job, build(job)


def ask(found, *words):
    return answer_changes(*found, Changes(parse_settings(words)), force=True)


def test_a_convolution_takes_four_times_as_long_for_four_times_the_batch(tmp_path):
    answer = ask(recording(tmp_path, CONVOLUTION), "micro_batch=64")
    # all but the kernel's fixed 2 us is multiplied by 4
    grown = 3 * (10_000 - 2) * 1e-6
    assert answer.outcome.step_time_s - answer.base.step_time_s == pytest.approx(grown, rel=1e-3)
    assert not [d for d in answer.diagnostics if d.code == "not-reached"]


def test_activations_with_the_shape_of_a_weight_grow_with_the_batch(tmp_path):
    """A batch of 4096 rows through 4096 columns: a function of the result has the shape of the weight, and is none."""
    width = 4096
    layer = ("aten::addmm", [[width], [width, width], [width, width]], 10)
    for name in ("aten::relu", "aten::threshold_backward"):
        answer = ask(recording(tmp_path, layer, (name, [[width, width]], 10_000)), f"micro_batch={2 * width}")
        # twice the bytes take twice the 10 ms, but for the fixed time of a kernel
        assert answer.outcome.step_time_s - answer.base.step_time_s == pytest.approx(10_000e-6, rel=0.05)


def test_the_width_of_linear_layers_alone_is_that_which_most_of_them_pass_on(tmp_path):
    """100 inputs, three layers from 512 to 512, 10 outputs, for 64 rows: the width is 512. An optimizer over a list without shapes follows
    the weights: 100 and 10 times the width and three times its square are 843,000 numbers, and with twice the width 3,259,000."""
    layers = [("aten::linear", [[64, k], [n, k], [n]], 10) for k, n in ((100, 512), (512, 512), (512, 512), (512, 512), (512, 10))]
    found = recording(tmp_path, *layers, ("aten::_foreach_adam_", [[], []], 100_000))
    answer = ask(found, "hidden=1024")
    assert answer.outcome.step_time_s / answer.base.step_time_s == pytest.approx(3_259 / 843, rel=0.01)


def test_the_width_may_equal_the_batch(tmp_path):
    """Rows, columns and depth of 4096: twice the width makes the multiplication, here as long as modelled, four and its function two times
    as long."""
    size = 4096
    modelled_us = int(gemm(size, size, size, load_cluster("h100").accelerator, "fp32").time) / 1000
    layer = ("aten::linear", [[size, size], [size, size], [size]], modelled_us), ("aten::add", [[size, size]] * 2, 0)
    found = recording(tmp_path, *layer, *layer, ("aten::relu", [[size, size]], 2 * modelled_us))
    answer = ask(found, f"hidden={2 * size}")
    assert answer.outcome.step_time_s / answer.base.step_time_s == pytest.approx((2 * 4 + 2 * 2) / 4, rel=0.05)


def test_copies_of_weights_do_not_grow_with_the_batch(tmp_path):
    layer = ("aten::addmm", [[256], [64, 256], [256, 256]], 10_000)
    cast = ("aten::copy_", [[256, 256], [256, 256]], 50_000)
    answer = ask(recording(tmp_path, layer, cast), "micro_batch=128")
    assert answer.outcome.step_time_s - answer.base.step_time_s < 15_000e-6


def test_the_measured_batch_again_is_the_same_step(tmp_path):
    """Nor is work unreached then of which no shape says what another batch would make."""
    answer = ask(recording(tmp_path, CONVOLUTION, FOREIGN), "micro_batch=16")
    assert answer.outcome.step_time_s == answer.base.step_time_s
    assert not [d for d in answer.diagnostics if d.code == "not-reached"]


def test_work_that_no_shape_describes_widens_the_interval(tmp_path):
    answer = ask(recording(tmp_path, CONVOLUTION, FOREIGN), "micro_batch=64")
    assert [d.code for d in answer.diagnostics if d.code == "not-reached"]
    assert answer.trust.grade is Grade.LIMITED
    alone = ask(recording(tmp_path, CONVOLUTION), "micro_batch=64")
    reach, of_alone = (found.outcome.step_time_high_s - found.outcome.step_time_s for found in (answer, alone))
    assert reach > 3 * 2_000e-6  # the foreign kernel could take four times its 2 ms
    assert reach == pytest.approx(np.hypot(of_alone, 3 * 2_000e-6), rel=0.1)


def test_an_optimizer_over_lists_without_shapes_grows_with_the_weights(tmp_path):
    # weights: a table of 1000 x 64, and 64 x 256 and 256 x 64, which become twice as large: 96,768 numbers become 129,536
    table, tokens = ("aten::embedding", [[1000, 64], [4, 32]], 10), ("aten::linear", [[4, 32, 64], [256, 64]], 10)
    passes = (table, tokens, ("aten::linear", [[4, 32, 256], [64, 256]], 10), ("aten::add", [[4, 32, 64]] * 2, 0))
    found = recording(tmp_path, *passes, ("aten::_foreach_adam_", [[], []], 100_000))
    answer = ask(found, "ffn=512")
    assert answer.outcome.step_time_s / answer.base.step_time_s == pytest.approx(129_536 / 96_768, rel=0.01)


def test_a_size_that_the_shapes_do_not_show_is_refused_with_what_they_show(tmp_path):
    with pytest.raises(LumosError, match="do not show hidden of a model; they show micro_batch"):
        ask(recording(tmp_path, CONVOLUTION), "hidden=64")


def test_shapes_that_were_not_recorded_are_asked_for(tmp_path):
    with pytest.raises(LumosError, match=r"no shapes of operators.*record_shapes=True"):
        ask(recording(tmp_path, CONVOLUTION, shapes=False), "micro_batch=64")


def test_a_change_that_reaches_no_task_is_no_answer(tmp_path):
    """The convolution shows the batch, but all time is that of a kernel whose shapes do not."""
    found = recording(tmp_path, (*CONVOLUTION[:2], 0), ("other::impl", [[7]], 10_000))
    with pytest.raises(LumosError, match=r"--set micro_batch = 64 \(measured: 16\): no task changed"):
        ask(found, "micro_batch=64")
    assert ask(found, "micro_batch=16").outcome.step_time_s == ask(found, "micro_batch=16").base.step_time_s


def test_a_batch_far_from_the_measured_one_lies_between_the_model_and_its_proportion(tmp_path):
    """A product of 32 rows is recorded at twice its modelled time. For 128 times the batch the model grows by a factor above four, so the
    answer is limited, and its interval reaches from the model's own time to twice that."""
    h100 = load_cluster("h100").accelerator
    before, after = (int(gemm(rows, 1024, 1024, h100, "fp32", cast=False).time) for rows in (32, 4096))
    assert after > 4 * before
    layer = ("aten::addmm", [[1024], [32, 1024], [1024, 1024]], 2 * before / 1000)
    answer = ask(recording(tmp_path, layer), "micro_batch=4096")
    assert "far-from-measured" in [reason.code for reason in answer.trust.reasons]
    grown = 1e9 * (answer.outcome.step_time_s - answer.base.step_time_s) + 2 * before
    assert after < grown < 2 * after
    assert 1e9 * answer.outcome.step_time_low_s < after + 20_000
    assert 1e9 * answer.outcome.step_time_high_s > 2 * after
    near = ask(recording(tmp_path, layer), "micro_batch=64")
    assert not [d for d in near.diagnostics if d.code == "far-from-measured"]


def test_an_operator_of_which_a_kernel_rounds_to_tf32_is_one_in_tf32(tmp_path):
    """With 32 rows instead of 4,096, on a device that has tf32 and on one that does not."""
    job, graph = recording(tmp_path, ("aten::mm", [[4096, 1024], [1024, 1024]], 500))
    named = replace(graph, names=[name.replace("of aten::mm", "tf32f32 of") for name in graph.names])

    def factor(device, of=named):
        layout, devices = measured_layout(segment(of, job)), Devices(*[load_cluster(device).accelerator] * 2)
        ((task, row, _),) = recordings_of(layout.segmentation, job)[0].work.in_order(lambda o: True)
        smaller = rewriting(layout, 0, [row], lambda _, o: o._replace(shapes=((32, 1024), (1024, 1024))))
        return reprice(smaller, job, devices).prices.best[task]

    def modelled(device, dtype):
        few, many = (gemm(rows, 1024, 1024, load_cluster(device).accelerator, dtype, cast=False) for rows in (32, 4096))
        return growing(int(few.time) / int(many.time), 0.0, 0.0)._replace(modelled=float(int(many.time))).carried(500_000).best

    assert factor("a100") == pytest.approx(modelled("a100", "tf32"))
    assert factor("v100") == pytest.approx(modelled("v100", "fp32"))
    assert factor("a100", graph) == pytest.approx(modelled("a100", "fp32"))
