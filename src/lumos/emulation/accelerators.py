"""What a script is told about the accelerator of a cluster: what a driver would answer and the cluster's data do not say."""

from lumos.cost.cluster import OUTSIDE_BYTES, load_cluster
from lumos.emulation.process.settings import Device
from lumos.errors import UsageError

#: Stands for the processors of the host, where a job has no accelerators.
ON_CPUS = "cpu"

#: Names of torch.cuda.get_device_name, and CUDA compute capabilities (developer.nvidia.com/cuda-gpus); of AMD's, the two numbers that
#: torch makes of the name of their instructions (llvm.org/docs/AMDGPUUsage.html), gfx942.
_DRIVER = {
    "v100": ("Tesla V100-SXM2-32GB", (7, 0)), "a100-40gb": ("NVIDIA A100-SXM4-40GB", (8, 0)),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", (8, 0)), "h800": ("NVIDIA H800", (9, 0)), "h200": ("NVIDIA H200", (9, 0)),
    "h100": ("NVIDIA H100 80GB HBM3", (9, 0)), "gb200": ("NVIDIA GB200", (10, 0)), "b200": ("NVIDIA B200", (10, 0)),
    "gb300": ("NVIDIA GB300", (10, 3)), "b300": ("NVIDIA B300", (10, 3)),
    "mi210": ("AMD Instinct MI210", (9, 0)), "mi250x": ("AMD Instinct MI250X", (9, 0)), "mi300x": ("AMD Instinct MI300X", (9, 4)),
    "mi325x": ("AMD Instinct MI325X", (9, 4)), "mi350x": ("AMD Instinct MI350X", (9, 5)), "mi355x": ("AMD Instinct MI355X", (9, 5)),
}  # fmt: skip


def compute_capability(name: str) -> tuple[int, int] | None:
    """The compute capability of NVIDIA's accelerator of this name; None for any other."""
    return next((known for prefix, (said, known) in _DRIVER.items() if name.startswith(prefix) and not said.startswith("AMD")), None)


def emulated_device(cluster: str) -> Device:
    """The accelerator of a cluster, or the host's processors for "cpu". Raises LumosError for an unknown cluster and UsageError for one
    whose accelerator is neither NVIDIA's nor AMD's, which torch would drive otherwise."""
    if cluster == ON_CPUS:
        return Device(ON_CPUS, "", 0, 0, (0, 0), 8)
    loaded = load_cluster(cluster)
    accelerator = loaded.accelerator
    known = next((_DRIVER[name] for name in _DRIVER if accelerator.name.startswith(name) or loaded.name.startswith(name)), None)
    if known is None:
        raise UsageError(f"--emulate {cluster}: only NVIDIA's and AMD's accelerators can be emulated ({', '.join(_DRIVER)}), and {ON_CPUS}")
    accelerator.require("memory_bytes")
    memory, processors = accelerator.shown_bytes or 0.0, accelerator.require("cores")
    return Device(loaded.name, known[0], int(memory), int(processors), known[1], loaded.node.devices, OUTSIDE_BYTES)
