"""Process groups and launchers of a job of which only this process runs: groups are made as asked, and nothing is ever exchanged.

A launcher (torchrun, accelerate, spawn) becomes the one process.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulation.process.patches import TORCH, Silent
from lumos.emulation.process.ranks.messages import objects
from lumos.emulation.record import Group

if TYPE_CHECKING:
    from lumos.emulation.process.operators.known import KnownValues
    from lumos.emulation.process.ranks.exchanges import Exchanges
    from lumos.emulation.process.settings import EmulationSettings


class Groups:
    """The process groups that the script made."""

    def __init__(self, settings: EmulationSettings) -> None:
        self._settings = settings
        self.made: list[Group] = []

    def make_fakes(self, exchanges: Exchanges) -> None:
        """Let torch.distributed make groups that exchange nothing."""
        c10d, settings = torch.distributed.distributed_c10d, self._settings
        store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore
        meshes = importlib.import_module("torch.distributed.device_mesh")  # which make the group of all ranks where there is none
        begin = c10d.init_process_group

        def init_process_group(*_: Any, **__: Any) -> None:
            begin(backend="fake", store=store(), rank=settings.rank, world_size=settings.world)

        for owner in (c10d, torch.distributed, meshes):
            TORCH.put(owner, "init_process_group", init_process_group)

        @TORCH.around(c10d, "_new_process_group_helper")
        def helper(make: Any, size: int, rank: int, ranks: Any, _: Any, store: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            self._add(name, str(kwargs.get("group_desc") or ""), [int(each) for each in ranks] or list(range(settings.world)))
            return make(size, rank, ranks, c10d.Backend("fake"), store, name, *args, **kwargs | {"device_id": None})

        # torch's own functions must see that the groups are fakes
        TORCH.put(torch.distributed, "get_backend", lambda *_, **__: "gloo" if settings.device.is_cpu else "nccl")
        answers = {
            "is_nccl_available": lambda: True, "batch_isend_irecv": _batch(exchanges),
            "all_reduce": _known_sums(c10d.all_reduce, exchanges.known), **objects(settings),
        }  # fmt: skip
        for name, answer in answers.items():
            TORCH.put(torch.distributed, name, answer)
            TORCH.put(c10d, name, answer)
        _ddp()

    def _add(self, name: str, description: str, ranks: list[int]) -> None:
        """Groups of equal size and description that share no rank belong together, such as those of one dimension of a mesh."""
        made = next((each.made for each in reversed(self.made) if self._alike(each, description, ranks)), len(self.made))
        self.made.append(Group(name, description, ranks, made))

    def _alike(self, other: Group, description: str, ranks: list[int]) -> bool:
        if other.description != description or len(other.ranks) != len(ranks):
            return False
        taken = {rank for each in self.made if each.made == other.made for rank in each.ranks}
        return not taken & set(ranks)


def _batch(exchanges: Exchanges) -> Any:
    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        exchanges.batched = set()
        sides = ["group_dst" if "send" in each.op.__name__ else "group_src" for each in operations]
        try:
            works = [
                each.op(each.tensor, group=each.group, tag=each.tag, **{side: each.group_peer})
                for each, side in zip(operations, sides, strict=True)
            ]
        finally:
            exchanges.batched = None
        return [each for each in works if each is not None]

    return batch_isend_irecv


def _known_sums(all_reduce: Any, known: KnownValues) -> Any:
    """All ranks bring what this one brings, so that the sum of a known number is known: by it scripts agree to stop or to go on."""

    def with_sum(tensor: Any, op: Any = torch.distributed.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        values = known.copied(tensor, torch.distributed.get_world_size(group) if op == torch.distributed.ReduceOp.SUM else 1)
        work = all_reduce(tensor, op, group, async_op)
        if values is not None:
            known.know(tensor, values)
        return work

    return with_sum


def _ddp() -> None:
    """Distributed data parallel compares shapes between the ranks by their values, and rearranges its buckets after the first step by
    values too: they have the later arrangement from the start, in which parameters stand in the order of their gradients, taken to be
    the reverse of their own."""
    distributed: Any = importlib.import_module("torch.nn.parallel.distributed")
    distributed._verify_param_shape_across_processes = lambda *_, **__: None
    base, assign = torch.distributed.Reducer, torch.distributed._compute_bucket_assignment_by_size

    class Reducer(base):  # type: ignore[misc, valid-type]
        """DDP's reducer, without the parts that read values or time the device."""

        def __init__(self, parameters: Any, buckets: Any, limits: Any, *args: Any, **kwargs: Any) -> None:
            if max(limits) == sys.maxsize:  # one bucket for the first step, after which there are those of the sizes that were asked for
                buckets, limits = _in_order_of_gradients(parameters, assign, args)
            super().__init__(parameters, buckets, limits, *args, **kwargs)

        def prepare_for_forward(self) -> None:
            """It counts iterations, and in each that it has counted times the device where this build of torch can; so there it counts
            none, and takes a static graph for one that may change."""
            if not torch.backends.cuda.is_built():
                super().prepare_for_forward()

        def set_logger(self, _: Any) -> None:
            pass

        def _rebuild_buckets(self) -> bool:
            return False

    torch.distributed.Reducer = Reducer
    torch.distributed.Logger = _Logger


def _in_order_of_gradients(parameters: Any, assign: Any, args: Any) -> tuple[list[list[int]], list[int]]:
    """The buckets of DDP's later steps, and their limits in bytes. args: what its reducer is told after those of its first step."""
    _, _, most, _, _, _, first, *others = args
    listed = next((each for each in others if isinstance(each, list) and each), None)
    last = len(parameters) - 1
    buckets, limits = assign(list(reversed(parameters)), listed or [first, most], [False] * len(parameters))
    return [[last - place for place in each] for each in buckets], limits


class _Logger(Silent):
    def _get_ddp_logging_data(self) -> Any:
        return types.SimpleNamespace(strs_map={}, ints_map={})


_NAMES = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate.commands.launch")


def is_launcher() -> bool:
    """Whether this process is a launcher rather than the script: by the program, or the module after -m, that Python was started with."""
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2 if words[0] in ("-W", "-X") else 1 :]
    started = words[1:2] if words[:1] == ["-m"] else words[:1]
    return any(os.path.basename(each) in _NAMES for each in started)  # noqa: PTH119


def become_script(settings: EmulationSettings) -> None:
    """Let torch's launcher start the script in its own place, as the rank that is emulated. The launcher sees the devices too."""
    torch.cuda.is_available = lambda: not settings.device.is_cpu
    torch.cuda.device_count = lambda: 0 if settings.device.is_cpu else min(settings.world, settings.device.per_node)
    api: Any = importlib.import_module("torch.distributed.launcher.api")

    def elastic_launch(config: Any, entrypoint: Any) -> Any:
        del config

        def start(*arguments: Any) -> None:
            os.environ.update(settings.environment(launched=True))
            os.execvp(entrypoint, [entrypoint, *map(str, arguments)])

        return start

    api.elastic_launch = elastic_launch


def start_here(settings: EmulationSettings) -> None:
    """Let a script that starts the processes of its ranks itself go on as the one that is emulated."""

    def spawn(function: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        function(settings.rank % nprocs, *args)

    torch.multiprocessing.spawn = torch.multiprocessing.start_processes = spawn
