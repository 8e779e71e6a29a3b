"""The flags that the commands of a cluster share."""

from __future__ import annotations

from typing import Annotated

import typer

from ferrule.cli.complete import clusters

InCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        envvar="FERRULE_CLUSTER",
        help="Where there are several.",
        autocompletion=clusters,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
