"""What differs between versions of torch: where functions stand in its tables, what kernels call, and which versions are refused."""

from __future__ import annotations

import sys
import textwrap

import pytest

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.process.operators.virtual_functions import places_of_functions
from lumos.emulation.processes import Launched
from lumos.emulation.run import records
from lumos.errors import LumosError

BASE = """
struct Base {
  // This squelches a virtual destructor (warning).
  virtual ~Base() = default;
  virtual bool isBuilt() const { return check(false); }
  /* virtual void gone() const; */
  virtual const Generator& getDefaultGenerator(
      [[maybe_unused]] DeviceIndex index = -1) const = 0;
  virtual Device device(void* data) const { use(data); }
};
"""
DERIVED = """
#ifdef OTHER
struct Unrelated;
#endif
struct Derived : Base {
  ~Derived() override = default;
  bool isBuilt() const override { return true; }
  virtual Device device(void* data) const override { use(data); }
  virtual int first() const { return 0; }
#ifdef USE_ROCM
  virtual bool isGPUArch(const std::vector<std::string>& archs) const { use(archs); }
#endif
  virtual double second() const { return 0; }
};
"""


def test_a_function_stands_where_the_headers_declare_it_and_one_that_is_overridden_where_its_base_has_it():
    # A destructor has two places; ROCm's function is not compiled.
    base = {"~Base": 0, "isBuilt": 2, "getDefaultGenerator": 3, "device": 4}
    assert places_of_functions([BASE]) == base
    assert places_of_functions([BASE, DERIVED]) == base | {"first": 5, "second": 6}


def test_the_tables_of_the_installed_torch_are_read_from_its_headers():
    """The numbers are those of torch 2.13, counted by hand in its two headers."""
    torch = pytest.importorskip("torch", reason="torch is not installed, and its headers come with it")
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the numbers are those of another version")
    from lumos.emulation.process.operators.dispatcher import hook_places

    found = hook_places()
    assert [found[name] for name in ("isBuilt", "deviceCount", "maybeExchangeDevice", "getNewGenerator", "hasCUDA")] == [2, 6, 10, 15, 16]
    assert [found[name] for name in ("compiledWithCuDNN", "versionCuDNN", "batchnormMinEpsilonCuDNN")] == [28, 34, 41]


def test_the_memory_of_a_linear_layer_is_taken_in_each_call_up_to_torch_2_7():
    pytest.importorskip("torch", reason="torch is not installed, and its version is asked")
    from lumos.emulation.process.versions import workspace_of_linear

    assert [workspace_of_linear(version) for version in ((2, 6), (2, 7), (2, 8), (2, 13))] == [1_048_576, 1_048_576, 0, 0]


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("2.4.1+cu121", r"torch 2\.4\.1\+cu121 is too old to be emulated with"),
        ("3.0.0", r"torch 3\.0\.0 is laid out otherwise .*no attribute 'version'"),
    ],
)
def test_a_torch_that_cannot_be_served_is_named_with_those_that_can_and_the_script_does_not_run(tmp_path, version, problem):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"__version__ = {version!r}")
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import pathlib, torch
        pathlib.Path(__file__).with_name("ran").touch()
    """)
    )
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(LumosError, match=rf"^rank 0: {problem}.*: install torch 2\.6 to 2\.13, "):
        records(Launched([sys.executable, str(script)], emulated_device("h100"), 1, 1, 1, work, 60.0))
    assert not (tmp_path / "ran").exists()


def test_stages_that_send_objects_tell_each_other_shapes_through_files(tmp_path):
    """As with torch 2.6 and 2.7: a stage receives the output of the one before it, a tensor on no device, and sends its own."""
    torch = pytest.importorskip("torch", reason="torch is not installed, and stages are its own")
    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.ranks.pipelines import Mail, exchange_objects

    class Stage:
        def __init__(self, place):
            self.stage_index, self.received = place, [None]

        def _shape_inference(self, size):
            if self.stage_index:
                torch.distributed.recv_object_list(self.received, src=self.stage_index - 1)
            made = torch.empty(size, 3, dtype=torch.bfloat16, device="meta").t()
            torch.distributed.send_object_list([(made,)], dst=self.stage_index + 1)
            return size

    before = torch.distributed.send_object_list
    exchange_objects(Stage, Mail(tmp_path, 0.0), Journal())
    first, second = Stage(0), Stage(1)
    assert (first._shape_inference(8), second._shape_inference(4)) == (8, 4)
    ((given,),) = second.received
    assert (given.shape, given.stride(), given.dtype, given.device.type) == ((3, 8), (1, 3), torch.bfloat16, "meta")
    assert torch.distributed.send_object_list is before
