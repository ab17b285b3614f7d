"""Experts of a mixture get equal shares of the tokens, however a script sorts the tokens by expert; and modules are named."""

import pytest
from tests.emulation.emulated_scripts import run

from lumos.vocabulary import MODULE_PREFIX

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

SCRIPT = """
    EXPERTS, CHOSEN = 8, 2

    class Mixture(nn.Module):
        def __init__(self, way):
            super().__init__()
            self.way, self.gate = way, nn.Linear(16, EXPERTS)
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(EXPERTS))

        def forward(self, x):
            weights, chosen = torch.topk(self.gate(x), CHOSEN, dim=-1)
            return sum(expert(x[self.way(i, chosen)]).sum() for i, expert in enumerate(self.experts))

    def by_comparison(i, chosen):
        return torch.where(chosen == i)[0]

    def by_rank(i, chosen):  # four experts on each of two ranks, which are told how many rows go to each
        routed = torch.zeros(len(chosen), EXPERTS, device="cuda").int().scatter(1, chosen, 1).bool()
        per_expert = routed.sum(dim=0).long()
        per_rank = per_expert.reshape(2, 4).sum(axis=1)
        assert per_rank.to("cpu").numpy().tolist() == [64, 64] and per_expert.sum().item() == 128
        rows = torch.arange(64, device="cuda").expand(EXPERTS, 64).masked_select(routed.T.contiguous())
        return rows.split(per_expert.tolist())[i]

    def by_count(i, chosen):
        counts = torch.histc(chosen.view(-1).float(), bins=EXPERTS, min=0, max=EXPERTS).int().tolist()
        return (torch.argsort(chosen.view(-1)) // CHOSEN).split(counts)[i]

    ways = [Mixture(way).cuda() for way in (by_comparison, by_rank, by_count)]
    model = nn.ModuleList(ways)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.rand(64, 16, device="cuda")
        sum(way(x) for way in ways).backward()
        optimizer.step()
        groups = torch.arange(8, device="cuda").int()
        grouped = torch._grouped_mm(torch.rand(64, 16, device="cuda"), torch.rand(8, 16, 32, device="cuda"), offs=groups)
        assert grouped.shape == (64, 32) and grouped.dtype == torch.float32
"""


def test_each_expert_gets_its_share_of_the_tokens_and_modules_are_marked_by_class_and_number(tmp_path):
    (process,) = run(tmp_path, SCRIPT)
    rows = [each.inputs[1].shape[0] for each in process.operators if each.leaf and each.name == "aten::addmm"]
    gates, experts = rows.count(64), rows.count(64 * 2 // 8)
    assert (gates, experts) == (3, 3 * 8)
    codes = {note.code for note in process.notes}
    assert "balanced-experts" in codes and "stand-in-selection" not in codes
    names = [mark.name.removeprefix(MODULE_PREFIX) for mark in process.marks if mark.name.startswith(MODULE_PREFIX)]
    assert [name for name in names if "Mixture" in name] == ["Mixture_0", "Mixture_1", "Mixture_2"]
    assert len({name for name in names if "Linear" in name}) == 3 * (1 + 8)
    gate = next(mark for mark in process.marks if mark.name == f"{MODULE_PREFIX}Linear_0")
    inside = [each.name for each in process.operators if gate.begin < each.begin and each.end < gate.end and each.leaf]
    assert "aten::addmm" in inside
