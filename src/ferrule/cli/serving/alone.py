"""One model, served by this machine alone: which, and its life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.cli.serving.model import DEMO
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.front import Front
    from ferrule.cli.serving.placing import Placing
    from ferrule.engine import Engine, EngineOptions
    from ferrule.engine.host.local_ranks import LocalPlanner
    from ferrule.engine.host.speed import Speed
    from ferrule.serve.models import Aliases


def choose(model: str | None, *, demo: bool) -> str:
    """The one model that was asked for. Raises `ConfigError` for none and for two."""
    if demo and model not in (None, DEMO):
        raise ConfigError(f"--demo and {model}: serve one of them")
    if demo:
        return DEMO
    if model is None:
        raise ConfigError(
            "no model is given; name a directory, a GGUF file or a hub id, or try the embedded one with --demo"
        )
    return model


def run_alone(
    console: Console,
    options: EngineOptions,
    planner: LocalPlanner,
    place: Placing,
    front: Front,
    tool_parser: str,
    aliases: Aliases,
) -> None:
    """Serve one model on this machine until it is stopped."""
    from ferrule.cli.display import Loading
    from ferrule.engine import start
    from ferrule.engine.host.speed import speed_of

    async def load() -> tuple[Engine, Speed | None]:
        with Loading(console) as loading:
            engine = await start(options, loading, planner=planner.about, choose_plan=place.plan)
            return engine, await speed_of(engine, None if place.machine is None else place.machine.device)

    front.run_engine(console, load, tool_parser=tool_parser, aliases=aliases)
