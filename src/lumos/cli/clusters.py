"""`lumos clusters`: the accelerators and clusters that Lumos knows."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Json


def command(
    name: Annotated[str | None, typer.Argument(help="Show this cluster (a name or a .toml file) with the source of each number.")] = None,
    json: Json = False,
) -> None:
    """List the clusters, or show one with the source of each number."""
    import msgspec

    from lumos.cost.cluster import cluster_names, load_cluster

    clusters = [load_cluster(n) for n in ([name] if name else cluster_names())]
    if json:
        from lumos.cli.output import write_json

        write_json({"clusters": [msgspec.to_builtins(c) for c in clusters]})
        return
    if name:
        _show(msgspec.to_builtins(clusters[0]))
        return
    from rich.table import Table

    from lumos.cli.output import console

    table = Table("name", "memory", "dense peak", "per node", box=None)
    table.add_column("description", no_wrap=True, overflow="ellipsis")
    for c in clusters:
        a = c.accelerator
        peak = next((f"{a.peak_flops[d] / 1e12:.4g} TFLOP/s {d}" for d in ("bf16", "fp16", "fp32") if d in a.peak_flops), "not published")
        memory = f"{a.memory_bytes / 1e9:.0f} GB" if a.memory_bytes else "not published"
        table.add_row(c.name, memory, peak, str(c.node.devices), c.description)
    console().print(table)


def _show(cluster: dict[str, object]) -> None:
    """Every number of a cluster with its source."""
    source = cluster["source"]
    assert isinstance(source, dict)
    print(f"{cluster['name']}: {cluster['description']}")
    for section in ("accelerator", "node", "fabric"):
        values = cluster[section]
        assert isinstance(values, dict)
        print(f"\n{section}")
        for key, value in values.items():
            said = source.get(f"{section}.{key}", "")
            print(f"  {key} = {'not published' if value is None else value}{f'   ({said})' if said else ''}")
