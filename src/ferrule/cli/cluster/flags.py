"""The flags that the commands of a cluster share."""

from __future__ import annotations

from typing import Annotated

import typer

InCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", envvar="FERRULE_CLUSTER", help="Where there are several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
