"""The other ranks of a job of which only this process runs: groups are made as asked, and nothing is ever exchanged but messages in files,
left for those that run beside a rank or later. A launcher (torchrun, accelerate, spawn) becomes the one process.

The rank that tells may be none of those that run. So the first one that tells as many ranks for the n-th time stands for all that do, and
where none has, and where all tell all, an object is this rank's own, as in a job whose ranks do the same.

Before the first step each stage of a pipeline receives the shapes of its input from the stage before, and of its gradients from the one
after. Gradients have the shapes of what they are gradients of. A stage of a rank that runs earlier than the stage before it (several stages
on a rank) takes this rank's own last output for its input, and says so.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import types
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lumos.collect.loading import when_loaded
from lumos.emulation.process.patches import TORCH, Silent
from lumos.emulation.record import Group, awaited_file, write_whole
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.exchanges import Exchanges
    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.operators.known import KnownValues
    from lumos.emulation.process.settings import EmulationSettings

#: Rank 0 runs beside the last one, which waits so long for it.
_PATIENCE_S = 120.0


def objects(settings: EmulationSettings) -> tuple[Callable[[Any, int, int], Any], dict[str, Any]]:
    """What tells an object of the root's to a group of so many, and what takes the place of torch.distributed's functions for objects."""
    folder, counts = Path(settings.file).parent / "objects", Counter[int]()

    def told(own: Any, root: int, size: int) -> Any:
        """A file is empty where nothing is told that another process can have, such as a tensor without data."""
        counts[size] += 1
        file = folder / f"{size}-{counts[size]}.object"
        if root == settings.rank:
            try:
                write_whole(file, pickle.dumps(own))
            except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
                write_whole(file, b"")
            return own
        said = awaited_file(file, 0.0 if root else _PATIENCE_S)
        return pickle.loads(said) if said else own

    def told_object(own: Any, src: int | None, group: Any, member: int | None) -> Any:
        root = torch.distributed.get_global_rank(group, member or 0) if src is None and group is not None else src or member or 0
        return told(own, root, torch.distributed.get_world_size(group))

    def broadcast(objects: list[Any], src: int | None = None, group: Any = None, _: Any = None, group_src: int | None = None) -> None:
        objects[:] = told_object(objects, src, group, group_src)

    def scatter(
        output: list[Any], values: Any = None, src: int | None = None, group: Any = None, group_src: int | None = None
    ) -> None:  # fmt: skip
        every = told_object(values, src, group, group_src) or [None]
        output[0] = every[min(torch.distributed.get_rank(group), len(every) - 1)]

    def all_gather(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * int(torch.distributed.get_world_size(group))

    def gather(value: Any, objects: list[Any] | None = None, *_: Any, group: Any = None, **__: Any) -> None:
        if objects is not None:
            all_gather(objects, value, group)

    return told, {
        "all_gather_object": all_gather, "gather_object": gather, "scatter_object_list": scatter, "broadcast_object_list": broadcast,
        "send_object_list": lambda *_, **__: None, "recv_object_list": lambda *_, **__: 0,
    }  # fmt: skip


class StageWaitsError(LumosError):
    """A stage has waited for the one before it as long as it may."""


def pass_on_shapes(settings: EmulationSettings, journal: Journal) -> None:
    """Let the stages of torch.distributed.pipelining leave each other messages: a file for each. The ranks of a stage all say the same."""
    when_loaded("torch.distributed.pipelining.stage", lambda module: _stages(module, settings, journal))
    when_loaded("torch.distributed.pipelining.schedules", _schedules)


def _stages(module: Any, settings: EmulationSettings, journal: Journal) -> None:
    if not hasattr(module.PipelineStage, "_send_meta"):
        raise LumosError(f"torch {torch.__version__}: its pipeline stages tell each other nothing: install torch 2.8 to 2.13")
    counts, sent = Counter[tuple[int, int]](), list[Any]()

    def file(sender: int, receiver: int) -> Path:
        counts[sender, receiver] += 1
        return Path(settings.file).parent / "mail" / f"{sender}-{receiver}-{counts[sender, receiver]}.message"

    def send(stage: Any, message: Any, receiver: int) -> None:
        if receiver > stage.stage_index:
            sent.append(message)
            write_whole(file(stage.stage_index, receiver), pickle.dumps(message))

    def receive(stage: Any, sender: int) -> Any:
        if sender > stage.stage_index:
            return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(stage._stage_meta.outputs))
        content = awaited_file(file(sender, stage.stage_index), 0.0 if sent else settings.patience_s)
        if content is not None:
            return pickle.loads(content)
        if not sent:
            raise StageWaitsError(f"pipeline stage {stage.stage_index} waits for the shapes that stage {sender} sends, which never came")
        journal.assume("stage-input", "the input of a later pipeline stage of a rank has the shapes of its earlier stage's output")
        return sent[-1]

    module.PipelineStage._send_meta = send
    module.PipelineStage._recv_meta = receive
    module._PipelineStage._move_submod_to_device = _to_device


def _to_device(stage: Any) -> None:
    """A stage of a traced model goes to its device, where it is none of meta tensors, for which torch takes all without data."""
    if not any(parameter.is_meta for parameter in stage.submod.parameters()):
        stage.submod.to(stage.device)


def _schedules(module: Any) -> None:
    if not hasattr(module, "InferenceMode"):
        return  # an earlier version of torch, whose stages exchange nothing before the first step

    def warm_up(_: Any, stages: Any, has_backward: bool, __: bool) -> None:
        for stage in stages:
            if not hasattr(stage, "_user_meta"):
                continue  # of a traced model, which knows all shapes
            dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = module.InferenceMode.DYNAMIC if dynamic else module.InferenceMode.STATIC

    module._PipelineSchedule._warmup_p2p = warm_up


class Groups:
    """The process groups that the script made."""

    def __init__(self, settings: EmulationSettings) -> None:
        self._settings = settings
        self.made: list[Group] = []
        self._asked = ""  # the backend of the group of all ranks

    def make_fakes(self, exchanges: Exchanges) -> None:
        """Let torch.distributed make groups that exchange nothing."""
        c10d, settings = torch.distributed.distributed_c10d, self._settings
        exchanges.told, of_objects = objects(settings)
        store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore
        meshes = importlib.import_module("torch.distributed.device_mesh")  # which make the group of all ranks where there is none
        begin = c10d.init_process_group

        def init_process_group(backend: Any = None, *_: Any, **__: Any) -> None:
            self._asked = str(backend or "")
            begin(backend="fake", store=store(), rank=settings.rank, world_size=settings.world)

        for owner in (c10d, torch.distributed, meshes):
            TORCH.put(owner, "init_process_group", init_process_group)

        @TORCH.around(c10d, "_new_process_group_helper")
        def helper(make: Any, size: int, rank: int, ranks: Any, asked: Any, store: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            self._add(name, str(kwargs.get("group_desc") or ""), [int(member) for member in ranks] or list(range(settings.world)))
            exchanges.backends[name] = self._asked if str(asked) == "fake" else str(asked)
            return make(size, rank, ranks, c10d.Backend("fake"), store, name, *args, **kwargs | {"device_id": None})

        # torch's own functions must see that the groups are fakes
        TORCH.put(torch.distributed, "get_backend", lambda *_, **__: "gloo" if settings.device.is_cpu else "nccl")
        answers = {
            "is_nccl_available": lambda: True, "batch_isend_irecv": _batch(exchanges),
            "all_reduce": _known_sums(c10d.all_reduce, exchanges.known), **of_objects,
        }  # fmt: skip
        for name, answer in answers.items():
            TORCH.put(torch.distributed, name, answer)
            TORCH.put(c10d, name, answer)
        _ddp()

    def _add(self, name: str, description: str, ranks: list[int]) -> None:
        """Groups of equal size and description that share no rank belong together, such as those of one dimension of a mesh."""
        made = next((group.made for group in reversed(self.made) if self._alike(group, description, ranks)), len(self.made))
        self.made.append(Group(name, description, ranks, made))

    def _alike(self, other: Group, description: str, ranks: list[int]) -> bool:
        if other.description != description or len(other.ranks) != len(ranks):
            return False
        taken = {rank for group in self.made if group.made == other.made for rank in group.ranks}
        return not taken & set(ranks)


def _batch(exchanges: Exchanges) -> Any:
    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        exchanges.batched = set()
        sides = ["group_dst" if "send" in operation.op.__name__ else "group_src" for operation in operations]
        try:
            works = [
                operation.op(operation.tensor, group=operation.group, tag=operation.tag, **{side: operation.group_peer})
                for operation, side in zip(operations, sides, strict=True)
            ]
        finally:
            exchanges.batched = None
        return [work for work in works if work is not None]

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
            self._check_reducer_finalized()  # as before that: says of parameters that got no gradient
            return False

    torch.distributed.Reducer = Reducer
    torch.distributed.Logger = _Logger


def _in_order_of_gradients(parameters: Any, assign: Any, args: Any) -> tuple[list[list[int]], list[int]]:
    """The buckets of DDP's later steps, and their limits in bytes. args: what its reducer is told after those of its first step."""
    _, _, most, _, _, _, first, *others = args
    listed = next((argument for argument in others if isinstance(argument, list) and argument), None)
    last = len(parameters) - 1
    buckets, limits = assign(list(reversed(parameters)), listed or [first, most], [False] * len(parameters))
    return [[last - position for position in bucket] for bucket in buckets], limits


class _Logger(Silent):
    def _get_ddp_logging_data(self) -> Any:
        return types.SimpleNamespace(strs_map={}, ints_map={})


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
