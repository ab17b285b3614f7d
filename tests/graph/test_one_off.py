"""Time that a job takes once: loading of code, compilation, and trying out kernels; times in µs."""

import pytest

from lumos.graph.build import build
from lumos.graph.one_off import recurring
from lumos.graph.table import Kind

US = 1000


@pytest.fixture
def launches(draw, job):
    """A job whose thread launches kernels one after the other, from (name, µs of the call); each kernel takes 5 µs, once its call ends."""

    def make(*calls):
        drawing, at = draw(), 0
        for name, time in calls:
            drawing.launch((at, time), (at + time, 5), name=name)
            at += time
        return job(drawing)

    return make


def codes(graph):
    return {d.code: d.message for d in graph.diagnostics}


def test_the_first_launch_of_a_kernel_loads_it(launches):
    """Ten launches take 10 µs each; the first of "gemm" takes 3000, all but the usual 10 to load it."""
    graph = build(launches(*[("add", 10)] * 5, ("gemm", 3000), *[("gemm", 10)] * 5))
    assert "takes 2.99 ms in 1 piece of work, most of it 50.00 µs after the first work" in codes(graph)["module-loading"]
    assert graph.duration[graph.kind == Kind.LAUNCH].sum() == (100 + 3000) * US
    calls = recurring(graph)
    assert calls.duration[graph.kind == Kind.LAUNCH].tolist() == [10 * US] * 11 and calls.one_off is None


@pytest.mark.parametrize(
    "calls", [[("add", 10)] * 5 + [("add", 3000)], [("add", 2)] * 5 + [("gemm", 90)], [("add", 10)] * 5 + [("gemm", 150)]]
)
def test_other_long_launches_are_no_loading(launches, calls):
    """A later launch of the kernel may be long for any reason, and a first one is long only from 100 µs and 20 times the usual time on."""
    graph = build(launches(*calls))
    assert graph.one_off is None and "module-loading" not in codes(graph) and recurring(graph) is graph


def test_calls_that_load_modules(draw, job):
    drawing = draw().op("load", 0, 100).call("cuModuleLoadDataEx", 10, 80)
    drawing.launch((100, 10), (110, 5))
    graph = build(job(drawing))
    assert "takes 80.00 µs" in codes(graph)["module-loading"]
    assert recurring(graph).duration.sum() == graph.duration.sum() - 80 * US


def test_the_first_call_of_a_name_starts_the_driver(draw, job):
    """Of 30 ms, the call that asks for priorities takes 20 once; the first of two that allocate takes 11, of which 1 is usual."""
    drawing = draw().op("work", 0, 40_000).call("cudaDeviceGetStreamPriorityRange", 0, 20_000)
    drawing.call("cudaMalloc", 20_000, 11_000).call("cudaMalloc", 32_000, 1000).launch((35_000, 10), (35_010, 5))
    graph = build(job(drawing))
    assert "takes 30.00 ms in 2 pieces of work, most of it 0 ns after the first work, in cudaDevice" in codes(graph)["driver-start"]
    assert recurring(graph).duration.sum() == graph.duration.sum() - 30_000 * US


def test_autotuning_is_left_out_with_its_kernels(draw, job):
    """A range tries out two kernels of 50 µs, with calls of 10; then one of 20 runs."""
    drawing = draw().row("user_annotation", "CachingAutotuner.benchmark_all_configs (dynamo_timed)", 0, 200)
    drawing.op("triton", 0, 20).launch((20, 10), (30, 50), name="a").launch((100, 10), (110, 50), name="b")
    drawing.launch((300, 10), (310, 20), name="b").op("last", 310, 10)
    graph = build(job(drawing))
    assert "autotuning" in codes(graph) and "module-loading" not in codes(graph)
    left = recurring(graph)
    assert [int(d) // US for d, k in zip(left.duration, graph.kind, strict=True) if k == Kind.KERNEL] == [0, 0, 20]
    assert int(left.duration[graph.kind == Kind.LAUNCH].sum()) == 10 * US


def compiled_at(draw, *starts, name="_compile.compile_inner (dynamo_timed)"):
    """Three steps of 1000 with a launch of 10 and a kernel of 50 each; ranges of 300 compile, 100 after the starts of some steps."""
    drawing = draw()
    for number in range(3):
        begin = 1000 * number
        drawing.step(number, begin, 1000).row("cpu_op", "TorchDynamo Cache Lookup", begin, 40)
        if begin in starts:
            drawing.row("cpu_op", name, begin + 100, 300).op("aten::empty", begin + 200, 20)
        drawing.launch((begin + 500, 10), (begin + 510, 50)).op("last", begin + 600, 300)
    return drawing


@pytest.mark.parametrize("name", ["_compile.compile_inner (dynamo_timed)", "/site-packages/triton/compiler/compiler.py(226): compile"])
def test_compilation_is_left_out(job, draw, name):
    """A step that compiles for 300 does so once; what looks up compiled code in every step stays."""
    graph = build(job(compiled_at(draw, 0, name=name)))
    assert "compiling takes 300.0 µs in 3 pieces of work, most of it 220.0 µs after the first work" in codes(graph)["compilation"]
    assert recurring(graph).duration.sum() == graph.duration.sum() - 300 * US


def test_what_every_step_does_is_no_compilation(job, draw):
    """A job that compiles in each of three steps keeps that."""
    graph = build(job(compiled_at(draw, 0, 1000, 2000)))
    assert graph.one_off is None and "compilation" not in codes(graph)
