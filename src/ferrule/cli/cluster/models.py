"""``ferrule serve`` on a cluster, ``ferrule models`` and ``ferrule stop``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.cluster.tables import models_table, show
from ferrule.cli.flags import AsJson, InCluster
from ferrule.cli.output import print_json
from ferrule.cli.serving.model import DEMO
from ferrule.cli.serving.models_file import Wanted
from ferrule.cluster import client
from ferrule.cluster import models as cluster_models
from ferrule.cluster.desired import MOST_MODELS, DesiredModel, OfferedModel
from ferrule.cluster.home import ClusterHome, choose_cluster
from ferrule.cluster.messages import GetStatus
from ferrule.cluster.models import ModelRow
from ferrule.errors import ClusterError, ConfigError
from ferrule.model.gguf import full_path, model_name

_POLL_SECONDS = 0.3
SEVERAL = "models"
"""What `ferrule models` and `ferrule stop` call an address of several where nobody says."""


def cluster_hosts(home: ClusterHome) -> list[str]:
    """Names of all its hosts, also of those that do not answer now."""
    return [member.name for member in client.ask(home, GetStatus()).hosts]


def serve_on_cluster(
    console: Console, home: ClusterHome, name: str | None, port: int | None, desired: DesiredModel
) -> None:
    """Have a model served by the cluster from now on, at ``port`` or (None) a free one, and wait until it is ready.
    Raises what keeps it from that."""
    model, own = _placed(desired.model)
    name = name or (SEVERAL if desired.models else own)

    async def order() -> None:
        given = await cluster_models.free_port(home, desired.listen, port)
        await cluster_models.want(home, name, replace(desired, model=model, port=given))

    asyncio.run(order())
    try:
        found = _wait_ready(console, home, name)
    except KeyboardInterrupt:
        console.print(f"{name} goes on loading; see ferrule models, or end it: ferrule stop {name}", highlight=False)
        raise
    except ClusterError:
        with suppress(ClusterError):  # it may have been stopped meanwhile; why it was not served is told
            asyncio.run(cluster_models.unwant(home, name))
        raise
    _show_ready(console, home, name, found)


def offered(several: Sequence[Wanted]) -> tuple[OfferedModel, ...]:
    """As a record has them. Raises `ConfigError` where two have one name."""
    from ferrule.engine.options import parse_adapters
    from ferrule.serve.models import check_names

    found = []
    for each in several:
        model, own = _placed(each.model)
        adapters = parse_adapters(each.adapters)
        found.append(
            OfferedModel(
                name=each.name or own,
                model=model,
                dtype=each.dtype,
                weights=each.weights,
                kv_cache=each.kv_cache,
                max_context=each.max_context,
                threads=each.threads,
                tensor=each.tensor,
                pipeline=each.pipeline,
                device=each.device,
                adapters=tuple(adapter.text for adapter in adapters),
                tool_parser=each.tool_parser,
                aliases=each.aliases,
                pin=each.pin,
                ttl=each.ttl,
                preload=each.preload,
            )
        )
    check_names([each.name for each in found])
    if len(found) > MOST_MODELS:
        raise ConfigError(f"{len(found)} models are more than the {MOST_MODELS} that an address of a cluster can have")
    return tuple(found)


def _placed(model: str) -> tuple[str, str]:
    """``model`` as any program of this host finds it, and what it is called where nobody says."""
    path = Path(model).expanduser()
    if model == DEMO:
        return model, "ferrule-demo"
    return (str(full_path(path)), model_name(path)) if path.exists() else (model, model)


def _wait_ready(console: Console, home: ClusterHome, name: str) -> ModelRow:
    with console.status(f"{name}: starting") as shown:
        while True:
            rows = [each for each in asyncio.run(cluster_models.models(home)) if each.name == name]
            if not rows:
                raise ClusterError(f"{name} was stopped meanwhile")
            row = rows[0]
            if row.state == "ready":
                return row
            if row.state == "failed":
                raise ClusterError(f"{name} cannot be served: {row.detail}")
            where = f" on {', '.join(row.hosts)}" if row.hosts else ""
            shown.update(f"{name}{where}: {row.detail or row.state}")
            time.sleep(_POLL_SECONDS)


def _show_ready(console: Console, home: ClusterHome, name: str, row: ModelRow) -> None:
    show(models_table([row]))
    if row.plan:
        console.print(f"\n{row.plan}", style="dim", highlight=False)
    if row.wanted is not None and row.wanted.key:
        from ferrule.agent.models.server import api_key_of

        console.print(f"clients need the key {api_key_of(home.key, name)}", highlight=False)
    console.print(
        f"\nIt stays up, also after a restart of this machine. ferrule chat {row.address}   ferrule stop {name}",
        highlight=False,
        soft_wrap=True,
    )


app = typer.Typer()


@app.command(epilog="Examples:\n\nferrule models\n\nferrule models --json")
def models(cluster: InCluster = None, as_json: AsJson = False) -> None:
    """Show the models that the cluster serves, where, and how they are."""
    found = asyncio.run(cluster_models.models(choose_cluster(cluster)))
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("no model is up; serve one, for example: ferrule serve --demo")
        return
    show(models_table(found))


@app.command(epilog="Examples:\n\nferrule stop Qwen3-8B")
def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `ferrule models` shows it.")],
    cluster: InCluster = None,
) -> None:
    """End a model on all hosts of the cluster. It does not come back by itself."""
    asyncio.run(cluster_models.unwant(choose_cluster(cluster), name))
    typer.echo(f"{name} has stopped")
