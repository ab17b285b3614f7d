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
    from lumos.cli.output import console
    from lumos.reports.text.catalogues import print_cluster, print_clusters

    if name:
        print_cluster(console(), clusters[0])
    else:
        print_clusters(console(), clusters)
