"""``ferrule env``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ferrule.cli.cluster import ray as cluster_ray
from ferrule.cli.flags import InCluster
from ferrule.cli.launch.app import ConnectTimeout, Hostfile, Hosts, Python, Ranks, Ssh, places, warn
from ferrule.cluster.home import choose_cluster
from ferrule.errors import ConfigError
from ferrule.mlx_backend import LIBRARY, library

if TYPE_CHECKING:
    from ferrule.launch.job import Job

EXAMPLES = (
    "Examples:\n\nferrule env nccl\n\nferrule env nccl --hosts strix-a,strix-b\n\n"
    'eval "$(ferrule env torch --hostfile hosts.toml --rank 1)"\n\nferrule env mlx --hostfile hosts.toml --rank 0'
)
PORT = 29500
"""torch's own. The ports that are printed are not kept free."""


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def env(
    kind: Annotated[
        Literal["nccl", "mlx", "torch", "ray"], typer.Argument(help="For NCCL and RCCL, MLX, torch, or Ray.")
    ],
    ranks: Ranks = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    rank: Annotated[int, typer.Option(help="Of this rank.", min=0)] = 0,
    port: Annotated[int, typer.Option(help="The first of the ports to use.", min=1, max=65000)] = PORT,
    python: Python = None,
    ssh: Ssh = "ssh",
    connect_timeout: ConnectTimeout = 10,
    cluster: InCluster = None,
) -> None:
    """Print the environment that `ferrule launch` would set, for use elsewhere: eval "$(ferrule env nccl)".

    Interfaces and RDMA ports are those of the cables that join the hosts, by their exact names; without hosts, those
    of this machine. For MLX, without hosts, it is what lets MLX find Ferrule; else also what MLX's own backends
    need, whose two files are written to Ferrule's cache. For Ray: how to connect to that of this host's cluster
    (ferrule up --ray).
    """
    if kind == "ray":
        _print(cluster_ray.connection(choose_cluster(cluster)))
        return
    from ferrule.launch import Launcher

    alone = ranks is None and hosts is None and hostfile is None
    if alone and kind == "mlx":
        _print({LIBRARY: library()})
        return
    if alone and kind != "nccl":
        raise ConfigError(f"ferrule env {kind} needs ranks: give -n 2, --hosts a,b, or --hostfile FILE")
    where = places(1 if alone else ranks, hosts, hostfile, python, ssh, connect_timeout)
    with Launcher(where, ranks, connect_seconds=connect_timeout, say=warn) as launcher:
        job = launcher.connect(links=True)
    found = _variables(kind, job, rank, port, alone=alone)
    _print(found)


def _print(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _variables(kind: str, job: Job, rank: int, port: int, *, alone: bool) -> dict[str, str]:
    from ferrule.launch import environment
    from ferrule.launch.job import with_ports

    if rank >= job.size:
        raise ConfigError(f"--rank {rank} is out of range; there are {job.size} ranks, from 0")
    job = with_ports(job, port)
    site = job.site(rank)
    match kind:
        case "nccl" if alone:
            return environment.nccl_of_one(site.facts)
        case "nccl":
            return environment.nccl_defaults(job, site)
        case "torch":
            return environment.torch_env(job, rank) | environment.torch_defaults(job, site)
        case _:
            files = _written(environment.mlx_files(job))
            return {LIBRARY: library()} | environment.mlx_env(job, rank) | files


def _written(texts: dict[str, str]) -> dict[str, str]:
    """The files, in the cache, by the variables that name them."""
    from ferrule.files import cache_directory, write_whole

    paths = {}
    for name, text in texts.items():
        path = Path(cache_directory()) / "env" / f"{name.lower().replace('_', '-')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text + os.linesep)
        paths[name] = str(path)
    return paths
