"""Transfers: what ranks send each other, in the process groups of the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from lumos.proxy.benchmark.schemas import NotRunnable

if TYPE_CHECKING:
    from collections.abc import Callable


class Transfer(NamedTuple):
    """The arguments of a transfer. peer: rank within the group. splits_in, splits_out: elements to and from each rank; empty for
    equal parts."""

    source: torch.Tensor
    target: torch.Tensor
    group: Any
    peer: int
    splits_in: list[int] | None
    splits_out: list[int] | None

    @property
    def parts(self) -> list[torch.Tensor]:
        """The target, one part for each rank."""
        return list(self.target.chunk(dist.get_world_size(self.group)))

    @property
    def global_peer(self) -> int:
        rank: int = dist.get_global_rank(self.group, self.peer)
        return rank


#: torch's function for each kind of transfer.
CALLS: dict[str, Callable[[Transfer], Any]] = {
    "all-reduce": lambda t: dist.all_reduce(t.source, group=t.group, async_op=True),
    "all-gather": lambda t: dist.all_gather(t.parts, t.source, group=t.group, async_op=True),
    "reduce-scatter": lambda t: dist.reduce_scatter_tensor(t.target, t.source, group=t.group, async_op=True),
    "all-to-all": lambda t: dist.all_to_all_single(
        t.target, t.source, t.splits_out or None, t.splits_in or None, group=t.group, async_op=True
    ),
    "broadcast": lambda t: dist.broadcast(t.source, src=t.global_peer, group=t.group, async_op=True),
    "reduce": lambda t: dist.reduce(t.source, dst=t.global_peer, group=t.group, async_op=True),
    "send": lambda t: dist.isend(t.source, dst=t.global_peer, group=t.group),
    "receive": lambda t: dist.irecv(t.target, src=t.global_peer, group=t.group),
    "barrier": lambda t: dist.barrier(group=t.group, async_op=True),
}


class Transfers:
    """The process groups of the recording, created again, and the calls of their transfers."""

    def __init__(self, trace: dict[str, Any], device: torch.device) -> None:
        self.device = device
        self.recorded_world = trace["world_size"]
        world = dist.get_world_size()
        own = [rank["rank"] for rank in trace["ranks"][:world]]
        whole = own == list(range(self.recorded_world))
        self.own_ranks = trace["own_ranks"] and (own == list(range(world)) or (whole and world % self.recorded_world == 0))
        self.copies = -(-world // self.recorded_world) if whole else 1  # how often the job runs where there are more processes than ranks
        self.groups = [self.group(ranks, world) for ranks in trace["groups"]]
        self.sizes = [len(ranks) or trace["world_size"] for ranks in trace["groups"]]
        self.buffers: dict[Any, torch.Tensor] = {}

    def group(self, ranks: list[int], world: int) -> Any:
        """A group's ranks that have a process; None where these are fewer than two. Process p runs rank p, or where there are more
        processes than ranks, rank p modulo their number: a group of all ranks then spans all processes, each other group is repeated."""
        if len(ranks) in (0, self.recorded_world):
            return dist.group.WORLD
        mine = None
        for copy in range(self.copies):  # every process makes every group, as torch.distributed asks for
            first = copy * self.recorded_world
            present = [first + rank for rank in ranks if first + rank < world]
            made = dist.new_group(present) if len(present) > 1 else None
            mine = made if dist.get_rank() in present or mine is None else mine
        return mine

    def bind(self, c: dict[str, Any]) -> Callable[[], Any]:
        if c["kind"] not in CALLS:
            raise NotRunnable(f"a transfer of kind {c['kind']}")
        group = self.groups[c["group"]] if c["group"] >= 0 else dist.group.WORLD
        if group is None:
            raise NotRunnable("fewer than two ranks of its group have a process")
        size, peer = dist.get_world_size(group), max(c["peer"], 0)
        if group is dist.group.WORLD and c["kind"] in ("send", "receive"):  # messages stay within a copy of the job
            peer += dist.get_rank() // self.recorded_world * self.recorded_world
        if size < 0:
            raise NotRunnable("its group does not hold this process's rank")
        if peer >= size:
            raise NotRunnable("its peer has no process")
        recorded = self.sizes[c["group"]] if c["group"] >= 0 else self.recorded_world
        if c["splits_in"] and (not self.own_ranks or (size > recorded and size % recorded)):
            raise NotRunnable("its parts are of unequal size, and the ranks that they are for do not run")
        dtype = getattr(torch, c["dtype"])
        ins, outs = c["elements_in"], c["elements_out"]
        if c["kind"] == "all-gather":
            outs = max(ins, 1) * size
        if c["kind"] == "reduce-scatter":
            ins = max(outs, 1) * size
        times = max(size // recorded, 1)  # of a group that spans several copies of the job, each part goes to the rank of every copy
        splits_in, splits_out = (c["splits_in"] * times)[:size], (c["splits_out"] * times)[:size]
        if c["kind"] == "all-to-all":  # the parts for and from ranks that have a process
            ins = sum(splits_in) if splits_in else max(ins // recorded, 1) * size
            outs = sum(splits_out) if splits_in else max(outs // recorded, 1) * size
        else:
            ins, outs = max(ins, 1), max(outs, 1)
        source, target = self.buffer("in", ins, dtype), self.buffer("out", outs, dtype)
        call = CALLS[c["kind"]]
        transfer = Transfer(source, target, group, peer, splits_in, splits_out)
        return lambda: call(transfer)

    def buffer(self, side: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        key = (side, count, dtype)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros(count, dtype=dtype, device=self.device)
        return self.buffers[key]
