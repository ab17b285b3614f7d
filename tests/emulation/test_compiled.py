"""What a compiled function keeps in memory: results that a kernel makes and uses up take none."""

import textwrap

import pytest
from tests.emulation.emulated_scripts import run

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.fusion import launched
from lumos.emulation.device.kernels import Kernels

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


def test_what_compiled_code_makes_and_uses_up_takes_no_memory(tmp_path):
    checks = """
    chain = lambda x: x.exp().exp().exp().mean()
    check(chain, 3.0, 5.0)  # three results are kept for the backward pass
    check(torch.compile(chain), 0.0, 1.0)  # a single number is kept, and the gradient is made at the end
    # exp(x) is made for the product and kept. The product is made, taken in by the sum, and gone.
    check(torch.compile(lambda x: (x.exp() @ w).sum()), 1.0, 4.0)
    # Complex numbers lie in memory, and so does what the script gets.
    turned = lambda x: torch.view_as_real(torch.view_as_complex(x.view(512, 256, 2)) * 2).sum()
    check(torch.compile(turned), 0.0, 1.0, backward=False)
    check(torch.compile(lambda x: (x + 1).relu()), 1.0, 1.0, backward=False)
    # The product is kept in the place of its exponential, which the backward pass needs. It goes once the gradient of the product lies in
    # memory, of which two others are made.
    check(torch.compile(lambda x: (x @ w).exp().mean()), 1.0, 3.0)
    torch.compile(lambda x: x.exp().mean())(x).backward()
    assert round(held() - begin, 1) == 1.0, "a gradient that compiled code makes"
    """
    run(tmp_path, HEAD + textwrap.dedent(checks))


LAYERS = """
layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512)) for _ in range(12)).cuda()
optimizer = torch.optim.SGD(layers.parameters(), 0.1)
through = torch.compile(lambda x: [x := x + layer(x) for layer in layers][-1].sum())
for _ in range(2):
    through(torch.ones(1024, 512, device="cuda")).backward()
    optimizer.step()
"""


def test_sums_along_the_layers_are_made_once(tmp_path):
    (process,) = run(tmp_path, LAYERS)
    launches, _ = launched(process, Kernels(load_cluster("h100").accelerator))
    norms = [one.work.bytes / (4 * 1024 * 512) for each in launches for one in each if "add_native_layer_norm" in one.name]
    assert len(norms) == 11 and max(norms) < 4.1, "two are read and two are written"
