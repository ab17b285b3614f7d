"""A command run without its accelerators, from the command to the traces that every verb reads."""

import pytest
from tests.emulation.emulated_scripts import written

import lumos
from lumos.emulation.facade import emulate

torch = pytest.importorskip("torch")

SCRIPT = """
import torch

model = torch.nn.Linear(256, 256).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    loss = model(torch.rand(64, 256, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_ranks_that_form_no_process_group_are_said_to_train_alone(tmp_path):
    found = emulate(written(tmp_path, SCRIPT), tmp_path / "out", "h100", ranks=2)
    assert len(found.files) == 2
    assert "no-process-group" in {each.code for each in found.diagnostics}


def test_on_the_cpu_an_execution_trace_is_written_whose_benchmark_runs(tmp_path):
    found = emulate(written(tmp_path, SCRIPT.replace('"cuda"', '"cpu"')), tmp_path / "out", "cpu")
    assert [path.rpartition("/")[2] for path in found.files] == ["rank0.et.json.gz"]
    lumos.proxy.generate(tmp_path / "out", tmp_path / "proxy")
    coverage = lumos.proxy.run(tmp_path / "proxy", repeat=1)["coverage_of_operators"]
    assert coverage == {"real": 1.0, "stand_in": 0.0, "skipped": 0.0}


def test_every_kernel_of_a_trace_is_linked_by_id_with_the_execution_trace_beside_it(tmp_path):
    emulate(written(tmp_path, SCRIPT), tmp_path / "out", "h100")
    (linked,) = lumos.chakra.link(tmp_path / "out" / "rank0.et.json.gz", tmp_path / "out" / "rank0.json.gz").ranks
    assert linked.by_method == {"id": linked.kernels, "alignment": 0, "enclosing": 0, "none": 0}
    assert linked.refuted == () and linked.kernels > 5
