"""What a compiled function keeps in memory: results that a kernel makes and uses up take none."""

from __future__ import annotations

import pytest
from tests.emulation.emulated_scripts import run

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

#: Memory is counted in MiB, of which x and w take one each. It is counted in the recorded step and in the one before.
HEAD = """
MIB = 1 << 20
held = lambda: torch.cuda.memory_allocated() / MIB
x, w = (torch.ones(512, 512, device="cuda", requires_grad=True) for _ in range(2))
(x @ w).sum().backward()  # takes workspaces of cuBLAS
x.grad = w.grad = None
optimizer = torch.optim.SGD([x, w], lr=0.1)
begin = held()
def check(function, after, peak, backward=True):
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        out = function(x)
        assert round(held() - begin, 1) == after, held() - begin
        if backward:
            out.sum().backward()
        del out
        assert round(torch.cuda.max_memory_allocated() / MIB - begin, 1) == peak, torch.cuda.max_memory_allocated() / MIB - begin
        optimizer.step()
        x.grad = w.grad = None
"""


def test_a_chain_of_fused_operators_keeps_only_what_it_began_with(tmp_path):
    """Without the compiler three results are kept for the backward pass; with it a single number, and the gradient is made at the end."""
    chain = "chain = lambda x: x.exp().exp().exp().mean()\n"
    run(tmp_path, f"{HEAD}{chain}check(chain, 3.0, 5.0)\ncheck(torch.compile(chain), 0.0, 1.0)\n")


def test_what_a_multiplication_takes_lies_in_memory_and_stays_for_the_backward_pass(tmp_path):
    """exp(x) is made for the product and kept. The product is made, taken in by the sum, and gone."""
    run(tmp_path, f"{HEAD}check(torch.compile(lambda x: (x.exp() @ w).sum()), 1.0, 4.0)\n")


def test_what_the_script_gets_and_complex_numbers_lie_in_memory(tmp_path):
    turned = "lambda x: torch.view_as_real(torch.view_as_complex(x.view(512, 256, 2)) * 2).sum()"
    checks = f"check(torch.compile({turned}), 0.0, 1.0, backward=False)\n"
    run(tmp_path, f"{HEAD}{checks}check(torch.compile(lambda x: (x + 1).relu()), 1.0, 1.0, backward=False)\n")


def test_what_a_fused_result_is_made_from_stays_as_long_as_that_is_needed(tmp_path):
    """The product is kept in the place of its exponential, which the backward pass needs. It goes once the gradient of the product lies in
    memory, of which two others are made."""
    run(tmp_path, f"{HEAD}check(torch.compile(lambda x: (x @ w).exp().mean()), 1.0, 3.0)\n")


def test_gradients_that_compiled_code_makes_lie_in_memory(tmp_path):
    body = "out = torch.compile(lambda x: x.exp().mean())(x)\nout.backward()\nassert round(held() - begin, 1) == 1.0, held() - begin\n"
    run(tmp_path, f"{HEAD}{body}for _ in range(2): optimizer.step()\n")


def test_a_compiled_module_has_its_own_as_in_torch(tmp_path):
    body = """
    from torch._dynamo.eval_frame import OptimizedModule
    module = nn.Sequential(nn.Linear(512, 512)).cuda()
    compiled = torch.compile(module)
    assert isinstance(compiled, OptimizedModule) and compiled._orig_mod is module and len(compiled) == 1
    assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    for _ in range(2):
        compiled(torch.ones(4, 512, device="cuda")).sum().backward()
        optimizer.step()
    """
    (process,) = run(tmp_path, body)
    assert {each.module for each in process.owners if each.kind == "parameter"} == {"0"}
