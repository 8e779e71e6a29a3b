"""Prompts on ranks of their own, for `ferrule serve --prefill-tp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.front import Front
    from ferrule.engine import Engine, EngineOptions
    from ferrule.engine.host.speed import Speed


def refuse_apart(prefill: int | None, *, cluster: bool, plan: bool, replicas: bool, cp: bool) -> None:
    """Raises `ConfigError` where ``--prefill-tp`` was given with what it does not go with."""
    if prefill is None:
        return
    if cluster:
        raise ConfigError("--prefill-tp is for ranks of this machine alone: add --here, or leave it out")
    for flag, given in (("--plan", plan), ("--replicas", replicas), ("--cp", cp)):
        if given:
            raise ConfigError(f"--prefill-tp does not go with {flag}: leave one of them out")


def run_apart(
    console: Console,
    options: EngineOptions,
    prefill: int,
    *,
    split: bool,
    demo: bool,
    front: Front,
    **served: Any,
) -> None:
    """Serve one model on this machine until it is stopped, with ``prefill`` ranks for prompts beside those that
    ``options`` ask for. ``split``, ``demo``: as of `placing`; ``served``: further options of `Front.run`."""
    from ferrule.cli.display import Loading
    from ferrule.cli.serving.placing import placing
    from ferrule.engine.apart.start import check_apart, start_apart
    from ferrule.engine.host.speed import speed_of

    check_apart(options)
    place = placing(console, options, lambda: None, split=split, demo=demo)

    async def load() -> tuple[Engine, Speed | None]:
        with Loading(console) as loading:
            engine = await start_apart(options, prefill, loading, choose_plan=place.plan)
            return engine, await speed_of(engine, None)

    front.run_engine(console, load, **served)
