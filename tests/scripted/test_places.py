"""Where operators stand in a script: their module, phase, occurrence, layer and microbatch."""

from lumos.emulation.record import Mark, Operator, Process
from lumos.scripted.places import ScriptInstance, placed
from lumos.vocabulary import Phase

MODULES = {"nn.Module: Model_0": "Model", "nn.Module: Linear_0": "layers.0.up", "nn.Module: Linear_1": "layers.1.up"}


def op(name, begin, end, **more):
    return Operator(name=name, thread=0, begin=begin, end=end, **more)


def mark(name, begin, end):
    return Mark(name, 0, begin, end)


def test_layers_and_microbatches_have_one_place_and_backward_nodes_are_their_forward_modules():
    marks = [mark("ProfilerStep#0", 1, 100), mark("Optimizer.step#SGD.step", 80, 90)]
    operators = []
    for microbatch, at in ((0, 2), (1, 40)):
        marks.append(mark("nn.Module: Model_0", at, at + 12))
        for layer in (0, 1):
            begin = at + 1 + 5 * layer
            marks.append(mark(f"nn.Module: Linear_{layer}", begin, begin + 4))
            operators.append(op("aten::addmm", begin + 1, begin + 3, sequence=10 * microbatch + layer))
        for i, layer in enumerate((1, 0)):
            begin = at + 14 + 4 * i
            node = {"sequence": 10 * microbatch + layer, "forward_thread": 0}
            operators.append(op("autograd::engine::evaluate_function: AddmmBackward0", begin, begin + 3, **node))
            operators.append(op("aten::mm", begin + 1, begin + 2))
    operators.append(op("aten::add_", 81, 82))
    operators.append(op("aten::add_", 83, 84))
    process = Process(
        rank=0, world=1, accelerator="cpu", torch="2", threads=["main"], operators=operators, marks=marks, modules=MODULES
    )
    found = placed(process)
    where = [(o.name, p.phase, p.module, p.occurrence, at) for o, p, at in zip(operators, found.place, found.instance, strict=True)]
    multiplied = [each for each in where if each[0] in ("aten::addmm", "aten::mm")]
    assert [each[4] for each in multiplied] == [
        ScriptInstance(0, (0,)), ScriptInstance(0, (1,)), ScriptInstance(0, (1,)), ScriptInstance(0, (0,)),
        ScriptInstance(1, (0,)), ScriptInstance(1, (1,)), ScriptInstance(1, (1,)), ScriptInstance(1, (0,)),
    ]  # fmt: skip
    assert {each[:4] for each in multiplied} == {
        ("aten::addmm", Phase.FORWARD, "layers.*.up", 0), ("aten::mm", Phase.BACKWARD, "layers.*.up", 0),
    }  # fmt: skip
    assert [each[1:] for each in where[-2:]] == [(Phase.OPTIMIZER, "", i, ScriptInstance(0, ())) for i in (0, 1)]
