"""What a script finds its device's memory to be: full at its limit, and told of in every way that torch has."""

import pickle

import pytest
from tests.emulation.emulated_scripts import run

from lumos.emulation.peak import holdings, peak
from lumos.emulation.record import MemoryKind

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

MIB = 1 << 20
TRAINED = """
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step(rows=512):
    optimizer.zero_grad()
    model(torch.ones(rows, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_script_that_catches_the_error_and_shrinks_goes_on(tmp_path):
    body = """
size = 1 << 24
while True:
    try:
        for _ in range(2):
            step(size)
        break
    except torch.cuda.OutOfMemoryError as error:
        assert "GPU 0 has a total capacity of 79.20 GiB" in str(error) and torch.cuda.memory_stats()["num_ooms"] >= 1
        size //= 2
"""
    (process,) = run(tmp_path, TRAINED + body)
    (note,) = (note for note in process.notes if note.code == "out-of-memory")
    assert note.where.endswith("train.py:9") and note.count >= 1
    assert peak(process).reserved_bytes <= process.room


def test_every_piece_of_memory_has_a_kind_and_a_module(tmp_path):
    """By hand: 1024 x 2048 + 2048 and 2048 x 1024 + 1024 parameters in fp32; two moments of each; and 512 rows of 2048 after ReLU, which
    that and the second layer keep, those before it being given back with the range of the module."""
    (process,) = run(tmp_path, TRAINED + "for _ in range(3): step()\n")
    begin = min(each.begin for each in process.operators if each.name.startswith("autograd::engine"))
    owners = {each.storage: (each.kind, each.module) for each in process.owners}
    before = [each for each in process.allocations if each.position < begin]
    found = {(each.kind, each.module): each.bytes for each in holdings(before, owners)}
    weights = {"*": (2 * 1024 * 2048 + 2048 + 1024) * 4}
    assert {module: size for (kind, module), size in found.items() if kind is MemoryKind.PARAMETER} == weights
    states = {module: size for (kind, module), size in found.items() if kind is MemoryKind.OPTIMIZER_STATE}
    assert states.pop("*") == 2 * weights["*"] and not states
    assert found[MemoryKind.ACTIVATION, "*"] == 512 * 2048 * 4
    assert found[MemoryKind.ACTIVATION, ""] == 512 * 1024 * 4 + 2 * 512, "the batch, the sum and its gradient"
    end = holdings(process.allocations, owners)
    assert {each.module: each.bytes for each in end if each.kind is MemoryKind.GRADIENT} == weights
    assert found[MemoryKind.TEMPORARY, "workspace of cuBLAS"] == 2 * 32 * MIB, "of the main and of the backward thread"


def test_statistics_information_and_snapshots_tell_the_same(tmp_path):
    body = """
import pickle
torch.cuda.memory._record_memory_history(max_entries=1000)
held = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
lent = torch.empty(600, dtype=torch.uint8, device="cuda")
del lent
stats = torch.cuda.memory_stats()
assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (3 << 20, 22 << 20)
assert (stats["segment.large_pool.current"], stats["segment.small_pool.current"], stats["allocation.all.freed"]) == (1, 1, 1)
assert stats["requested_bytes.small_pool.allocated"] == 600
free, whole = torch.cuda.mem_get_info()
assert sum(each["total_size"] for each in torch.cuda.memory_snapshot()) == torch.cuda.memory_reserved()
torch.cuda.memory._dump_snapshot("kept.pickle")
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 20 << 20 and torch.cuda.mem_get_info() == (free + (2 << 20), whole)
"""
    run(tmp_path, body + TRAINED + "for _ in range(2): step()\n")
    snapshot = pickle.loads((tmp_path / "snapshots" / "rank0.kept.pickle").read_bytes())
    actions = [each["action"] for each in snapshot["device_traces"][0]]
    assert actions == ["segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed"]
    (block,) = (each for segment in snapshot["segments"] for each in segment["blocks"] if each["state"] == "active_allocated")
    assert (block["size"], block["frames"][0]["line"]) == (3 * MIB, 7) and block["frames"][0]["filename"].endswith("train.py")
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    assert "segments: 2" in viewer.segsum(snapshot) and "alloc" in viewer.trace(snapshot)
    assert "kept.pickle" not in {each.name for each in tmp_path.iterdir()}
