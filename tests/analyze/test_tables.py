from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steps import members
from lumos.analyze.tables import ModuleRow, OperatorRow, tabulate, tensor_cores
from lumos.errors import TraceError
from lumos.simulation.timeline import measured
from lumos.trace.table import Category, Job

US = 1000


def rows(graph, by, job=None):
    return tabulate(measured(graph), members(graph), by, job or Job(()))


def test_by_kernel(two_steps):
    """Of both steps only the second counts, as it has a period; the first counts where there is no other."""
    assert [(r.name, r.tasks, r.total_ns, r.share) for r in rows(two_steps, "kernel")] == [("k2", 1, 31 * US, 1.0)]
    found = rows(replace(two_steps, steps=two_steps.steps[:1]), "kernel")
    assert [(r.name, r.tasks, r.total_ns) for r in found] == [("nccl", 1, 30 * US), ("k1", 1, 26 * US)]
    assert sum(r.share for r in found) == pytest.approx(1)


def test_by_operator(launched):
    job, graph = launched
    assert rows(graph, "operator", job) == (OperatorRow("aten::mm", 2, 160 * US, 1.0, 1, 10 * US, 1.0),)


def test_by_module(launched):
    job, graph = launched
    assert rows(graph, "module", job) == (ModuleRow("Linear_0", 2, 160 * US, 1.0),)


def test_by_module_as_the_script_says(launched):
    job, graph = launched
    owners = members(graph)
    found = tabulate(measured(graph), owners, "module", job, {3: "layers.0.mlp", 4: ""}.__getitem__)
    assert found == (ModuleRow("(none)", 1, 100 * US, 0.625), ModuleRow("layers.0.mlp", 1, 60 * US, 0.375))


def test_a_named_range_takes_the_place_of_a_module(launched, record):
    """Range "mlp" is around the forward operator alone; that of the step and of the library are none."""
    job, graph = launched
    (trace,) = job.traces
    for name, kept in (("## mlp ##", True), ("ProfilerStep#1", False), ("nccl:all_reduce", False)):
        strings = [text.replace("nn.Module: Linear_0", name) for text in trace.strings]
        marked = replace(trace, strings=strings, category=np.where(trace.category == Category.PYTHON, Category.ANNOTATION, trace.category))
        if kept:
            assert rows(graph, "module", Job((marked,))) == (ModuleRow(name, 2, 160 * US, 1.0),)
        else:
            with pytest.raises(TraceError, match="no row names a module"):
                rows(graph, "module", Job((marked,)))


@pytest.mark.parametrize(
    ("name", "on"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", True),
        ("ampere_s16816gemm_fp16_64x64_ldg8_f2f_tn", True),
        ("nvjet_hsh_128x128_64x6_1x2_h_bz_TNN", True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x64_MI16x16x4x1_SN", True),
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", False),
        ("volta_hgemm_128x64_tn", False),
        ("volta_sgemm_64x64_nt", False),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, float>", False),
        ("fmha_bwd_kernel", None),
        ("vectorized_elementwise_kernel_bf16", None),
    ],
)
def test_which_kernels_multiply_on_tensor_cores(launched, name, on):
    graph = replace(launched[1], names=[name if each == "gemm" else each for each in launched[1].names])
    (row,) = rows(graph, "kernel")
    assert row.tensor_cores is on
    of = tensor_cores(measured(graph), members(graph))
    multiplies = "elementwise" not in name
    assert of == (160 * US * (on is True), 160 * US * (on is False), 160 * US * (on is None and multiplies), float(on is True))


def test_by_module_says_what_to_record(launched, record):
    with pytest.raises(TraceError, match=r"hand\.json.*with_modules.*--before"):
        rows(launched[1], "module", Job((record((1, "op", 0, 0, 1)),)))


def test_by_stream(two_steps):
    """Step 1, 80 … 150, has k2 on stream 7; the collective on stream 8 is of step 0, which does not count."""
    seven, eight = rows(two_steps, "stream")
    assert (seven.name, seven.tasks, seven.busy_ns) == ("stream 7", 1, 31 * US)
    assert (eight.name, eight.tasks, eight.busy_ns) == ("stream 8", 0, 0)
    assert seven.share == pytest.approx(31 / 70)
    assert (sum(seven.idle), sum(eight.idle)) == (39 * US, 70 * US)
    assert (seven.queue, eight.queue) == ((pytest.approx(33 / 70), 1), (0, 0))
