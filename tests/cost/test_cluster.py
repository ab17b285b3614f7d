"""Cluster files: those that ship are complete and have sources, those of users are checked."""

from pathlib import Path

import msgspec
import pytest

from lumos.cost.cluster import cluster_names, dtype_of, load_cluster
from lumos.errors import LumosError, UsageError


@pytest.mark.parametrize("name", cluster_names())
def test_every_number_of_a_shipped_cluster_has_a_source(name: str) -> None:
    cluster = load_cluster(name)
    for section in ("accelerator", "node", "fabric"):
        table = msgspec.to_builtins(getattr(cluster, section))
        for key, value in table.items():
            stated = value not in (None, (), {}) and not isinstance(value, str | bool) and key != "fitted_as"
            if stated and not (section == "node" and key == "devices" and f"node.{key}" not in cluster.source):
                assert f"{section}.{key}" in cluster.source, f"{name}: {section}.{key} has no source"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100-SXM5-80GB", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100-96GB-HBM2e", "h100-96gb"),
        ("A100", "a100-80gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GB200 NVL72", "gb200"),
        ("GB300 NVL72", "gb300"),
        ("H200 (p5en.48xlarge)", "h200"),
        ("B200-SXM", "b200"),
        ("H100 (PCIe)", "h100-pcie"),
        ("A100 (40GB)", "a100-40gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("V100-SXM2-16GB", "v100-16gb"),
    ],
)
def test_spellings_of_published_tables_are_understood(spelling: str, name: str) -> None:
    assert load_cluster(spelling).name == name


@pytest.mark.parametrize("name", ["GB200 NVL36", "H100 40GB", "H200 PCIe", "A100 PCIe 24GB", "V100-SXM2-12GB", "H100 OAM", "h100 (4 nics)"])
def test_a_name_that_says_otherwise_than_the_cluster_is_refused(name: str) -> None:
    with pytest.raises(LumosError, match=r"is not known; nearest: .* GB, \d+ a node\)"):
        load_cluster(name)


def test_a_user_file_states_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('based_on = "h100"\n[node]\nnics = 4\n[accelerator]\nmemory_bytes = 6.4e10\n')
    cluster = load_cluster(str(path))
    assert cluster.name == "mine"
    assert cluster.node.nics == 4
    assert cluster.node.devices == 8
    assert cluster.accelerator.memory_bytes == 6.4e10
    assert cluster.accelerator.fitted_as == ("h100",)
    assert load_cluster("llama3-h100").accelerator.name == "h100"  # it changes nothing of the accelerator


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("h100", 81559), ("a100-80gb", 81920), ("a100-40gb", 40960), ("h200", 143771), ("t4", 15360), ("l40s", 46068)]
)
def test_a_process_can_have_what_the_driver_shows_but_its_context(name: str, mebibytes: int) -> None:
    """MiB of nvidia-smi (thundergolfer.com/blog/nvidia-gpu-memory-capacity); 0.3 to 2 GiB of them are the driver's and the context's."""
    usable = load_cluster(name).accelerator.usable_bytes
    assert usable is not None and 0.3 * 2**30 < mebibytes * 2**20 - usable < 2.2 * 2**30


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[node]\ndevices = 8\n", "missing required field `topology`"),
        ('based_on = "h1"\n', "based_on = 'h1' is not a cluster; valid: .*h100"),
        ('based_on = "h100"\n[node]\nnic = 4\n', "unknown field `nic`.*nearest: nics; valid: .*devices"),
        ('based_on = "h100"\n[node]\nnics = -4\n', r"node.nics = -4 must be positive"),
        ('based_on = "h100"\n[accelerator]\nmemory_bytes = inf\n', "accelerator.memory_bytes = inf must be bytes, more than 1000"),
        ('based_on = "h100"\n[node]\nnic_bytes_per_s = 50\n', "node.nic_bytes_per_s = 50 must be bytes per second, more than 1e.06"),
        ('based_on = "h100"\n[accelerator.peak_flops]\nbf16 = 989\n', "accelerator.peak_flops.bf16 = 989 must be FLOP per second"),
        ('based_on = "h100"\n[accelerator]\nclock_hz = nan\n', "accelerator.clock_hz = nan must be"),
        ('based_on = "h100"\n[[fabric.levels]]\nname = "a"\ndevices = 0\n', r"fabric.levels\[0\].devices = 0 must be"),
        ('based_on = "h100"\n[node]\nnics = "four"\n', "Expected `int.*` - at `.*node.nics`"),
        ('based_on = "h100"\n[node]\ntopology = "torus"\n', "node.topology = 'torus'; valid: switch"),
        ('based_on = "h100"\n[accelerator.peak_flops]\nfp7 = 1e12\n', "peak_flops.fp7 is not a dtype; valid: .*fp8"),
        ("[accelerator\n", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(LumosError, match=complaint) as caught:
        load_cluster(str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_says_what_ships(tmp_path: Path) -> None:
    with pytest.raises(LumosError, match=r"cannot be read.*ship with Lumos: .*h100"):
        load_cluster(str(tmp_path / "none.toml"))


def test_what_is_not_published_is_asked_for() -> None:
    with pytest.raises(LumosError, match=r"m2-inference: peak_flops is not published.*TOML file"):
        load_cluster("m2-inference").accelerator.peak("bf16")
    with pytest.raises(LumosError, match="m2-inference: link_bytes_per_s is not published"):
        load_cluster("m2-inference").node.require("link_bytes_per_s", "m2-inference")


def test_a_dtype_the_device_has_not_lists_those_it_has() -> None:
    with pytest.raises(UsageError, match=r"a100-80gb has no fp8 rate; it has .*bf16"):
        load_cluster("a100-80gb").accelerator.peak("fp8")
    with pytest.raises(UsageError, match=r"dtype 'fp7' is not known; valid: .*fp8"):
        dtype_of("fp7")
