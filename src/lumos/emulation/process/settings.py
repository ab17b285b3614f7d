"""What the process that starts a script tells the process that runs it: one environment variable with JSON."""

from __future__ import annotations

import os
import signal

import msgspec

from lumos.emulation.record import StepEnd

#: The environment variable that carries the settings.
_VARIABLE = "LUMOS_EMULATE"

#: The folder with the snapshots of memory that a script makes, beside its record.
SNAPSHOTS = "snapshots"

#: Exit status of a process that would have waited longer for another than it may, and of one whose device is full.
WAITS, FULL = 4, 6

#: The signal that asks a process for the line of the script that it is at.
WHERE = signal.SIGUSR1

#: The instructions of AMD's accelerators by the two numbers that torch makes of them.
_AMDS = {(9, 0): "gfx90a", (9, 4): "gfx942", (9, 5): "gfx950"}


class Device(msgspec.Struct, frozen=True):
    """The accelerator that the script is shown. name: as the driver would say it. memory: bytes that the driver has; outside: of them
    those of a process that PyTorch does not manage. capability: of its instructions."""

    cluster: str
    name: str
    memory: int
    processors: int
    capability: tuple[int, int]
    per_node: int
    outside: int = 0

    @property
    def room(self) -> int:
        """Bytes that PyTorch may reserve."""
        return self.memory - self.outside

    @property
    def workspace(self) -> int:
        """Bytes that cuBLAS or hipBLASLt keeps for each thread and stream (getChosenWorkspaceSize in ATen/cuda/CublasHandlePool.cpp)."""
        if self.is_amd:
            return (128 if self.capability == (9, 4) else 32) << 20
        return 0 if self.is_cpu else 32 << 20 if self.capability >= (9, 0) else (8 << 20) + (1 << 17)

    @property
    def architecture(self) -> str:
        """The name of its instructions: "sm_90", "gfx942"."""
        return _AMDS[self.capability] if self.is_amd else f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def is_amd(self) -> bool:
        """Whether it is one of AMD's, which torch drives by ROCm under the same names."""
        return self.name.startswith("AMD")

    @property
    def is_cpu(self) -> bool:
        """Whether the script runs as on a machine without accelerators."""
        return self.cluster == "cpu"


class EmulationSettings(msgspec.Struct, frozen=True):
    """How to emulate one process. steps: to record. warmup: steps before them. file: where its record is written.

    ended_by: what its steps end by, as far as is known. patience_s: how long it waits for what processes of other ranks say.
    random_weights: no weights of trained models are read.
    """

    device: Device
    rank: int
    world: int
    steps: int
    warmup: int
    file: str
    ended_by: StepEnd = StepEnd.OPTIMIZER
    patience_s: float = 300.0
    random_weights: bool = False

    def environment(self, *, launched: bool = False) -> dict[str, str]:
        """The variables that a launcher sets for this rank, of a job with one rank where launched says that there is a launcher; and the
        settings."""
        local = self.rank % self.device.per_node
        launcher = {
            "RANK": self.rank, "WORLD_SIZE": self.world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": min(self.world, self.device.per_node),
            "GROUP_RANK": self.rank // self.device.per_node, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "emulated",
        }  # fmt: skip
        common = {
            _VARIABLE: msgspec.json.encode(self).decode(), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled",
            "KINETO_LOG_LEVEL": "6",  # above all that torch's profiler says
        }  # fmt: skip
        return common | ({name: str(value) for name, value in launcher.items()} if launched or self.world > 1 else {})

    @classmethod
    def here(cls) -> EmulationSettings:
        """The settings of this process."""
        return msgspec.json.decode(os.environ[_VARIABLE], type=cls)
