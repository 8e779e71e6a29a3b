"""The flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.complete import clusters, lab_profiles

InCluster = Annotated[
    str | None,
    typer.Option(metavar="NAME", envvar="FERRULE_CLUSTER", help="Where there are several.", autocompletion=clusters),
]
LabProfile = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help="One of `ferrule lab profiles`, or a TOML file.", autocompletion=lab_profiles
    ),
]
LabName = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Call it so, not as its profile.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
TensorRanks = Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel ranks.")]
PipelineStages = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")]
RowsFile = Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")]
RemoteCommand = Annotated[str, typer.Option(metavar="COMMAND", help="How ferrule is called on the other hosts.")]
