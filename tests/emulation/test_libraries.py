"""What libraries beside torch ask for: kernels of Triton, weights of trained models, names of accelerators."""

import textwrap

import pytest
from tests.emulation.emulated_scripts import STEPS, run

from lumos.cost.cluster import load_cluster
from lumos.emulation.accelerators import compute_capability, emulated_device
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.record import MemoryKind, Tensor
from lumos.errors import UsageError

torch = pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

#: The part of Triton that a script meets when it launches a kernel; the real one, which is not here, would ask for a device's driver.
TRITON = {
    "__init__": "from triton.runtime.jit import jit",
    "backends/__init__": "",
    "backends/compiler": "from collections import namedtuple\nGPUTarget = namedtuple('GPUTarget', 'backend arch warp_size')",
    "runtime/__init__": "from triton.runtime.driver import driver",
    "runtime/driver": """
class Driver:
    def __init__(self): self._active = None
    @property
    def active(self):
        if self._active is None: raise RuntimeError("libcuda.so cannot be found")
        return self._active
    def set_active(self, other): self._active = other
driver = Driver()
""",
    "runtime/jit": """
class JITFunction:
    def __init__(self, fn): self.fn = fn
    def __getitem__(self, grid): return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)
    def run(self, *args, grid, warmup, **kwargs):
        from triton.runtime.driver import driver
        driver.active.get_current_target()
        raise AssertionError("a kernel was compiled")
jit = JITFunction
""",
}


def test_a_kernel_of_the_scripts_own_is_an_operator_that_reads_and_writes_what_it_is_given(tmp_path):
    for name, text in TRITON.items():
        file = tmp_path / "later" / "triton" / f"{name}.py"  # torch itself would ask for more of it
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    body = f"""
        import sys
        sys.path.append("{tmp_path}/later")
        import triton
        @triton.jit
        def add_kernel(x, y, out, n): pass
        for _ in range(3):
            x = torch.ones(1024, device="cuda", requires_grad=True)
            count = torch.zeros(4, dtype=torch.int64, device="cuda")
            add_kernel[(1,)](x, x.detach(), torch.empty_like(x), count, n=1024)
            assert count.sum().item() == 1, "what a kernel may have written is not known"
            assert [getattr(triton.runtime.driver.active.get_current_target(), each) for each in ("arch", "warp_size")] == [90, 32]
            assert triton.runtime.driver.active.get_benchmarker()(None, quantiles=(0.5, 0.2)) == [1.0, 1.0]
            step()
    """
    (process,) = run(tmp_path, STEPS + textwrap.dedent(body))
    (launched,) = [each for each in process.operators if each.name == "triton::add_kernel"]
    assert [each.shape for each in launched.inputs[0] if isinstance(each, Tensor)] == [(1024,)] * 3 + [(4,)]
    kernels = Kernels(load_cluster("h100").accelerator)
    (launch,) = kernels(launched)
    assert launch.work.bytes == 3 * 4096 + 32 and dict(kernels.unknown) == {"triton::add_kernel": 1}


def test_of_a_trained_model_the_configuration_is_enough(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "bert").mkdir()
    config = '{"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}'
    (tmp_path / "bert" / "config.json").write_text(config)
    body = f"""
        from transformers import AutoModelForSequenceClassification
        from transformers import BertModel
        assert BertModel.from_pretrained("{tmp_path}/bert", dtype=torch.bfloat16).dtype == torch.bfloat16
        model = AutoModelForSequenceClassification.from_pretrained("{tmp_path}/bert", num_labels=3, device_map="auto")
        assert not model.training and model.classifier.out_features == 3
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            tokens = torch.zeros(2, 8, dtype=torch.long, device=model.device)
            model(tokens, labels=tokens[:, 0]).loss.backward()
            optimizer.step()
    """
    (process,) = run(tmp_path, body, random_weights=True)
    assert any(each.kind is MemoryKind.PARAMETER and "embeddings" in each.module for each in process.owners)
    assert "random-weights" in {note.code for note in process.notes}


def test_amds_accelerator_is_shown_as_rocm_shows_it(tmp_path):
    found = emulated_device("mi300x")
    assert (found.name, found.capability, found.is_amd) == ("AMD Instinct MI300X", (9, 4), True)
    assert found.memory == pytest.approx(206_141_652_992, rel=1e-4), "as a recording of one says"
    assert (found.architecture, emulated_device("h100").architecture) == ("gfx942", "sm_90")
    assert found.workspace == 128 << 20 and not emulated_device("h100").is_amd
    assert compute_capability("mi300x") is None and compute_capability("h100") == (9, 0)
    with pytest.raises(UsageError, match="--emulate gaudi2: only NVIDIA's and AMD's"):
        emulated_device("gaudi2")
    body = """
        properties = torch.cuda.get_device_properties(0)
        assert torch.version.hip and torch.version.cuda is None
        assert (torch.cuda.get_device_name(), properties.gcnArchName, properties.warp_size) == ("AMD Instinct MI300X", "gfx942", 64)
        torch.backends.cuda.matmul.allow_tf32 = True
        for _ in range(3): step()
    """
    (process,) = run(tmp_path, STEPS + textwrap.dedent(body), cluster="mi300x")
    assert {each.tf32 for each in process.operators if each.name == "aten::addmm"} == {False}
    assert "names-of-nvidia" in {note.code for note in process.notes}
