"""Several models behind one address, for `ferrule serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferrule.cli.serving.model import DEMO, DEMO_RANKS
from ferrule.cli.serving.models_file import Wanted, read_models
from ferrule.errors import ConfigError
from ferrule.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.front import Front
    from ferrule.cli.serving.options import CommonOptions
    from ferrule.engine import Engine
    from ferrule.serve.http.tls import ServerTls
    from ferrule.serve.models import Aliases
    from ferrule.serve.models.many import ManyModels
    from ferrule.serve.models.offer import Offer

ModelsFile = Annotated[
    Path | None, typer.Option("--models", metavar="FILE", help="Several models: TOML with tables [models.NAME].")
]
AliasFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--alias", metavar="ALIAS=NAME", help="Another name of a model, such as 'claude-*=NAME'; as often as wanted."
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        envvar="FERRULE_MEMORY_LIMIT",
        metavar="SIZE",
        help="Of several models: memory for all, such as 48GiB; in a cluster on each device.",
    ),
]
CONTEXT = 4096
"""Tokens for which there should be memory where the user does not say."""


def refuse_for_several(given: Mapping[str, object]) -> None:
    """Raise `ConfigError` for options that are of one model."""
    for option, value in given.items():
        if value:
            raise ConfigError(f"{option} is for one model; several have their settings in a file: --models FILE")


def wanted_models(given: Sequence[str], file: Path | None, common: Wanted) -> list[Wanted]:
    """Those that are ``given`` as words and then those of the ``file``; ``common``: options of all. Raises
    `ConfigError`."""
    from ferrule.engine.options import parse_adapters
    from ferrule.serve.tools.families import check_parser

    found = [replace(common, model=model) for model in given]
    found += read_models(file, common) if file is not None else []
    for each in found:
        check_parser(each.tool_parser)
        parse_adapters(each.adapters)
    return [replace(each, tensor=DEMO_RANKS) if each.model == DEMO and not each.split else each for each in found]


def run_several(
    console: Console,
    wanted: Sequence[Wanted],
    common: CommonOptions,
    *,
    limit: int | None,
    aliases: Aliases,
    front: Front,
) -> None:
    """Until it is stopped. ``limit``: bytes of memory for all."""
    from ferrule.serve.models.many import ManyModels
    from ferrule.serve.models.memory import Memory

    def tell(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    async def load() -> ManyModels:
        names, offers = aliases, []
        for each in wanted:
            offer = await offer_of(console, each, common)
            offers.append(offer)
            names = names.also(offer.name, each.aliases)
        models = ManyModels(offers, Memory(limit), aliases=names, tell=tell)
        await models.start()
        return models

    def ready(models: ManyModels) -> None:
        show_several(console, models, front.host, front.port, with_key=front.keyed, tls=front.tls)

    front.run(load, ready)


async def offer_of(console: Console, wanted: Wanted, common: CommonOptions) -> Offer:
    """A model whose files have been found and read, but for its weights. Raises what `ferrule.engine.start` does before
    any process is started."""
    from ferrule.cli.display import Loading
    from ferrule.cli.serving.placing import placing
    from ferrule.engine import EngineOptions, start
    from ferrule.engine.device_names import CPU
    from ferrule.engine.host.local_ranks import LocalPlanner
    from ferrule.engine.host.prepare import prepared
    from ferrule.engine.options import parse_adapters
    from ferrule.serve.models.offer import Need, Offer, Unloaded

    options = EngineOptions(
        wanted.model,
        wanted.tensor or 1,
        wanted.pipeline or 1,
        wanted.dtype,
        wanted.max_context,
        wanted.name,
        wanted.threads,
        weights=wanted.weights,
        kv_cache=wanted.kv_cache,
        device=wanted.device or CPU,
        adapters=parse_adapters(wanted.adapters),
        prefix_tokens=wanted.max_context or CONTEXT,
        **common,
    )
    place = placing(console, options, lambda: None, split=wanted.split, demo=wanted.model == DEMO)

    async def load() -> Engine:
        planner = LocalPlanner(standby=options.standby, choice=place.devices)
        with Loading(console) as loading:
            return await start(options, loading, planner=planner.about, choose_plan=place.plan)

    with Loading(console) as downloading:
        model = await prepared(options, place.plan, downloading)
    return Offer(
        Unloaded.of(options, model),
        load,
        Need.of(options, model, options.max_context or CONTEXT),
        wanted.pin,
        wanted.ttl,
        wanted.preload,
        wanted.tool_parser,
    )


def show_several(
    console: Console, models: ManyModels, host: str, port: int, *, with_key: bool, tls: ServerTls | None
) -> None:
    """Print where the models are served, what they need, and a command to try it, to be pasted."""
    from ferrule.cli.display import base_url, show_curl
    from ferrule.cli.output import new_table
    from ferrule.serve.models.offer import state_of

    url = base_url(host, port, tls)
    console.print(f"{len(models.states())} models are served at {url}/v1", highlight=False, soft_wrap=True)
    table = new_table("model", "state", ">memory", "")
    for offer, engine in models.states():
        stays = "pinned" if offer.pin else "" if offer.ttl is None else f"unloaded after {offer.ttl:g} s"
        table.add_row(offer.name, state_of(engine), format_bytes(offer.need.total), stays)
    console.print(table)
    show_curl(console, url, models.states()[0][1], with_key=with_key, tls=tls)
